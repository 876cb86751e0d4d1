"""The scheduler. Verbs: handle(message), plan() -> StepPlan or None, apply(result) -> outputs.

Owns: the phase of every request, the waiting queue, slots, and when a lease is taken and given
back. Must not know: sockets, tensors, text. Everything it says goes out as return values.

A step is rows under one token budget: first a decode row for every running request, then the next
chunks of prompts being prefilled, then new admissions while budget, slots and pages last. Full
prompt pages are committed to the cache when they are planned, and every chunk re-matches first, so
equal prompts are computed once even when they arrive together. With overlap, plan() may run before
the previous step is applied; nothing here depends on which.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from radixserve.cache.prefix import PrefixCache
from radixserve.cache.retention import Owner
from radixserve.config.schema import ScheduleConfig
from radixserve.errors import RequestError
from radixserve.guide import Guide
from radixserve.ints import round_down
from radixserve.plan import SlotId, StepPlan, StepResult
from radixserve.scheduler import progress
from radixserve.scheduler.admission import Bounds, check_budget
from radixserve.scheduler.batch import LaunchedStep, StepBuilder
from radixserve.scheduler.finish import Ending, FinishCheck
from radixserve.scheduler.heads import Heads
from radixserve.scheduler.outputs import Events, Outputs, finished, on_wire
from radixserve.scheduler.pages import RequestPages
from radixserve.scheduler.progress import Progress
from radixserve.scheduler.queue import WaitingQueue
from radixserve.scheduler.request import Phase, Request
from radixserve.wire.messages import (
    Finished,
    FinishReason,
    Gauges,
    Generate,
    Logprobs,
    Started,
)


class Scheduler:
    """context_len, vocab_size: of the model. stop_ids: its end tokens. token_bytes: id to bytes.

    cache: may be asked between two verbs.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        cache: PrefixCache,
        *,
        context_len: int,
        vocab_size: int,
        stop_ids: Sequence[int],
        token_bytes: Sequence[bytes],
    ) -> None:
        check_budget(config, cache.page_size)
        self._config = config
        self.cache = self._cache = cache
        self._pages = RequestPages(cache, config.reserve, may_pass=config.policy != "fcfs")
        self._bounds = Bounds(
            config.max_waiting, context_len, cache.total_pages * cache.page_size, vocab_size
        )
        self._stop_ids = tuple(stop_ids)
        self._token_bytes = token_bytes
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue(config, self._pages.matched)
        self._running: list[Request] = []  # by admission
        self._launched: deque[LaunchedStep] = deque()
        self._free_slots = [SlotId(i) for i in reversed(range(config.max_running))]
        self._closed: list[SlotId] = []
        self._arrivals = 0
        self._steps = 0
        self._heads = Heads(self._pages.matched, cache.page_size, config.chunk)
        self._outputs = Outputs()

    # ---- verbs ----

    def handle(self, message: Generate, guide: Guide | None = None) -> Events:
        """Queue a request, or refuse it with its one Finished. guide: its constraint's."""
        try:
            allowed = self._bounds.allowed(message, len(self._waiting))
            check = FinishCheck(message.params, self._stop_ids, self._token_bytes)
            request = Request(message, self._arrivals, allowed, check, guide)
            opening = None if guide is None else progress.opened(request, guide)
        except RequestError as error:
            return [finished(message.rid, FinishReason.ERROR, error=error)]
        assert message.rid not in self._requests, f"rid {message.rid} is in use"
        self._arrivals += 1
        self._requests[request.rid] = request
        self._waiting.arrive(request)
        self._pages.expect(request)
        events: Events = [Started(request.rid)]
        if opening is not None:
            events += self._open_output(request, opening)
        return events

    def refusal(self, message: Generate, held: int) -> Finished | None:
        """The refusal that handle() would give, before a grammar is compiled for the request.

        held: requests that wait for theirs.
        """
        return self._bounds.refusal(message, len(self._waiting) + held)

    def abort(self, rid: str) -> Events:
        """End a request wherever it is; nothing for one that is not here."""
        request = self._requests.get(rid)
        if request is None:
            return []
        return self._end(request, Ending(FinishReason.ABORT))

    def end_program(self, owner: Owner) -> None:
        """The program makes no more calls; those that are here go on."""
        self._waiting.program_ended(owner)
        self._cache.retention.forget(owner)

    def plan(self) -> StepPlan | None:
        """The next step; None when no row can be made before a launched step is applied."""
        if not self._running and not self._waiting:
            return None
        step = self._pages.begin_step()
        builder = StepBuilder(
            step,
            self._config.token_budget,
            self._cache.page_size,
            shares_prefixes=self._config.shared_attention,
        )
        for request in list(self._running):
            if request.computed >= request.prefill_len and request.phase is Phase.RUNNING:
                self._plan_decode(builder, request)
        unfinished = [r for r in self._running if r.computed < r.prefill_len]
        self._go_on(builder, [r for r in unfinished if r.computed != r.cut])
        self._admit(builder)
        # Behind those that go on from their cut: it writes to the page that they copy.
        self._go_on(builder, [r for r in unfinished if r.computed == r.cut])
        if not len(builder):
            self._cache.end_step(step)
            return None
        self._launched.append(LaunchedStep(step, builder.rows))
        self._steps += 1
        closed, self._closed = tuple(self._closed), []
        return builder.build(closed)

    def apply(self, result: StepResult) -> Events:
        """Take the oldest launched step's result; returns what to tell the front."""
        launched = self._launched.popleft()
        assert launched.step == result.step, "steps are applied in the order of their launch"
        self._cache.end_step(launched.step)
        events: Events = []
        sampled = dict(zip(result.rows.tolist(), result.ids.tolist()))
        scores, hidden = iter(result.scores), iter(result.hidden)
        for index, row in enumerate(launched.rows):
            request, computed_to, samples, scored_from, pools = row
            request.in_flight -= 1
            request.sampling -= samples
            score = next(scores) if scored_from is not None else None
            states = next(hidden) if pools else None
            if request.phase is Phase.ENDED:
                if not request.in_flight:
                    self._pages.publish_and_drop(request)
                continue
            if scored_from is not None and score is not None:
                events += self._outputs.score(request, scored_from, score)
            if states is not None:
                request.add_hidden(states)
            if computed_to in (request.prefill_len, request.cut):
                self._pages.commit(request, computed_to, computed_to)
            if samples:
                request.told += 1
                values = result.logprobs.get(index)
                logprobs = None if values is None else on_wire(values)
                events += self._take(request, sampled[index], logprobs)
            elif computed_to == request.prefill_len and not request.max_new_tokens:
                events += self._end(request, request.after_prefill)
        return events

    def fail(self, error: Exception) -> Events:
        """A launched step failed: forget all launched steps and requeue the running requests once.

        What those steps published leaves the cache; requests that failed too often end.
        """
        events: Events = []
        steps = [launched.step for launched in self._launched]
        named = {row.request.rid: row.request for step in self._launched for row in step.rows}
        self._launched.clear()
        for request in named.values():
            request.in_flight = request.sampling = 0
            if request.phase is Phase.ENDED:
                self._pages.drop(request)
        for request in list(self._running):
            self._pages.drop(request)
            self._requeue(request)
            request.failures += request.rid in named
            if request.failures > self._config.step_retries:
                self._waiting.remove(request)
                events += self._finish(request, Ending(FinishReason.ERROR), error)
        for step in steps:
            self._cache.end_step(step)
        if steps:
            self._cache.drop_since(steps[0])
        return events

    def gauges(self) -> Gauges:
        return self._outputs.gauges(
            running=len(self._running),
            waiting=len(self._waiting),
            steps=self._steps,
            **self._pages.gauges(),
        )

    def guides(self) -> list[Guide | None]:
        """Of the step launched last, each sampling row's guide; empty where no row has one."""
        rows = self._launched[-1].rows
        found = [row.request.guide for row in rows if row.samples]
        return found if any(found) else []

    def followers(self) -> int:
        """Requests that are to come at once behind what has ended, if they are worth a wait."""
        return self._outputs.followers(len(self._running))

    @property
    def idle(self) -> bool:
        return not (self._running or self._waiting or self._launched)

    # ---- planning ----

    def _may_prefill(self, builder: StepBuilder) -> bool:
        """A chunk must be able to reach the next page border."""
        return min(builder.budget, self._config.chunk) >= self._cache.page_size

    def _plan_decode(self, builder: StepBuilder, request: Request) -> None:
        if request.guide is not None:
            self._plan_guided(builder, request)
            return
        drawn = len(request.output) + request.sampling
        if drawn >= request.max_new_tokens:
            return
        end = request.prompt_len + drawn
        if self._reaches(builder, request, end):
            builder.add_decode(request, end)
            request.launch(end, samples=True)

    def _plan_guided(self, builder: StepBuilder, request: Request) -> None:
        """A row of all that is known and not computed: some of it may have been forced."""
        if not request.wants_decode:
            return
        start, total = request.computed, request.seq_len
        end = min(total, start + max(1, min(builder.budget, self._config.chunk)))
        ids = request.output_ids(start, end)
        if self._reaches(builder, request, end):
            builder.add(request, end, ids, samples=end == total)
            request.launch(end, samples=end == total)

    def _reaches(self, builder: StepBuilder, request: Request, end: int) -> bool:
        """Whether the request has pages for so many tokens, be it that another gives up its own."""
        assert request.lease is not None
        if 4 * end <= len(request.lease.table) * self._cache.page_size:
            return True
        while not self._cache.grow(request.lease, end):
            if not self._retract(builder) or request.phase is not Phase.RUNNING:
                return False
        return True

    def _go_on(self, builder: StepBuilder, unfinished: list[Request]) -> None:
        for request in unfinished:
            if self._may_prefill(builder):
                assert request.lease is not None
                before = request.computed
                request.computed = self._cache.advance(request.lease, before)
                self._outputs.count_cached(request, before, request.computed)
                self._plan_chunk(builder, request)

    def _plan_chunk(self, builder: StepBuilder, request: Request) -> None:
        """The next chunk; it ends on a page border, at the request's cut or with the prefill."""
        assert request.lease is not None
        start, total = request.computed, request.prefill_len
        end = min(total, start + min(builder.budget, self._config.chunk))
        if start < request.cut < end:
            end = request.cut
        elif end < total:
            end = round_down(end, self._cache.page_size)
        samples = end == total and request.wants_decode
        builder.copies.extend(request.lease.take_copies())
        self._pages.commit(request, end, start)
        builder.add(request, end, request.tokens()[start:end], samples=samples)
        self._outputs.count_computed(request, max(0, min(end, request.prompt_len) - start))
        request.launch(end, samples=samples)

    def _admit(self, builder: StepBuilder) -> None:
        if builder.retracted:  # or the victim would be back at once
            return
        if not (self._waiting and self._free_slots and self._may_prefill(builder)):
            return
        order = self._waiting.order(is_short=self._pages.is_short_for(self._waiting.tokens))
        if not self._launched and self._config.policy != "fcfs":
            self._heads.mark(order[: len(self._free_slots)], builder.step, builder.budget)
        for request in order:
            if not self._free_slots or not self._may_prefill(builder):
                return
            if request.held_in == builder.step:
                continue
            if not self._pages.take(request, self._running):
                return
            self._waiting.admit(request)
            self._open(builder, request)
            self._plan_chunk(builder, request)

    def _open(self, builder: StepBuilder, request: Request) -> None:
        assert request.lease is not None
        request.slot = self._free_slots.pop()
        request.phase = Phase.RUNNING
        request.note_admission()
        request.prefill_len = request.known_len
        request.computed, request.pooled = request.lease.matched, None
        self._running.append(request)
        self._outputs.count_cached(request, 0, request.computed)
        builder.open(request)

    def _retract(self, builder: StepBuilder) -> bool:
        """Free pages for a decode row: retract who alone holds most. False: wait a step."""
        victim = self._pages.victim(self._running, {row.request.rid for row in builder.rows})
        if victim is None:
            return False
        self._outputs.retractions += 1
        builder.retracted = True
        self._give_up_pages(victim)
        return True

    # ---- outputs ----

    def _open_output(self, request: Request, found: Progress) -> Events:
        """What a grammar forces before anything is sampled; it is computed with the prompt."""
        if found.ending is not None and request.wants_scores:
            request.max_new_tokens, request.after_prefill = 0, found.ending
            return []
        events = self._advance(request, found, None)
        request.opening_len = len(request.output)
        request.queue()
        return events

    def _take(self, request: Request, token: int, values: Logprobs | None) -> Events:
        """Its next token has been sampled."""
        if request.guide is not None:
            return self._advance(request, progress.sampled(request, token), values)
        ending = progress.ending_at(request, token)
        told = self._outputs.tokens(request, [token], 0, values)
        return told if ending is None else told + self._end(request, ending)

    def _advance(self, request: Request, found: Progress, logprobs: Logprobs | None) -> Events:
        """Append what has been found, and end the request or sample once more."""
        events: Events = []
        if found.ids:
            events += self._outputs.tokens(request, found.ids, found.forced, logprobs)
            self._outputs.count_forced(request, found.forced)
        if found.error is not None:
            events += self._end(request, Ending(FinishReason.ERROR), found.error)
        elif found.ending is not None:
            events += self._end(request, found.ending)
        elif found.again:
            self._give_up_pages(request)
        return events

    def _give_up_pages(self, request: Request) -> None:
        """Publish what is computed and send the request back to the queue."""
        self._pages.publish_and_drop(request, is_over=False)
        self._requeue(request)

    def _requeue(self, request: Request) -> None:
        """Back to the queue with output, penalties and seed kept; its place is by arrival."""
        self._leave(request)
        request.phase = Phase.WAITING
        request.computed = 0
        request.queue()
        self._waiting.put_back(request)

    def _leave(self, request: Request) -> None:
        self._running.remove(request)
        assert request.slot is not None
        self._free_slots.append(request.slot)
        self._closed.append(request.slot)
        request.slot = None

    def _end(self, request: Request, ending: Ending, error: Exception | None = None) -> Events:
        if request.phase is Phase.WAITING:
            self._waiting.remove(request)
        else:
            self._leave(request)
            if not request.in_flight:
                self._pages.publish_and_drop(request)
        return self._finish(request, ending, error)

    def _finish(self, request: Request, ending: Ending, error: Exception | None = None) -> Events:
        request.phase = Phase.ENDED
        del self._requests[request.rid]
        self._waiting.ended(request)
        return self._outputs.finish(request, ending, error)
