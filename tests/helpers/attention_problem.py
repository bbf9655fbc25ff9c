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
    batch,
    steps,
    heads,
    dk,
    dv,
    gates="gk",
    strength=1.0,
    states=True,
    dtype=torch.float32,
    seed=0,
    reverse=False,
    lengths=(),
    scale=SCALE,
    drawn_gate: Callable[[tuple[int, ...], torch.Generator], torch.Tensor] = as_of_a_sigmoid,
) -> Case:
    """A case with gates `strength` times what is drawn, of sequences of these lengths if there are any."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(shape, generator=generator)

    keys, values = (batch, steps, heads, dk), (batch, steps, heads, dv)
    inputs = {"q": drawn(*keys), "k": drawn(*keys), "v": drawn(*values)}
    shapes = {"g": keys[:3], "g_gamma": keys[2:3], "gk": keys, "gv": values}
    for name in gates.split():
        inputs[name] = strength * drawn_gate(shapes[name], generator)
    inputs = {name: x.to(dtype) for name, x in inputs.items()}
    do, dend = drawn(*values).to(dtype), None
    if states:
        inputs["initial_state"], dend = (drawn(len(lengths) or batch, heads, dk, dv) for _ in range(2))
    if lengths:
        inputs["cu_seqlens"] = torch.tensor((0, *lengths)).cumsum(0).int()
    return Case(inputs, do, dend, scale, reverse)
