"""Small calls of every kernel body in Helion's reference mode, each with its truth."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ci.gate import gate, runs
from ci.operators import operator_of
from ci.operators.hc_mixes import truths as mixes_gate
from ci.operators.hc_post import truths as post_gate
from ci.operators.hc_pre import truths as pre_gate
from ci.operators.hc_split_sinkhorn import truths as split_gate
from ci.operators.implicit import truths as implicit_gate
from ci.operators.linear_attention.truths import by_elements, case_of, copied, title
from ci.operators.sinkhorn import truths as sinkhorn_gate
from helion_sinkhorn.ops.dot_compress import launch as dot_compress_launch
from helion_sinkhorn.ops.dot_compress.workloads import DotWorkload
from helion_sinkhorn.ops.hc_mixes.workloads import MixesWorkload
from helion_sinkhorn.ops.hc_post.workloads import HcPostWorkload
from helion_sinkhorn.ops.hc_pre.workloads import HcPreWorkload
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import HcWorkload
from helion_sinkhorn.ops.linear_attention.chunked import launch as linear_attention_chunked_launch
from helion_sinkhorn.ops.linear_attention.recurrent import launch as linear_attention_launch
from helion_sinkhorn.ops.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.sinkhorn.workloads import SinkhornWorkload

NO_TAG = frozenset()
WIDE = torch.float32


@dataclass(frozen=True)
class Program:
    """A call of kernels on given inputs, with the truth of its results."""

    run: Callable[..., gate.Results]
    inputs: tuple[torch.Tensor, ...]
    truth: dict[str, gate.Truth]

    def findings(self) -> str:
        """What the gate has against it."""
        results, memory = runs.in_guarded_memory(self, self.inputs)
        wrong = [name for name, holds in memory.items() if not holds]
        for name, t in results.items():
            truth = self.truth[name]
            kind = runs.is_of_the_kind(t, len(truth.exact), truth.exact.shape[1:], truth.dtype)
            wrong += [] if kind else ["kind"]
            wrong += truth.judge(t).reasons
        return ", ".join(dict.fromkeys(wrong))


Calls = Callable[..., Iterator[Callable[..., gate.Results]]]
"""(workload, *inputs) -> what computes its results, together or one by one."""


def _sinkhorn(n: int, m: int, batch: int, **options) -> SinkhornWorkload:
    return SinkhornWorkload("mutation", n, m, batch, NO_TAG, "", **options)


SINKHORN = (
    _sinkhorn(4, 4, 5, n_iters=3, logits="randn_3"),
    _sinkhorn(4, 4, 5, n_iters=1, dtype=torch.bfloat16),
    _sinkhorn(3, 5, 9, n_iters=4, first="cols", eps=1e-2),
    _sinkhorn(5, 3, 3, n_iters=2, form="log", first="cols", logits="masked"),
    _sinkhorn(4, 6, 3, n_iters=2, logits="one_up_100"),
    _sinkhorn(3, 4, 5, n_iters=2, form="log", logits="lines_apart"),
    _sinkhorn(4, 4, 3, n_iters=10, form="log", logits="randn_8"),
    _sinkhorn(4, 4, 3, n_iters=30, form="log", logits="randn_8"),
    _sinkhorn(4, 4, 3, n_iters=60, form="log", logits="randn_8"),
    _sinkhorn(8, 8, 5, n_iters=9, eps=1e-3),
)
IMPLICIT = (
    _sinkhorn(4, 4, 5, n_iters=3, logits="randn_8", backward="implicit"),
    _sinkhorn(5, 3, 5, n_iters=2, backward="implicit"),
    _sinkhorn(3, 6, 5, n_iters=4, form="log", backward="implicit"),
    _sinkhorn(4, 4, 5, n_iters=60, form="log", backward="implicit"),
    _sinkhorn(8, 8, 3, n_iters=20, dtype=torch.bfloat16, backward="implicit"),
    _sinkhorn(4, 4, 5, n_iters=20, form="log", logits="identity_like", backward="implicit"),
    _sinkhorn(5, 3, 5, n_iters=20, form="log", logits="identity_like", backward="implicit"),
)
DOT = (
    DotWorkload("mutation", 2, 70, 20, 5, NO_TAG, "", has_z=True, precise=True),
    DotWorkload("mutation", 2, 33, 20, 9, NO_TAG, "", dtype=WIDE, has_z=True),
    DotWorkload("mutation", 2, 40, 300, 64, NO_TAG, "", precise=True),
    DotWorkload("mutation", 2, 40, 300, 64, NO_TAG, ""),
)


def _attention(steps: int, dk: int, dv: int, gates: str, **options) -> AttentionWorkload:
    return AttentionWorkload("mutation", 1, steps, 2, dk, dv, NO_TAG, "", gates=gates, **options)


RECURRENT = (
    _attention(7, 8, 12, "g g_gamma gk gv", dtype=WIDE, states=True, reverse=True, scale=0.6),
    _attention(8, 12, 8, "g_gamma gk", dtype=WIDE, states=True, lengths=(0, 3, 5)),
    _attention(5, 8, 8, "gk", dtype=torch.bfloat16),
    _attention(5, 8, 16, "g g_gamma", dtype=WIDE),
    _attention(66, 8, 8, "g gv", dtype=WIDE, states=True, strength=2.0),
)
CHUNKED = (
    _attention(70, 8, 12, "g g_gamma gk", dtype=WIDE, states=True, reverse=True, scale=0.6),
    _attention(66, 8, 8, "gk", dtype=torch.bfloat16, states=True),
    _attention(70, 12, 8, "g gk", dtype=WIDE, strength=8.0),
    _attention(40, 8, 8, "g", dtype=torch.bfloat16, strength=8.0),
)
SPLIT = (
    HcWorkload("mutation", 2, NO_TAG, "", tokens=3, n_iters=3, spread=3.0),
    HcWorkload("mutation", 2, NO_TAG, "", n=3, tokens=2, n_iters=4, eps=0.0, comb_order="oi", pre_eps=1e-3),
    HcWorkload("mutation", 2, NO_TAG, "", tokens=2, n_iters=20, spread=6.0, post_mult=1.0, post_eps=1e-3),
    HcWorkload("mutation", 2, NO_TAG, "", tokens=2, n_iters=2, splits=11, size=64),
    HcWorkload(
        "mutation", 2, NO_TAG, "", tokens=2, n_iters=2, splits=3, size=64, norm_eps=1e-2, eps_outside=True
    ),
)
PRE = (
    HcPreWorkload("mutation", 2, NO_TAG, "", c=20, tokens=3, dtype=WIDE),
    HcPreWorkload("mutation", 2, NO_TAG, "", n=3, c=9, tokens=2),
)
POST = (
    HcPostWorkload("mutation", 2, NO_TAG, "", c=20, tokens=3, dtype=WIDE, has_bias=True),
    HcPostWorkload("mutation", 2, NO_TAG, "", n=3, c=9, tokens=2),
    HcPostWorkload("mutation", 2, NO_TAG, "", n=9, c=9, tokens=2, dtype=WIDE),
)
MIXES = (
    MixesWorkload("mutation", 2, NO_TAG, "", c=20, tokens=3, dtype=WIDE),
    MixesWorkload("mutation", 2, NO_TAG, "", n=2, c=600, m=8, tokens=3, norm_eps=1e-2),
    MixesWorkload(
        "mutation", 2, NO_TAG, "", c=20, tokens=3, dtype=torch.float16, norm_eps=1e-2, eps_outside=True
    ),
    MixesWorkload("mutation", 2, NO_TAG, "", n=8, c=12, m=80, tokens=3, precision="tf32"),
)


def one_by_one(candidates: Iterable[gate.Candidate]) -> Iterator[Callable[..., gate.Results]]:
    return (lambda *inputs, c=c: {c.of: c.run(*inputs)} for c in candidates)


def of_sinkhorn(w: SinkhornWorkload, *inputs: torch.Tensor):
    """The default of every kernel and, of the gradient's, one that computes each u again."""
    found = sinkhorn_gate.kernels(w, inputs[0])
    yield from one_by_one(found)
    for c in found:
        if c.kernel == "sinkhorn_backward":
            lean = dict(c.config) | {"lean": True, "length": 2}
            yield from one_by_one([chosen(w, c, lean)])


def chosen(w: SinkhornWorkload, c: gate.Candidate, values: dict[str, object]) -> gate.Candidate:
    """The candidate with another config."""
    choice = c.run.keywords["choice"]
    names = [name for name, _ in choice.variant]
    variant = tuple((name, values[name]) for name in names)
    run = functools.partial(c.run.func, choice=dataclasses.replace(choice, variant=variant))
    return dataclasses.replace(c, run=run)


def of_implicit(w: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor):
    for name in implicit_gate.results(w, p):
        system, solvers = implicit_gate.JUDGED[name]
        for solver in solvers:
            yield from one_by_one(implicit_gate.kernels(w, p, name, system, solver, True))


def of_dot_compress(w: DotWorkload, *inputs: torch.Tensor):
    def run(x, y, grad, z=None):
        out, b = dot_compress_launch.forward(x, y, z, w.parts)
        dx, dy, db = dot_compress_launch.backward(grad, x, y, b)
        return {"out": out, "dx": dx, "dy": dy, "dz": db[:, 0]}

    yield run


def of_method(method: str) -> Calls:
    """All results of a method of linear attention from one forward and backward, the element there in copies
    where one of them sums over the batch."""
    module = {"recurrent": linear_attention_launch, "chunked": linear_attention_chunked_launch}[method]

    def calls(w: AttentionWorkload, *inputs: torch.Tensor):
        def run(*element: torch.Tensor) -> gate.Results:
            several = "g_gamma" in w.gates.split()
            called = case_of(w, *(copied(w, element) if several else element)).run_module(module)
            found = {name: t[:1].contiguous() for name, t in by_elements(w, called).items()}
            if several:
                found["dg_gamma"] = called["dg_gamma"][None]
            return {title(method, name): t for name, t in found.items()}

        yield run

    return calls


def each_of(names: Callable[[Any], Iterable[str]], result: Callable[..., torch.Tensor]) -> Calls:
    """Each result of an operator from its default kernels: `result` of a workload, a name and the inputs."""

    def calls(w: Any, *inputs: torch.Tensor):
        for name in names(w):
            yield lambda *given, name=name: {name: result(w, name, *given)}

    return calls


CALLS: dict[str, tuple[tuple, Calls]] = {
    "sinkhorn": (SINKHORN, of_sinkhorn),
    "implicit": (IMPLICIT, of_implicit),
    "dot_compress": (DOT, of_dot_compress),
    "recurrent": (RECURRENT, of_method("recurrent")),
    "chunked": (CHUNKED, of_method("chunked")),
    "hc_split_sinkhorn": (
        SPLIT,
        each_of(
            lambda w: split_gate.budget.RESULTS,
            lambda w, name, *given: split_gate.on_gpu(w, name, None, *given),
        ),
    ),
    "hc_pre": (
        PRE,
        each_of(
            lambda w: pre_gate.budget.RESULTS,
            lambda w, name, *given: pre_gate.on_gpu(name, None, *given),
        ),
    ),
    "hc_post": (
        POST,
        each_of(
            post_gate.results,
            lambda w, name, *given: post_gate.on_gpu(w.comb_order, name, None, *given),
        ),
    ),
    "hc_mixes": (
        MIXES,
        each_of(
            lambda w: mixes_gate.budget.RESULTS,
            lambda w, name, *given: mixes_gate.on_gpu(w, name, {}, *given),
        ),
    ),
}
"""Workloads, and what runs them."""


def made(name: str) -> Iterator[Program]:
    workloads, calls = CALLS[name]
    for w in workloads:
        operator = operator_of(w)
        inputs = tuple(operator.inputs(w, 1 << 20))
        if isinstance(w, AttentionWorkload):
            # its time is that of Python, step by step
            inputs = tuple(t[:1] for t in inputs)
        truth = operator.truths(w, *inputs)
        for run in calls(w, *inputs):
            yield Program(run, inputs, truth)


@functools.cache
def programs(name: str) -> list[Program]:
    """Every call of a kind; the quick ones first."""
    return list(made(name))
