"""Everything that is to be known of a GPU, by one command in a few minutes.

    python -m benchmarks.gpu_check            (make gpu-check)
    python -m benchmarks.gpu_check --tiny     the same code in tiny shapes on a CPU

Needs Python 3.11 or later, torch 2.9 or later with CUDA, triton, numpy and safetensors (0.5 MB as a
wheel; transformers brings it), and one package to carry where it is missing: msgspec (0.2 MB as a
wheel). --list says it too, and what each stage measures. Nothing else of what the project depends
on is imported: not pyzmq, xgrammar, psutil, tokenizers, fastapi or prometheus_client. No network,
no checkpoint: weights are random, in the shapes of Llama-3-8B and of a model of 1B. About 95 GB of
GPU memory are used at most.

Each stage prints a line as it ends and its numbers are written at once, so that a run that is cut
short has told what it found. A stage that fails is reported, the rest go on, and the exit status is
1. Times are medians; a floor is that of benchmarks.roofline at the rates measured here.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.gpu_numbers import Numbers, error_of, hold, listing, roofline_model, run

RESULTS = pathlib.Path(__file__).parent / "results"


STAGES = {
    "rates": "measure_rates",
    "kernels": "kernels",
    "attention": "attention",
    "decode": "decode",
    "prefill": "prefill",
    "shared prefix": "shared_prefix",
    "variants": "variants",
    "no waiting": "no_waiting",
    "host": "host",
    "workloads": "workloads",
}
"""In the order in which they run: the method of each."""


class Check:
    """The stages and what they share."""

    def __init__(self, is_tiny: bool) -> None:
        from benchmarks import gpu_scene

        self.is_tiny = is_tiny
        self.scene = gpu_scene
        self.sizes = gpu_scene.TINY if is_tiny else gpu_scene.FULL
        self.device = gpu_scene.device(is_tiny)
        self.rates: Numbers = {"bandwidth": 4.8e12, "rate": 989e12}
        self._model: Any = None

    def stages(self) -> dict[str, Callable[[], Numbers]]:
        return {name: getattr(self, method) for name, method in STAGES.items()}

    # ---- tools ----

    @property
    def model(self) -> Any:
        if self._model is None:
            place = self.device.place
            self._model = self.scene.random_model(self.sizes.large, self.sizes.dtype, place)
        return self._model

    def seconds(self, run: Callable[[], object]) -> float:
        """The median of a call on the device."""
        if self.is_tiny:
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin
        import triton

        return float(triton.testing.do_bench(run, warmup=20, rep=100, return_mode="median")) / 1e3

    def finish(self) -> None:
        if not self.is_tiny:
            torch.cuda.synchronize()

    def random(self, *size: int) -> torch.Tensor:
        return torch.randn(size, dtype=torch.float32, device=self.device.place).to(self.sizes.dtype)

    def floor(self, costs: Any) -> float:
        from benchmarks import roofline

        machine = roofline.Machine(self.rates["bandwidth"], self.rates["rate"])
        return roofline.total(costs, machine)

    # ---- stages ----

    def measure_rates(self) -> Numbers:
        """Bytes a second of a copy (read and written), FLOPs a second of a large product."""
        n, m = (64, 2**10) if self.is_tiny else (8192, 2**30)
        source = torch.empty(m, dtype=torch.uint8, device=self.device.place)
        target = torch.empty_like(source)
        a, b = self.random(n, n), self.random(n, n)
        self.rates["bandwidth"] = 2 * m / self.seconds(lambda: target.copy_(source))
        self.rates["rate"] = 2 * n**3 / self.seconds(lambda: a @ b)
        return {"copy_TB/s": self.rates["bandwidth"] / 1e12, "TFLOP/s": self.rates["rate"] / 1e12}

    def kernels(self) -> Numbers:
        """The largest error of each small kernel against float64, relative to the largest value;
        for mask, draw and copy how many results differ."""
        from benchmarks.gpu_operations import differences
        from radixserve.kernels import reference
        from radixserve.kernels.triton.apply_mask import apply_mask
        from radixserve.kernels.triton.gated import gelu_mul, silu_mul
        from radixserve.kernels.triton.rms_norm import rms_norm

        width = self.sizes.large.hidden_size
        x, more, weight = self.random(33, width), self.random(33, width), self.random(width)
        normed, _ = reference.rms_norm(x.double(), weight.double(), 1e-5, more.double())
        found = {
            "rms_norm": error_of(rms_norm(x, weight, 1e-5, more)[0], normed),
            "silu_mul": error_of(silu_mul(x), reference.silu_mul(x.double())),
            "gelu_mul": error_of(gelu_mul(x), reference.gelu_mul(x.double())),
        }
        logits = torch.randn(3, 1000, device=self.device.place)
        bits = torch.randint(-(2**31), 2**31 - 1, (3, 32), dtype=torch.int32).to(logits.device)
        masked = logits.clone()
        apply_mask(masked, bits)
        found["apply_mask"] = float((masked != reference.apply_mask(logits, bits)).sum())
        found |= differences(logits.device, 64 if self.is_tiny else 128256, self.sizes.dtype)
        hold(found, 1e-4 if self.sizes.dtype == torch.float32 else 2e-2)
        return found

    def _backend(self, pages: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
        from radixserve.attention import select
        from radixserve.models.decoder import attention_shape

        spec = self.sizes.large
        size = (pages, self.scene.PAGE, spec.num_kv_heads, spec.head_dim)
        k, v = self.random(*size), self.random(*size)
        shape, place = attention_shape(spec), self.device.place
        return select.choose("triton", place)(shape, self.scene.PAGE, [k], [v]), k, v

    def _attend(self, rows: int, kv: int, length: int, shared: int, groups: bool) -> Numbers:
        """Seconds of one layer's attention, and its error against float64 in the last row."""
        from radixserve.attention.base import AttentionInputs

        spec = self.sizes.large
        table = self.scene.tables(rows, kv, shared)
        backend, k, v = self._backend(int(max(t.max() for t in table)) + 1)
        plan = self.scene.step_plan(0, table, kv - length, length, groups=groups)
        names = ("positions", "lengths", "page_indptr", "page_indices", "shared")
        backend.plan(AttentionInputs(**{name: getattr(plan, name) for name in names}))
        q = self.random(rows * length, spec.num_qo_heads, spec.head_dim)
        new = self.random(2, rows * length, spec.num_kv_heads, spec.head_dim)
        out = backend.run(0, q, new[0], new[1])
        pages = torch.from_numpy(table[-1]).long().to(k.device)
        keys, values = (one[pages].flatten(0, 1)[:kv].double() for one in (k, v))
        group = spec.num_qo_heads // spec.num_kv_heads
        scores = torch.einsum("hd,thd->ht", q[-1].double(), keys.repeat_interleave(group, 1))
        weights = (scores * spec.head_dim**-0.5).softmax(-1)
        wanted = torch.einsum("ht,thd->hd", weights, values.repeat_interleave(group, 1))
        seconds = self.seconds(lambda: backend.run(0, q, new[0], new[1]))
        return {"seconds": seconds, "error": error_of(out[-1], wanted.flatten())}

    def attention(self) -> Numbers:
        """Decode, extend and shared-prefix attention of one layer (with the store of new K, V)."""
        from benchmarks import roofline

        sizes, shape = self.sizes, roofline_model(self.sizes.large)
        rows, tokens = sizes.decode[-1] if self.is_tiny else 64, sizes.prefill[-1]
        decode = self._attend(rows, sizes.kv, 1, 0, False)
        extend = self._attend(1, tokens, tokens, 0, False)
        kv = sizes.shared + sizes.own
        each = self._attend(sizes.shared_rows, kv, 1, sizes.shared, False)
        once = self._attend(sizes.shared_rows, kv, 1, sizes.shared, True)
        moved = roofline.attend_decode(shape, rows, sizes.kv).moved
        flops = roofline.attend_extend(shape, tokens).flops
        found = {"decode": decode, "extend": extend, "each": each, "once": once}
        hold({n: f["error"] for n, f in found.items()}, 3e-2)
        return {
            **{f"{name}_us": part["seconds"] * 1e6 for name, part in found.items()},
            **{f"{name}_error": part["error"] for name, part in found.items()},
            "decode_of_copy": moved / decode["seconds"] / self.rates["bandwidth"],
            "extend_of_rate": flops / extend["seconds"] / self.rates["rate"],
            "once_over_each": each["seconds"] / once["seconds"],
        }

    def _steps(
        self,
        rows: int,
        kv: int,
        shared: int = 0,
        groups: bool = False,
        kv_dtype: torch.dtype | None = None,
    ) -> Numbers:
        """Seconds a decode step with overlap, and of the host alone in launch and sample; graphs
        that were captured."""
        table = self.scene.tables(rows, kv + self.sizes.steps + 8, shared)
        pages = int(max(t.max() for t in table)) + 1
        executor = self.scene.make_executor(
            self.model, self.device, pages=pages, slots=rows, kv_dtype=kv_dtype
        )
        host, before = [], None
        begin = time.perf_counter()
        for number in range(self.sizes.steps + self.sizes.warmup):
            if number == self.sizes.warmup:  # graphs are captured, kernels compiled
                self.finish()
                begin = time.perf_counter()
            plan = self.scene.step_plan(
                number, table, kv + number, 1, groups=groups, top_p=self.sizes.top_p
            )
            at = time.perf_counter()
            step = executor.launch(plan)
            spent = time.perf_counter() - at
            if before is not None:
                before.result()
            at = time.perf_counter()
            step.sample()
            host.append(spent + time.perf_counter() - at)
            before = step
        self.finish()
        whole = (time.perf_counter() - begin) / self.sizes.steps
        median = statistics.median(host[self.sizes.warmup :])
        return {"step": whole, "host": median, "graphs": float(len(executor.graphs))}

    def decode(self) -> Numbers:
        """Decode steps of several batches: milliseconds, over their floor, and of the host."""
        from benchmarks import roofline

        found = {}
        shape = roofline_model(self.sizes.large)
        for rows in self.sizes.decode:
            took = self._steps(rows, self.sizes.kv)
            attention = roofline.attend_decode(shape, rows, self.sizes.kv)
            floor = self.floor(roofline.step(shape, rows, rows, attention))
            found |= {
                f"rows_{rows}_ms": took["step"] * 1e3,
                f"rows_{rows}_host_ms": took["host"] * 1e3,
            }
            found[f"rows_{rows}_over_floor"] = took["step"] / floor
        weights = shape.weight_bytes / self.rates["bandwidth"]
        first = self.sizes.decode[0]
        found["one_row_over_weights"] = found[f"rows_{first}_ms"] / 1e3 / weights
        return found

    def prefill(self) -> Numbers:
        """One prompt in one step: milliseconds, and over its floor."""
        from benchmarks import roofline

        found = {}
        shape = roofline_model(self.sizes.large)
        for tokens in self.sizes.prefill:
            table = self.scene.tables(1, tokens)
            executor = self.scene.make_executor(
                self.model, self.device, pages=len(table[0]), slots=1, uses_graphs=False
            )
            times = []
            for _ in range(2 if self.is_tiny else 4):
                plan = self.scene.step_plan(0, table, 0, tokens)
                begin = time.perf_counter()
                step = executor.launch(plan)
                step.sample()
                step.result()
                times.append(time.perf_counter() - begin)
            took = statistics.median(times[1:])
            floor = self.floor(
                roofline.step(shape, tokens, 1, roofline.attend_extend(shape, tokens))
            )
            found |= {
                f"tokens_{tokens}_ms": took * 1e3,
                f"tokens_{tokens}_over_floor": took / floor,
            }
        return found

    def shared_prefix(self) -> Numbers:
        """Decode steps of rows on one prefix, which each row reads, or all read at once."""
        sizes = self.sizes
        kv = sizes.shared + sizes.own
        each = self._steps(sizes.shared_rows, kv, sizes.shared, False)
        once = self._steps(sizes.shared_rows, kv, sizes.shared, True)
        return {
            "each_ms": each["step"] * 1e3,
            "once_ms": once["step"] * 1e3,
            "once_host_ms": once["host"] * 1e3,
            "once_graphs": once["graphs"],
            "faster": each["step"] / once["step"],
        }

    def variants(self) -> Numbers:
        """Decode steps of the largest batch: plain, with the pool in fp8, with windows of an eighth
        of the tokens in every layer, and with layers through torch.compile."""
        from radixserve.models.compiled import CompiledParts

        rows, kv, model = self.sizes.decode[-1], self.sizes.kv, self.model
        found = {"plain_ms": self._steps(rows, kv)["step"] * 1e3}
        found["fp8_ms"] = self._steps(rows, kv, kv_dtype=torch.float8_e4m3fn)["step"] * 1e3
        spec, parts = model.spec, model.parts
        try:
            windows = (max(1, kv // 8),) * spec.num_layers
            model.spec = dataclasses.replace(spec, windows=windows)
            found["window_ms"] = self._steps(rows, kv)["step"] * 1e3
        finally:
            model.spec = spec
        try:
            model.parts = CompiledParts("eager" if self.is_tiny else None)
            found["compiled_ms"] = self._steps(rows, kv)["step"] * 1e3
        finally:
            model.parts = parts
        return found

    def no_waiting(self) -> Numbers:
        """Launch and sample under torch's sync debugging, which raises where the host waits."""
        rows, kv = self.sizes.decode[-1], self.sizes.kv
        table = self.scene.tables(rows, kv + 16)
        pages = int(max(t.max() for t in table)) + 1
        executor = self.scene.make_executor(self.model, self.device, pages=pages, slots=rows)
        steps = 0
        for number in range(2 if self.is_tiny else 6):
            strict = number >= 4 and not self.is_tiny
            if strict:
                torch.cuda.set_sync_debug_mode("error")
            try:
                step = executor.launch(self.scene.step_plan(number, table, kv + number, 1))
                step.sample()
                steps += strict
            finally:
                if strict:
                    torch.cuda.set_sync_debug_mode("default")
            step.result()
        return {"steps_without_waiting": steps}

    def host(self) -> Numbers:
        """Milliseconds that the scheduler takes of a decode step beside the executor."""
        from benchmarks import host_step

        rows = self.sizes.decode[-1]
        return {f"rows_{rows}_ms": host_step.measure(rows, 2 if self.is_tiny else 30)["all"] / 1e3}

    def workloads(self) -> Numbers:
        """Requests on one prompt, and such with a mask on every draw (what a grammar costs on the
        device; no grammar is compiled), on the small model with the cache on and off."""
        from benchmarks.gpu_workloads import serve

        self._model = None
        model = self.scene.random_model(self.sizes.small, self.sizes.dtype, self.device.place)
        found = {}
        for masked in (False, True):
            name = "masked" if masked else "shared"
            took = {on: serve(model, self.device, self.sizes, on, masked) for on in (True, False)}
            found |= {f"{name}_cached_s": took[True], f"{name}_uncached_s": took[False]}
            found[f"{name}_faster"] = took[False] / took[True]
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes on the CPU")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="where results go")
    parser.add_argument("--list", action="store_true", help="say what would be measured")
    parser.add_argument("--only", action="append", default=[], metavar="STAGE", help="run this")
    options = parser.parse_args(arguments)
    if options.list:
        print(listing({name: getattr(Check, method) for name, method in STAGES.items()}))
        return 0
    if options.tiny:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    elif not torch.cuda.is_available():
        print("no GPU that torch sees; --tiny runs the same code on the CPU")
        return 1
    file = options.json or RESULTS / f"gpu-{datetime.date.today()}.json"

    def write(report: dict[str, Any]) -> None:
        file.write_text(json.dumps(report, indent=1) + "\n")

    return 0 if run(Check(options.tiny), write, options.only) else 1


if __name__ == "__main__":
    raise SystemExit(main())
