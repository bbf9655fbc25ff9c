"""Calls of linear attention: workload(...) of the lab, and problem(...) with gates of any strength."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload

SCALE = 0.3


def workload(gates="gk", shape=(2, 9, 2, 4, 6), dtype=torch.float32, **options: Any) -> AttentionWorkload:
    """A workload; `shape` is (sequences, steps, heads, Dk, Dv)."""
    return AttentionWorkload("", *shape, frozenset(), "", gates=gates, dtype=dtype, **options)


def as_of_a_sigmoid(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Log decays."""
    return torch.nn.functional.logsigmoid(torch.randn(shape, generator=generator))


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Log decays in [-1, 0]."""
    return -torch.rand(shape, generator=generator)


def problem(
    gates="gk",
    shape=(2, 9, 2, 4, 6),
    dtype=torch.float32,
    seed=0,
    drawn_gate: Callable[[tuple[int, ...], torch.Generator], torch.Tensor] = as_of_a_sigmoid,
    **options: Any,
) -> Case:
    """A case of such a workload, with states if not told otherwise and `strength` times the drawn gates."""
    w = workload(gates, shape, dtype, **{"strength": 1.0, "states": True, "scale": SCALE, **options})
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(shape, generator=generator)

    tokens = w.sequences, w.steps, w.heads
    keys, values = (*tokens, w.dk), (*tokens, w.dv)
    inputs = {"q": drawn(*keys), "k": drawn(*keys), "v": drawn(*values)}
    shapes = {"g": tokens, "g_gamma": tokens[2:], "gk": keys, "gv": values}
    for name in gates.split():
        inputs[name] = w.strength * drawn_gate(shapes[name], generator)
    inputs = {name: x.to(dtype) for name, x in inputs.items()}
    do, dend = drawn(*values).to(dtype), None
    if w.states:
        state = len(w.lengths) or w.sequences, w.heads, w.dk, w.dv
        inputs["initial_state"], dend = drawn(*state), drawn(*state)
    if w.lengths:
        inputs["cu_seqlens"] = torch.tensor((0, *w.lengths)).cumsum(0).int()
    return Case(inputs, do, dend, w.scale, w.reverse)


def assert_within(case: Case, results: dict[str, torch.Tensor], method: str = "recurrent") -> None:
    """All results of a case are there, and within their budgets."""
    ratios = case.judge(results, method)
    assert set(ratios) == set(case.exact)
    assert max(ratios.values()) <= 1, ratios
