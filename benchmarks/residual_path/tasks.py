"""Jobs of `benchmarks.bench residual_path`: the residual path of mHC beside other packages.

Four streams in bfloat16, 20 iterations.  `coefficients` are pre, post and comb of mixes, for the tokens
given and for 2^20; `hc_pre`, `hc_post` and `hc_mixes` are the parts around them; `site` is all of it around
a sublayer whose output is given, and its backward has the sums of the gradients of the streams; `boundary` is
that of DeepSeek-V4.1, from one sublayer's output to the next one's input.  "its parts" are this package's
operators one by one, with autograd's sums, and PyTorch's RMSNorm where `normed_` is before the name.

us are single calls that the host has queued ahead, graph_us a call in a CUDA graph; calls go round inputs of
a gigabyte together unless one call's fit into the cache.  Errors are root mean square, relative to that of
the result, of the worst result or gradient against float64 of the peer's own formula, over 256 tokens.  The
peak is what backward allocates at most, relative to its gradients.  Kernels are those that the profiler
counts, of a site and a boundary.  Bytes are those of each tensor moved once; for a site and a boundary they
are counted in docs/mhc.md.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch._functorch import config as functorch

from benchmarks import jobs, memory, peer_files, timing
from benchmarks.jobs import Row, choose_again, said
from benchmarks.residual_path import peers
from benchmarks.residual_path.operations import OPERATIONS, Tensors, drawn

FILE, NAMES = "residual_path.csv", (peers.FLOOR, *peers.PEERS)
WORKERS = max(2, 3 * (os.cpu_count() or 1))
FIRST_COLUMNS = (
    "section", "operation", "function", "tokens", "columns", "pass", "us", "us_20", "us_80", "graph_us",
    "kernels", "bytes", "error", "peak", "note", "uncaptured", "package_version",
)  # fmt: skip
SPLIT = (peers.COMPILED, "TransformerEngine", "Megatron-LM")
"""Functions that compile or try so much that every size is a process of its own."""
SPLIT_OPERATIONS = {(peers.OURS, of) for of in ("boundary", "normed_boundary", "normed_seam")}
"""So are these operations of a function: their sizes compile for minutes in one process."""
SLOWEST = (peers.COMPILED, "Liger")
"""Functions that take longest to get ready."""
ROTATED_BYTES = 1 << 30
"""Inputs together, twenty times an H200's cache, where one call's do not fit into it."""
CACHE_BYTES = 50 << 20
JUDGED = 256
"""Tokens that are computed in float64 too; the upstream gradients of all others are zero then."""
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Job(jobs.Job):
    """What one child does."""

    prepare_seconds = 220.0
    """On 16 cores, beside all others of a wave, some jobs were not ready after 150."""
    function: str
    operation: str
    shapes: tuple[tuple[int, int], ...]
    """(tokens, C)."""
    device: str = "cuda"

    @property
    def title(self) -> str:
        return f"{self.operation}: {self.function}, {', '.join(f'{t} x {c}' for t, c in self.shapes)}"

    def left_out(self) -> list[Row]:
        named = {"function": self.function, "operation": self.operation}
        return [{**named, "tokens": tokens, "columns": hidden} for tokens, hidden in self.shapes]

    def rows(self) -> Iterator[Row | None]:
        return floors(self) if self.function == peers.FLOOR else measured(self)

    def row(self, tokens: int, hidden: int, which: str) -> Row:
        """Where a figure is of."""
        at = {"operation": self.operation, "function": self.function}
        return {**at, "tokens": tokens, "columns": hidden, "pass": which}


class Case:
    """A peer's call of given size."""

    def __init__(self, job: Job, tokens: int, hidden: int):
        self.adapter = peers.PEERS[job.function].adapters[job.operation]
        self.job, self.operation = job, OPERATIONS[job.operation]
        self.tokens, self.hidden = tokens, hidden

    @functools.cached_property
    def call(self):
        return peers.PEERS[self.job.function].load(self.job.operation)

    def given(self, seed: int = 0) -> Tensors:
        ours = drawn(self.job.operation, self.tokens, self.hidden, self.job.device, seed)
        given = tuple(t.detach() for t in self.adapter.given(*ours))
        # some peers take one sequence of tokens, with a leading 1
        self.lead = (1, self.tokens) if given[0].shape[:2] == (1, self.tokens) else (self.tokens,)
        return given

    def few(self, tensors: Tensors) -> Tensors:
        """The first tokens of those that have tokens, all of the others."""
        last = len(self.lead) - 1
        return tuple(
            t.narrow(last, 0, min(JUDGED, self.tokens)) if t.shape[: last + 1] == self.lead else t
            for t in tensors
        )

    def upstream(self, results: Tensors) -> Tensors:
        generator = torch.Generator(self.job.device).manual_seed(1)
        return tuple(
            torch.randn(t.shape, generator=generator, device=t.device, dtype=t.dtype) for t in results
        )

    def forward(self, given: Tensors) -> timing.Run:
        def run():
            with torch.no_grad():
                return self.call(*given)

        return run

    def backward(self, given: Tensors) -> timing.Run:
        leaves = tuple(t.detach().requires_grad_() for t in given)
        results = self.call(*leaves)
        upstream = self.upstream(results)
        return lambda: torch.autograd.grad(results, leaves, upstream, retain_graph=True)

    @property
    def passes(self) -> tuple[str, ...]:
        return PASSES if self.adapter.gradient else PASSES[:1]


def distance(tensors: Tensors, exact: Tensors) -> float:
    """The largest root mean square error of a tensor, relative to its own root mean square."""
    pairs = zip(tensors, exact, strict=True)
    each = [(a.double() - b).norm() / b.norm() for a, b in pairs if b.norm() > 0]
    # of tensors: max() of floats passes over NaN
    return torch.stack(each).max().item()


def errors(case: Case) -> dict[str, Row]:
    """Errors of values and gradients, each against float64 of the formula; the peak of the backward."""
    given = case.given()
    exact_leaves = tuple(t.double().requires_grad_() for t in case.few(given))
    exact = peers.definition_of(case.job.function, case.job.operation)(*exact_leaves)
    by_pass: dict[str, Row] = {
        "forward": {"error": distance(case.few(case.forward(given)()), tuple(t.detach() for t in exact))}
    }
    if not case.adapter.gradient:
        return by_pass
    leaves = tuple(t.detach().requires_grad_() for t in given)
    results = case.call(*leaves)
    upstream = tuple(torch.zeros_like(t) for t in results)
    for part, drawn_part in zip(case.few(upstream), case.upstream(case.few(results)), strict=True):
        part.copy_(drawn_part)
    wanted = torch.autograd.grad(exact, exact_leaves, tuple(t.double() for t in case.few(upstream)))
    gradients = torch.autograd.grad(results, leaves, upstream)
    by_pass["backward"] = {"error": distance(case.few(gradients), wanted)}
    del gradients, exact, wanted, results
    if case.job.device == "cuda":
        results = case.call(*leaves)
        most, _ = memory.most_allocated(lambda: torch.autograd.grad(results, leaves, upstream))
        by_pass["backward"]["peak"] = most / sum(t.nbytes for t in leaves)
    return by_pass


def copies(moved: int, count: int, device: str) -> timing.Run:
    """Copies that read and write so many bytes together."""
    sources = [torch.empty(moved // 2, dtype=torch.uint8, device=device) for _ in range(count)]
    return timing.in_turn([functools.partial(torch.empty_like(s).copy_, s) for s in sources])


def bytes_of(job: Job, tokens: int, hidden: int) -> tuple[dict[str, int], int]:
    """Bytes of each pass, for our inputs and results whoever computes; and how many inputs calls go round."""
    operation = OPERATIONS[job.operation]
    given = drawn(job.operation, tokens, hidden, job.device)
    # results have the dtype of the streams, except coefficients and mixes
    results = peers.load_eager(job.operation)(*given)
    size = sum(t.nbytes for t in given)
    count = 1 if job.device == "cpu" or size < CACHE_BYTES else max(1, ROTATED_BYTES // size)
    return {which: operation.bytes_of(which, given, results) for which in PASSES}, count


def times(make: Callable[[], timing.Run], device: torch.device) -> Row:
    """Single calls that the host has queued, and a call in a CUDA graph where it can be captured."""
    if not timing.captures(device):
        run = make()
        run()
        return timing.named(timing.eager(run, device, 0.1))
    row: Row = timing.named(timing.queued(make()))
    memory.clear()
    try:
        row["graph_us"] = timing.graph(make, timing.GRAPH_MILLISECONDS)[0]
    except Exception as error:
        row["uncaptured"] = said(error)
    return row


def measured(job: Job) -> Iterator[Row | None]:
    """Rows of a peer: every shape and pass."""
    # the backward pass alone is run again and again on one forward pass, of compiled parts of peers too
    functorch.donated_buffer = False
    device, now = torch.device(job.device), None
    prepared = []
    for shape in job.shapes:
        case = Case(job, *shape)
        case.call  # noqa: B018, imports the peer
        choose_again()
        prepared.append((shape, case, *bytes_of(job, *shape), errors(case)))
        memory.clear()
    yield None
    peer = peers.PEERS[job.function]
    installed, timed = peer_files.version(peer.package, peer.file), []
    for shape, case, moved, count, checked in prepared:
        given = [case.given(seed) for seed in range(count)]
        for which in case.passes:
            calls = getattr(case, which)
            row = times(lambda calls=calls, given=given: timing.in_turn([calls(g) for g in given]), device)
            memory.clear()
            # once, after work: an idle GPU lowers its clocks
            now = now or timing.conditions(device)
            row = {
                **job.row(*shape, which), **row, **checked[which], "bytes": moved[which],
                "note": case.adapter.note, "package_version": installed, **now,
            }  # fmt: skip
            timed.append((case, calls, row))
    # last, because of the profiler
    for case, calls, row in timed:
        if device.type == "cuda" and case.operation.rows[0]:
            run = calls(case.given())
            run()
            row["kernels"] = len(timing.launches(run))
        yield row


def floors(job: Job) -> Iterator[Row | None]:
    """Copies of the counted bytes."""
    device = torch.device(job.device)
    yield None
    now = timing.conditions(device)
    for shape in job.shapes:
        moved, count = bytes_of(job, *shape)
        memory.clear()
        for which in PASSES:
            row = times(functools.partial(copies, moved[which], count, job.device), device)
            yield {**job.row(*shape, which), **row, "bytes": moved[which], **now}


def absent(options: argparse.Namespace) -> list[Row]:
    return [
        {"function": name, "operation": operation, "note": why}
        for name in options.only or peers.PEERS
        if name in peers.PEERS
        for operation, why in peers.PEERS[name].lacks.items()
        if operation in (options.operations or [operation])
    ]


def shapes_of(name: str, operation: str, options: argparse.Namespace) -> list[tuple[int, int]]:
    """(tokens, C) of a function; the coefficients of a token do not depend on C."""
    if operation == "coefficients":
        return [(options.tokens, 0), (options.many, 0)]
    return [(options.tokens, hidden) for hidden in options.columns]


def waves(options: argparse.Namespace) -> list[list[Job]]:
    """Jobs that get ready together, in the order in which they are measured.

    What gets ready longest comes first.  A site of Triton kernels comes later: its parts were compiled by
    then.
    """
    slow, other = [], []
    for name in options.only or NAMES:
        for of in OPERATIONS if name == peers.FLOOR else peers.PEERS[name].adapters:
            if of not in (options.operations or OPERATIONS):
                continue
            shapes = shapes_of(name, of, options)
            split = name in SPLIT or (name, of) in SPLIT_OPERATIONS
            first = name in SLOWEST or (split and "site" not in of)
            for part in [(shape,) for shape in shapes] if split else [tuple(shapes)]:
                (slow if first else other).append(Job(name, of, part, options.device))
    return [wave for wave in (slow, other) if wave]
