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
from radixserve.config.schema import ScheduleConfig
from radixserve.errors import ConfigError, QueueFull, RequestError
from radixserve.ints import round_down
from radixserve.plan import Opened, SlotId, StepPlan, StepResult
from radixserve.scheduler.admission import allowed_new_tokens, reserved_pages
from radixserve.scheduler.batch import LaunchedStep, StepBuilder
from radixserve.scheduler.finish import Ending, FinishCheck
from radixserve.scheduler.outputs import Outputs, finished
from radixserve.scheduler.policy import note_overtakes, order
from radixserve.scheduler.request import Phase, Request
from radixserve.wire.messages import FinishReason, FromEngine, Gauges, Generate, Started


class Scheduler:
    """context_len, vocab_size: of the model. stop_ids: its end tokens. token_bytes: id to bytes."""

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
        if config.token_budget < config.max_running + cache.page_size:
            raise ConfigError(
                f"token_budget ({config.token_budget}) must be at least max_running "
                f"({config.max_running}) + page_size ({cache.page_size}), so that prompts advance "
                "beside decoding requests"
            )
        self._config = config
        self._cache = cache
        self._context_len = context_len
        self._vocab_size = vocab_size
        self._stop_ids = tuple(stop_ids)
        self._token_bytes = token_bytes
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []  # by arrival
        self._running: list[Request] = []  # by admission
        self._launched: deque[LaunchedStep] = deque()
        self._free_slots = [SlotId(i) for i in reversed(range(config.max_running))]
        self._closed: list[SlotId] = []
        self._arrivals = 0
        self._steps = 0
        self._outputs = Outputs()

    # ---- verbs ----

    def handle(self, message: Generate) -> list[FromEngine]:
        """Queue a request, or refuse it with its one Finished."""
        try:
            if len(self._waiting) >= self._config.max_waiting:
                raise QueueFull(f"{len(self._waiting)} requests are waiting; try again later")
            allowed = allowed_new_tokens(
                message,
                self._context_len,
                self._cache.total_pages * self._cache.page_size,
                self._vocab_size,
            )
        except RequestError as error:
            return [finished(message.rid, FinishReason.ERROR, error=error)]
        assert message.rid not in self._requests, f"rid {message.rid} is in use"
        check = FinishCheck(message.params, self._stop_ids, self._token_bytes)
        request = Request(message, self._arrivals, allowed, check)
        self._arrivals += 1
        self._requests[request.rid] = request
        self._waiting.append(request)
        return [Started(request.rid)]

    def abort(self, rid: str) -> list[FromEngine]:
        """End a request wherever it is; nothing for one that is not here."""
        request = self._requests.get(rid)
        if request is None:
            return []
        return [self._end(request, Ending(FinishReason.ABORT))]

    def flush(self) -> int:
        """Drop what no request holds from the cache; returns the tokens freed."""
        return self._cache.flush()

    def plan(self) -> StepPlan | None:
        """The next step; None when no row can be made before a launched step is applied."""
        if not self._running and not self._waiting:
            return None
        step = self._cache.begin_step()
        builder = StepBuilder(
            step,
            self._config.token_budget,
            self._cache.page_size,
            shares_prefixes=self._config.shared_attention,
        )
        for request in list(self._running):
            if request.phase is Phase.RUNNING and not request.prefilling:
                self._plan_decode(builder, request)
        for request in self._running:
            if request.prefilling and self._may_prefill(builder):
                assert request.lease is not None
                before = request.computed
                request.computed = self._cache.advance(request.lease, before)
                self._count_cached(request, request.computed - before)
                self._plan_chunk(builder, request)
        self._admit(builder)
        if not len(builder):
            self._cache.end_step(step)
            return None
        self._launched.append(LaunchedStep(step, builder.rows))
        self._steps += 1
        closed = tuple(self._closed)
        self._closed.clear()
        return builder.build(closed)

    def apply(self, result: StepResult) -> list[FromEngine]:
        """Take the oldest launched step's result; returns what to tell the front."""
        launched = self._launched.popleft()
        assert launched.step == result.step, "steps are applied in the order of their launch"
        self._cache.end_step(launched.step)
        events: list[FromEngine] = []
        sampled = dict(zip(result.rows.tolist(), result.ids.tolist()))
        scores = iter(result.scores)
        for index, row in enumerate(launched.rows):
            request = row.request
            request.in_flight -= 1
            request.sampling -= row.samples
            score = next(scores) if row.scored_from is not None else None
            if request.phase is Phase.ENDED:
                if not request.in_flight:
                    self._release(request)
                continue
            if row.scored_from is not None and score is not None:
                events += self._outputs.score(request, row.scored_from, score)
            if row.computed_to == request.prefill_len:
                self._commit(request, row.computed_to, row.computed_to)
            if row.samples:
                events.append(self._outputs.token(request, sampled[index], result, index))
                ending = self._ending(request, sampled[index])
            else:
                ending = self._prefill_only(request, row.computed_to)
            if ending is not None:
                events.append(self._end(request, ending))
        return events

    def fail(self, error: Exception) -> list[FromEngine]:
        """A launched step failed: forget all launched steps and requeue the running requests once.

        What those steps published leaves the cache; requests that failed too often end.
        """
        events: list[FromEngine] = []
        steps = [launched.step for launched in self._launched]
        named = {row.request.rid: row.request for step in self._launched for row in step.rows}
        self._launched.clear()
        for request in named.values():
            request.in_flight = request.sampling = 0
            if request.phase is Phase.ENDED:
                self._drop_lease(request)
        for request in list(self._running):
            self._drop_lease(request)
            self._requeue(request)
            request.failures += request.rid in named
            if request.failures > self._config.step_retries:
                self._waiting.remove(request)
                events.append(self._finish(request, Ending(FinishReason.ERROR), error))
        for step in steps:
            self._cache.end_step(step)
        if steps:
            self._cache.drop_since(steps[0])
        return events

    def gauges(self) -> Gauges:
        cache = self._cache
        size = cache.page_size
        return self._outputs.gauges(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_tokens=cache.total_pages * size,
            free_tokens=cache.free_pages * size,
            evictable_tokens=cache.evictable_pages * size,
            locked_tokens=(cache.total_pages - cache.free_pages - cache.evictable_pages) * size,
            steps=self._steps,
            evicted_tokens=cache.evicted_tokens,
        )

    @property
    def idle(self) -> bool:
        return not (self._running or self._waiting or self._launched)

    # ---- planning ----

    def _may_prefill(self, builder: StepBuilder) -> bool:
        """A chunk must be able to reach the next page border."""
        return min(builder.budget, self._config.chunk) >= self._cache.page_size

    def _plan_decode(self, builder: StepBuilder, request: Request) -> None:
        if not request.wants_decode:
            return
        lease = request.lease
        assert lease is not None
        end = request.seq_len
        if end > len(lease.pages) * self._cache.page_size:
            while not self._cache.grow(lease, end):
                if not self._retract(builder) or request.phase is not Phase.RUNNING:
                    return
        builder.add(request, end, None, samples=True)
        self._launch(request, end, samples=True)

    def _plan_chunk(self, builder: StepBuilder, request: Request) -> None:
        """The next chunk; its end is on a page border unless it ends the prefill."""
        assert request.lease is not None
        start, total = request.computed, request.prefill_len
        end = min(total, start + min(builder.budget, self._config.chunk))
        if end < total:
            end = round_down(end, self._cache.page_size)
        samples = end == total and request.wants_decode
        builder.copies.extend(request.lease.take_copies())
        self._commit(request, end, start)
        builder.add(request, end, request.tokens()[start:end], samples=samples)
        self._outputs.count_computed(request, end - start)
        self._launch(request, end, samples=samples)

    def _launch(self, request: Request, end: int, *, samples: bool) -> None:
        request.computed = end
        request.in_flight += 1
        request.sampling += samples

    def _admit(self, builder: StepBuilder) -> None:
        if not self._waiting or not self._free_slots or not self._may_prefill(builder):
            return
        if builder.retracted:  # or the victim would be back at once
            return
        config = self._config
        for request in order(self._waiting, config.policy, config.max_overtakes, self._matched):
            if not self._free_slots or not self._may_prefill(builder):
                return
            if not self._take_lease(request):
                return
            self._waiting.remove(request)
            note_overtakes(self._waiting, request)
            self._open(builder, request)
            self._plan_chunk(builder, request)

    def _matched(self, request: Request) -> int:
        message = request.message
        return self._cache.peek(message.namespace, request.key, request.match_limit)

    def _take_lease(self, request: Request) -> bool:
        """Pages for every known token, leaving what the running requests will still need."""
        share, size = self._config.reserve, self._cache.page_size
        reserve = 0
        if self._running:
            reserve = reserved_pages([*self._running, request], share, size)
        request.lease = self._cache.acquire(
            request.message.namespace,
            request.key,
            limit=request.match_limit,
            reserve_pages=reserve,
        )
        return request.lease is not None

    def _open(self, builder: StepBuilder, request: Request) -> None:
        assert request.lease is not None
        request.slot = self._free_slots.pop()
        request.phase = Phase.RUNNING
        request.prefill_len = request.known_len
        request.computed = request.lease.matched
        self._running.append(request)
        self._count_cached(request, request.computed)
        tokens = request.tokens()
        builder.opened.append(
            Opened(
                slot=request.slot,
                params=request.message.params,
                prompt=request.prompt,
                output=tokens[request.prompt_len :],
                stop_ids=request.check.stop_ids,
                logprobs=request.message.output_logprobs,
            )
        )

    def _count_cached(self, request: Request, n: int) -> None:
        if not request.output and not request.failures:
            request.cached_tokens += n
            self._outputs.count_cached(n)

    def _retract(self, builder: StepBuilder) -> bool:
        """Free pages for a decode row: retract who alone holds most. False: wait a step."""
        planned = {id(row.request) for row in builder.rows}
        victims = [r for r in self._running if not r.in_flight and id(r) not in planned]
        if not victims:
            return False
        victim = max(victims, key=lambda r: (self._own_pages(r), r.arrival))
        self._outputs.retractions += 1
        builder.retracted = True
        self._commit(victim, victim.computed, victim.computed)
        self._drop_lease(victim)
        self._requeue(victim)
        return True

    @staticmethod
    def _own_pages(request: Request) -> int:
        return 0 if request.lease is None else len(request.lease.own_pages)

    # ---- endings ----

    def _requeue(self, request: Request) -> None:
        """Back to the queue with output, penalties and seed kept; its place is by arrival."""
        self._leave(request)
        request.phase = Phase.WAITING
        request.computed = 0
        request.key = request.tokens().tobytes()
        self._waiting.append(request)
        self._waiting.sort(key=lambda r: r.arrival)

    def _leave(self, request: Request) -> None:
        self._running.remove(request)
        assert request.slot is not None
        self._free_slots.append(request.slot)
        self._closed.append(request.slot)
        request.slot = None

    def _ending(self, request: Request, token: int) -> Ending | None:
        ending = request.check.push(token)
        if ending is None and len(request.output) >= request.max_new_tokens:
            return Ending(FinishReason.LENGTH)
        return ending

    @staticmethod
    def _prefill_only(request: Request, computed_to: int) -> Ending | None:
        if computed_to == request.prefill_len and not request.max_new_tokens:
            return Ending(FinishReason.LENGTH)
        return None

    def _end(self, request: Request, ending: Ending) -> FromEngine:
        if request.phase is Phase.WAITING:
            self._waiting.remove(request)
        else:
            self._leave(request)
            if not request.in_flight:
                self._release(request)
        return self._finish(request, ending)

    def _finish(
        self, request: Request, ending: Ending, error: Exception | None = None
    ) -> FromEngine:
        request.phase = Phase.ENDED
        del self._requests[request.rid]
        return self._outputs.finish(request, ending, error)

    def _release(self, request: Request) -> None:
        """Publish everything computed, and give the lease back."""
        if request.lease is not None:
            # The last sampled token has no KV unless a launched step went on past it.
            computed = min(request.computed, request.known_len)
            self._commit(request, computed, computed)
            self._drop_lease(request)

    def _drop_lease(self, request: Request) -> None:
        if request.lease is not None:
            self._cache.release(request.lease)
            request.lease = None

    def _commit(self, request: Request, length: int, written: int) -> None:
        """Publish tokens [0, length); the step being planned computes those from written on."""
        assert request.lease is not None
        key = request.key
        if length * 4 > len(key):
            key = request.tokens().tobytes()
        self._cache.commit(request.lease, key, length, written)
