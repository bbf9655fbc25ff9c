"""Jobs of `benchmarks.bench linear_attention`: the operator beside flash-linear-attention and torch.compile.

us are calls one by one with cold caches, us_graph a call in a CUDA graph; forward, and backward alone.
Errors are the largest of o, dq, dk, dv and dgk of the first sequence against float64, relative to the largest
entry.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch

from benchmarks import jobs, memory, timing
from benchmarks.jobs import Row
from helion_sinkhorn import recurrent_linear_attention, reference
from helion_sinkhorn.lab.tuning.timing import Run, with_cold_cache

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""q, k, v, gk -> o."""
FILE, WORKERS = "linear_attention.csv", os.cpu_count() or 1
FIRST_COLUMNS = "section", "function", "shape", "pass", "us", "us_graph", "errors", "copy_gbps", "note"
COMPILED = "torch.compile of the loop"
NAMES = "recurrent", "chunked", "fla fused_recurrent_gla", "fla chunk_gla", COMPILED
SIZES = 64, 128
"""Dk and Dv."""
SHAPE = 8, 2048, 16
"""B, T, H."""
GRAPH_MILLISECONDS = 5.0
COMPILED_STEPS = 64
"""Longest T of which torch.compile is asked: Inductor writes every step out."""
PASSES = "forward", "backward"


@dataclass(frozen=True)
class Job(jobs.Job):
    """Both passes of a function at one shape."""

    function: str
    shape: tuple[int, int, int]
    dtype: str = "bfloat16"
    site: str = ""
    device: str = "cuda"

    @property
    def title(self) -> str:
        return f"linear attention: {self.function}, {self.size}"

    @property
    def size(self) -> str:
        return " x ".join(map(str, self.shape))

    def left_out(self) -> list[Row]:
        return [{"function": self.function, "shape": self.size, "pass": which} for which in PASSES]

    def rows(self) -> Iterator[Row | None]:
        if self.site:
            sys.path.insert(0, self.site)
        device = torch.device(self.device)
        attend = loaded(self.function)
        tensors = inputs(self.shape, getattr(torch, self.dtype), device)
        said = " ".join(f"{e:.1e}" for e in errors(attend, truth(*tensors), *tensors))
        memory.clear()
        yield None
        o, copied = torch.empty_like(tensors[2]), tensors[2]
        gigabytes = (o.nbytes + copied.nbytes) / microseconds(partial(o.copy_, copied), device) / 1e3
        for at, make in zip(self.left_out(), (forward, backward), strict=True):
            run = make(attend, *tensors)
            row = {**at, "us": microseconds(run, device)}
            if timing.captures(device):
                row["us_graph"] = timing.graph(partial(make, attend, *tensors), GRAPH_MILLISECONDS)[0]
            yield {**row, "errors": said, "copy_gbps": round(gigabytes), **timing.conditions(device)}


def inputs(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, ...]:
    """q, k, v, gk, do; decays of a trained layer, most of them 0.8 to 1 a step."""
    generator = torch.Generator(device).manual_seed(0)
    dk, dv = SIZES
    q, k, v, gk, do = (
        torch.randn((*shape, size), device=device, generator=generator) for size in (dk, dk, dv, dk, dv)
    )
    return tuple(x.to(dtype) for x in (q, k, v, torch.nn.functional.logsigmoid(gk) / 8, do))


@cache
def loaded(name: str) -> Attend:
    """One of NAMES."""
    if name.startswith("fla "):
        from fla.ops import gla

        function = getattr(gla, name.removeprefix("fla "))
        return lambda q, k, v, gk: function(q, k, v, gk)[0]
    if name == COMPILED:
        return torch.compile(in_float32, dynamic=False)
    return lambda q, k, v, gk: recurrent_linear_attention(
        q, k, v, gk=gk, method=name, implementation="helion" if q.is_cuda else "auto"
    )


def in_float32(q, k, v, gk) -> torch.Tensor:
    """The specification."""
    wide = {"q": q, "k": k, "v": v, "gk": gk}
    return reference.recurrent_linear_attention(**{n: x.float() for n, x in wide.items()}).to(v.dtype)


def gradients(o: torch.Tensor, leaves: Sequence[torch.Tensor], do: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(o, tuple(leaves), do, retain_graph=True)


def errors(attend: Attend, exact: Sequence[torch.Tensor], *tensors: torch.Tensor) -> list[float]:
    """The largest errors of o, dq, dk, dv, dgk of the first sequence, relative to the largest entry."""
    leaves = [x.detach().requires_grad_() for x in tensors[:4]]
    o = attend(*leaves)
    results = o, *gradients(o, leaves, tensors[4])
    return [
        ((a[:1].double() - e).abs().max() / e.abs().max()).item() for a, e in zip(results, exact, strict=True)
    ]


def truth(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The specification in float64 on the first sequence."""
    *leaves, do = (x[:1].double().requires_grad_() for x in tensors)
    o = reference.recurrent_linear_attention(*leaves[:3], gk=leaves[3])
    return o.detach(), *torch.autograd.grad(o, leaves, do)


def forward(attend: Attend, *tensors: torch.Tensor) -> Run:
    def run() -> torch.Tensor:
        with torch.no_grad():
            return attend(*tensors[:4])

    return run


def backward(attend: Attend, *tensors: torch.Tensor) -> Run:
    leaves = [x.detach().requires_grad_() for x in tensors[:4]]
    o = attend(*leaves)
    return lambda: gradients(o, leaves, tensors[4])


def microseconds(run: Run, device: torch.device, rounds: int = 5) -> float:
    """Calls one by one, each with cold caches on a GPU: the least of a few medians."""
    if device.type == "cpu":
        return timing.eager(run, device, 0.1)[0]
    sample = with_cold_cache(run)
    return min(sample() for _ in range(rounds))


def waves(options: argparse.Namespace) -> list[list[Job]]:
    return [
        [
            Job(name, tuple(shape), options.dtype, options.site, options.device)
            for name in options.only or NAMES
            if name != COMPILED or shape[1] <= COMPILED_STEPS
        ]
        for shape in options.shape or [SHAPE]
    ]
