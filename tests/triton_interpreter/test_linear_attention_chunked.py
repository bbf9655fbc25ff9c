"""The Triton code of chunked linear attention, with its masks and both branches, against float64."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.kernels import linear_attention_chunked_launch as chunked
from helion_sinkhorn.linear_attention_error import chunked_budgets, truth
from helion_sinkhorn.testing import half_ulp, worst

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
    exact = truth(inputs, do, dend, scale=SCALE, reverse=reverse)
    budgets = chunked_budgets(inputs, do, dend, 64, str(dtype)[6:], scale=SCALE, reverse=reverse)
    *tensors, start = inputs.values()
    arguments = *tensors, None, SCALE, start, reverse, None
    results = [*chunked.forward(*arguments), *chunked.backward(do, dend, *arguments)]
    ratios = {
        n: worst(x, exact[n], budgets[n] + half_ulp(exact[n], x.dtype))
        for n, x in zip(exact, results, strict=True)
    }
    assert max(ratios.values()) <= 1, ratios
