"""What a job of `benchmarks.bench sinkhorn` does: a sweep, host time or small batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import jobs, peer_files, timing
from benchmarks.jobs import Row, said
from benchmarks.memory import clear, most_allocated
from benchmarks.sinkhorn import peers
from helion_sinkhorn.lab.tuning.timing import in_a_row, synchronize

ROOT = Path(__file__).parents[2]
T = 20
PREPARE_SECONDS = {"helion_sinkhorn": 120.0}
PREPARE_SECONDS |= dict.fromkeys((peers.COMPILED, *peers.PEERS), 180.0)
"""Until a job must be ready, side by side with all others of its wave; 60 for what is not named.

torch.compile and Triton unroll T iterations, and peers try configs."""
CHECKED_ENTRIES = 1 << 18
"""Entries of a batch that are computed in float64 beside it."""
CHECKED_SCALE = 3.0
"""Scale of the logits: T iterations from randn converge, and hide a gradient that takes that for granted."""
BOUNDS = {"float32": (1e-5, 1e-4), "bfloat16": (1e-2, 2e-2)}
"""(largest forward error, relative gradient error) from which on a function computes something else."""
TURNS = 3
"""Turns in which single calls are timed, with those of the other jobs between them.  A host that is busy with
something else for a second slows a third of a figure's samples, and its median leaves them out."""
ERROR = ("error", "gradient_error")
KEPT, SCRATCH = "kept for backward, logits included", "scratch inside backward"
COUNTED = 4, 1 << 17, "float32"
"""n, batch and dtype at which memory is counted."""


@dataclass(frozen=True)
class Job(jobs.Job):
    """What one child process does; `functions` and the shape belong to a sweep."""

    section: str
    task: str
    functions: tuple[str, ...] = ()
    n: int = 4
    batches: tuple[int, ...] = ()
    dtype: str = "float32"
    device: str = "cuda"
    milliseconds: float = 20.0
    """Spent on each figure."""

    @property
    def title(self) -> str:
        what = ", ".join(self.functions)
        return f"{self.section}: {what}, n = {self.n}, {self.dtype}" if what else self.section

    @property
    def prepare_seconds(self) -> float:
        return PREPARE_SECONDS.get((self.functions or ("",))[-1], 60.0)

    def left_out(self) -> list[Row]:
        shape = {"n": self.n, "dtype": self.dtype} if self.functions else {}
        return [{"function": function, **shape} for function in self.functions or (self.section,)]

    def rows(self) -> Iterator[Row | None]:
        for row in TASKS[self.task](self):
            yield row and {"section": self.section, "iterations": T, **row}


def make_inputs(job: Job, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits, upstream gradient), both randn."""
    generator = torch.Generator(job.device).manual_seed(batch)
    make = partial(torch.randn, batch, job.n, job.n, device=job.device, generator=generator)
    dtype = getattr(torch, job.dtype)
    return make().to(dtype), make().to(dtype)


def errors(function: peers.Function, x: torch.Tensor, dy: torch.Tensor) -> dict[str, float]:
    """Largest error of P and relative error of dX against float64, over the first matrices."""
    passes = function.build(x, dy, T)
    from helion_sinkhorn.lab.sinkhorn.budget import exact

    few = slice(0, max(1, CHECKED_ENTRIES // x[0].numel()))
    p, dx = exact(x[few].cpu(), dy[few].cpu(), T, eps=peers.EPS, form=function.form, first=function.first)
    figures = {"error": float((passes["forward"]()[few].double().cpu() - p).abs().max())}
    if "backward" in passes:
        gradient = passes["backward"]()[few].double().cpu()
        figures["gradient_error"] = float((gradient - dx).norm() / dx.norm())
    return figures


@dataclass
class Series:
    """A function of a sweep: the columns that all its rows have, and the passes that are timed."""

    name: str
    row: Row
    offered: list[str] = field(default_factory=list)

    def pass_of(self, which: str, x: torch.Tensor, dy: torch.Tensor) -> timing.Run:
        return peers.load(self.name).build(x, dy, T)[which]

    def timed(self, which: str, timer: str, x: torch.Tensor, times: timing.Times | str, now: Row) -> Row:
        if isinstance(times, str):
            note = f"{which}, {timer}, batch {x.size(0)}: {times}"
            return {**self.row, "section": "left out", "note": note}
        at = {"batch": x.size(0), "pass": which, "timer": timer, "config": config(self.name, which, x)}
        return {**self.row, **at, **timing.named(times), **now}


def ready(job: Job, name: str, first: list[Row]) -> Series:
    """A function that was checked, and run once at every batch.

    Args:
        first: takes the rows of what is refused, and of the memory of one batch.
    """
    function = peers.load(name)
    version = peer_files.version(function.package, function.file)
    row: Row = {"function": name, "n": job.n, "dtype": job.dtype, "package_version": version}
    series = Series(name, row)
    refused = set()
    for batch in job.batches:
        x, dy = make_inputs(job, batch)
        if function.form and "error" not in row:
            row.update(errors(function, CHECKED_SCALE * x, dy))
            for which, key, bound in zip(peers.TIMED, ERROR, BOUNDS[job.dtype], strict=False):
                if not row.get(key, 0.0) <= bound:
                    note = f"{which} differs from its definition in float64 by {row[key]:.1e}: not timed"
                    first.append({**row, "section": "left out", "note": note})
                    refused |= {which, "both"}
        passes = function.build(x, dy, T)
        for run in passes.values():
            run()
        synchronize(x.device)
        series.offered = [w for w in peers.TIMED if w in passes and w not in refused]
        if (job.n, batch, job.dtype) == COUNTED:
            for quantity, size in memory(passes, x).items():
                at = {"section": "memory", "batch": batch, "quantity": quantity, "bytes": size}
                first.append({**row, **at})
        del passes
    clear()
    return series


def sweep(job: Job) -> Iterator[Row | None]:
    """Every pass of every function at every batch, single calls and in a CUDA graph."""
    device = torch.device(job.device)
    first: list[Row] = []
    every = [ready(job, name, first) for name in job.functions]
    yield None
    yield from first

    def cases() -> Iterator[tuple[torch.Tensor, list[tuple[Series, str, Callable[[], timing.Run]]]]]:
        """Logits of every batch, and what is timed on them: function, pass, and what makes its call."""
        for batch in job.batches:
            x, dy = make_inputs(job, batch)
            yield x, [(s, which, partial(s.pass_of, which, x, dy)) for s in every for which in s.offered]
            clear()

    def one_turn(make: Callable[[], timing.Run]) -> list[float]:
        return timing.single_calls(make(), device, job.milliseconds / TURNS)

    turns: dict[tuple[str, int, str], list[list[float] | str]] = {}
    for turn in range(1, TURNS + 1):
        for x, timed in cases():
            for series, which, make in timed:
                samples = turns.setdefault((series.name, x.size(0), which), [])
                samples.append(tried(one_turn, make))
            if turn == TURNS:
                # the clocks after the work: an idle GPU lowers them
                now = timing.conditions(device)
                for series, which, _ in timed:
                    times = together(turns[series.name, x.size(0), which])
                    yield series.timed(which, "eager", x, times, now)
        if turn < TURNS:
            yield None
    if not timing.captures(device):
        return
    for x, timed in cases():
        graphs = [(s, which, tried(timing.graph, make, job.milliseconds)) for s, which, make in timed]
        now = timing.conditions(device)
        yield from (s.timed(which, "graph", x, times, now) for s, which, times in graphs)


def tried(measure: Callable[..., Any], *arguments: Any) -> Any:
    """What a measurement gives, or what it failed with, in words."""
    try:
        return measure(*arguments)
    except Exception as error:
        return said(error)


def together(turns: list[list[float] | str]) -> timing.Times | str:
    """The times of all samples, or what one of the turns failed with."""
    failed = [turn for turn in turns if isinstance(turn, str)]
    return failed[-1] if failed else timing.summary([us for turn in turns for us in turn])


def config(name: str, which: str, x: torch.Tensor) -> str:
    """The config of this call of ours, with its file in the repository; empty for others and for both."""
    if not name.startswith(peers.OURS) or which == "both":
        return ""
    from helion_sinkhorn import plan

    chosen = getattr(plan(x, T, form=peers.FUNCTIONS[name].form), which)
    return chosen.replace(f"{ROOT}/", "")


def host(job: Job) -> Iterator[Row | None]:
    """Host time of a call by its layers, 128 matrices of 4 x 4, beside x * 2."""
    from helion_sinkhorn import sinkhorn

    device = torch.device(job.device)
    x = torch.randn(128, 4, 4, device=device)
    leaf, dy = x.clone().requires_grad_(), torch.randn_like(x)
    arguments = (T, peers.EPS, "deepseek", "rows")
    implementation = "helion" if device.type == "cuda" else "pytorch"
    y = sinkhorn(leaf, T)
    ops = torch.ops.helion_sinkhorn
    layers: dict[str, timing.Run] = {
        "x * 2": lambda: x * 2,
        "torch.empty_like(x)": lambda: torch.empty_like(x),
        "sinkhorn, no gradient": lambda: sinkhorn(x, T),
        "torch.ops, forward": lambda: ops.sinkhorn(x, *arguments, implementation, x.dtype),
    }
    if device.type == "cuda":
        from helion_sinkhorn.ops.sinkhorn import launch

        layers["kernels.launch.forward"] = lambda: launch.forward(x, *arguments, x.dtype)
    layers["x * 2, with gradient"] = lambda: leaf * 2
    layers["sinkhorn, with gradient"] = lambda: sinkhorn(leaf, T)
    layers["torch.ops, backward"] = lambda: ops.sinkhorn_backward(dy, x, *arguments, implementation)
    layers["backward through autograd"] = lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True)
    z = leaf * 2
    layers["backward of x * 2 through autograd"] = lambda: torch.autograd.grad(z, leaf, dy, retain_graph=True)
    for run in layers.values():
        run()
    yield None
    calls = max(1, int(job.milliseconds * 10))
    timed = {layer: timing.summary(in_a_row(run, device, calls, rounds=9)) for layer, run in layers.items()}
    now = timing.conditions(device)
    for layer, times in timed.items():
        yield {"function": layer, "batch": 128, "n": 4, "timer": "host", **now, **timing.named(times)}


def memory(passes: peers.Passes, x: torch.Tensor) -> dict[str, float]:
    """Bytes a matrix of KEPT and SCRATCH, by the count of CUDA's allocator; nothing without a backward."""
    if x.device.type != "cuda" or "kept" not in passes:
        return {}
    clear()
    before = torch.cuda.memory_allocated()
    states = passes["kept"]()
    kept = torch.cuda.memory_allocated() - before
    del states
    most, gradient = most_allocated(passes["backward"])
    scratch = most - gradient.untyped_storage().nbytes()
    return {KEPT: kept / x.size(0), SCRATCH: scratch / x.size(0)}


class Eager(torch.nn.Module):
    """What triton-sinkhorn's own table compares with: P = exp(X), then T times rows and columns with eps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = x.float().exp()
        for _ in range(T):
            p = p / (p.sum(2, keepdim=True) + peers.EPS)
            p = p / (p.sum(1, keepdim=True) + peers.EPS)
        return p


def lanes(job: Job) -> Iterator[Row | None]:
    """Time and peak memory of forward plus backward of nn.FusedMHC and of eager PyTorch, small batches."""
    from helion_sinkhorn.ops.sinkhorn.nn import FusedMHC

    device = torch.device(job.device)
    layers = {"eager": Eager(), "helion_sinkhorn.nn.FusedMHC": FusedMHC(T)}
    shapes = [(batch, n) for batch in job.batches for n in (4, 8)]

    def step(layer: torch.nn.Module, x: torch.Tensor) -> None:
        layer(x).sum().backward()
        x.grad = None

    inputs = {shape: torch.randn(shape[0], shape[1], shape[1], device=device) for shape in shapes}
    for layer in layers.values():
        for x in inputs.values():
            for _ in range(10):
                step(layer, x.requires_grad_())
    clear()
    yield None
    now = timing.conditions(device)
    for (batch, n), x in inputs.items():
        for name, layer in layers.items():
            steps = max(1, int(job.milliseconds * 2))
            row = {"function": name, "batch": batch, "n": n, "dtype": "float32", "timer": "loop", **now}
            if device.type == "cuda":
                row["bytes"], _ = most_allocated(partial(step, layer, x))
            samples = in_a_row(partial(step, layer, x), device, steps, rounds=5, wait=True)
            yield {**row, **timing.named(timing.summary(samples))}


TASKS = {"sweep": sweep, "host": host, "lanes": lanes}
