"""The Triton code of chunked linear attention, with its masks and both branches, against float64."""

from __future__ import annotations

import pytest
import torch
from attention_problem import problem

from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("steps", "dk", "dv", "strength", "reverse"),
    [(70, 20, 19, 0.01, False), (70, 20, 19, 30.0, True), (1, 1, 1, 0.01, True)],
    ids=["one product", "levels", "smallest"],
)
def test_generated_code(steps, dk, dv, strength, reverse, dtype):
    case = problem("g g_gamma gk", (1, steps, 2, dk, dv), dtype, strength=strength, reverse=reverse)
    ratios = case.judge(case.run_module(chunked), "chunked")
    assert max(ratios.values()) <= 1, ratios
