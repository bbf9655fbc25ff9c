"""Jobs of `benchmarks.bench dot_compress`: beside eager PyTorch, Inductor and a copy of the same bytes.

Forward, and backward alone, at the reported shape x (B, 3219, 256), y (B, 3219, 64) in bfloat16.  us are
medians of single calls for which the device waits, us_queued of calls that the host has queued, and us_graph
of one replay of a CUDA graph; the tensors of the largest batch are 50 times the last-level cache.  The floor
is a copy of the bytes that moving each tensor once makes, the faster of the two.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch._functorch import config as functorch

from benchmarks import jobs, memory, timing
from benchmarks.jobs import Row
from helion_sinkhorn import dot_compress, reference
from helion_sinkhorn.lab.tuning.timing import Run, captured
from helion_sinkhorn.lab.workloads import WORKLOADS

FILE, WORKERS = "dot_compress.csv", 3
"""How many jobs get ready at once: more of the largest batch could need more memory than a GPU has."""
FIRST_COLUMNS = "section", "function", "batch", "pass", "us", "us_queued", "us_graph", "note"
SHAPE = WORKLOADS["dot_dcpp_b1152"]
REPEATS = 15
FLOOR, MAX_AUTOTUNE = "copy", "Inductor, max-autotune"
FUNCTIONS: dict[str, Callable[[], Callable]] = {
    "eager": lambda: reference.dot_compress,
    "Inductor": lambda: torch.compile(reference.dot_compress, dynamic=False),
    "dot_compress": lambda: dot_compress,
    "dot_compress, precise": lambda: partial(dot_compress, precise_intermediate=True),
    MAX_AUTOTUNE: lambda: torch.compile(
        reference.dot_compress, dynamic=False, mode="max-autotune-no-cudagraphs"
    ),
}
NAMES = (FLOOR, *FUNCTIONS)
ENTRIES = {"forward": SHAPE.d + 2 * SHAPE.k, "backward": 2 * SHAPE.d + 3 * SHAPE.k}
"""Numbers of a row of x and y that each pass moves."""


@dataclass(frozen=True)
class Job(jobs.Job):
    """Both passes of a function at one batch."""

    function: str
    batch: int
    device: str = "cuda"

    @property
    def title(self) -> str:
        return f"dot_compress: {self.function}, B = {self.batch}"

    def left_out(self) -> list[Row]:
        return [{"function": self.function, "batch": self.batch, "pass": which} for which in ENTRIES]

    def rows(self) -> Iterator[Row | None]:
        # the backward pass alone is run again and again on one forward pass
        functorch.donated_buffer = False
        device = torch.device(self.device)
        makes = {which: partial(copy if self.function == FLOOR else call, self, which) for which in ENTRIES}
        for make in makes.values():
            make()()
            memory.clear()
        yield None
        for at, make in zip(self.left_out(), makes.values(), strict=True):
            row = times(make, device)
            if self.function == FLOOR:
                # on an H200 a copy of 2.6 GB in a graph is another operation, half as slow again
                row = dict.fromkeys(row, min(row["us"], row.get("us_graph", row["us"])))
            yield {**at, **row, **timing.conditions(device)}
            memory.clear()


def copy(job: Job, which: str) -> Run:
    """As many bytes read and written together."""
    source = torch.empty(job.batch * SHAPE.m * ENTRIES[which], dtype=torch.uint8, device=job.device)
    return partial(torch.empty_like(source).copy_, source)


@cache
def loaded(name: str) -> Callable:
    return FUNCTIONS[name]()


def call(job: Job, which: str) -> Run:
    """A pass of a function on standard normal inputs."""
    generator = torch.Generator(job.device).manual_seed(0)
    x, y, grad = (
        torch.randn(job.batch, SHAPE.m, n, dtype=torch.bfloat16, device=job.device, generator=generator)
        for n in (SHAPE.d, SHAPE.k, SHAPE.k)
    )
    function = loaded(job.function)
    if which == "forward":
        return partial(function, x, y)
    leaves = [t.requires_grad_() for t in (x, y)]
    out = function(*leaves)
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


def times(make: Callable[[], Run], device: torch.device) -> dict[str, float]:
    """Single calls, queued calls, and one replay of a graph of one call: `timing.graph` has many in one."""
    if not timing.captures(device):
        return {"us": timing.eager(make(), device, 0.1)[0]}

    def waited_for(run: Run) -> float:
        for _ in range(5):
            run()
        return timing.waited_for(run, device, REPEATS)

    run = make()
    us = {"us": waited_for(run), "us_queued": timing.queued(run)[0]}
    del run
    run, stream = timing.ready(make)
    return {**us, "us_graph": waited_for(captured(run, stream=stream))}


def waves(options: argparse.Namespace) -> list[list[Job]]:
    names = options.only or [name for name in NAMES if name != MAX_AUTOTUNE or options.max_autotune]
    return [[Job(name, batch, options.device) for name in names] for batch in options.batches]
