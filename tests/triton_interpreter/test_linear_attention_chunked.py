"""The Triton code of chunked linear attention, with its masks and both branches, against float64."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked

SCALE = 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("steps", "dk", "dv", "strength", "reverse"),
    [(70, 20, 19, 0.01, False), (70, 20, 19, 30.0, True), (1, 1, 1, 0.01, True)],
    ids=["one product", "levels", "smallest"],
)
def test_generated_code(steps, dk, dv, strength, reverse, dtype):
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(shape, generator=generator)

    keys, values, states = (1, steps, 2, dk), (1, steps, 2, dv), (1, 2, dk, dv)
    inputs = {"q": drawn(*keys), "k": drawn(*keys), "v": drawn(*values)}
    gates = {"g": -drawn(*keys[:3]).abs(), "g_gamma": -drawn(2).abs(), "gk": -drawn(*keys).abs()}
    inputs |= {name: strength * x for name, x in gates.items()}
    inputs = {name: x.to(dtype) for name, x in inputs.items()} | {"initial_state": drawn(*states)}
    do, dend = drawn(*values).to(dtype), drawn(*states)
    case = Case(inputs, do, dend, SCALE, reverse)
    ratios = case.judge(case.run_module(chunked), "chunked")
    assert max(ratios.values()) <= 1, ratios
