"""The Triton code of linear attention: walks of packed sequences, chunks with their masks and branches."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from attention_problem import assert_within, problem

from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked
from helion_sinkhorn.ops.linear_attention.recurrent import launch as linear_attention_launch


@pytest.mark.parametrize(
    ("gates", "reverse", "offsets"), [("g g_gamma gk gv", True, torch.int32), ("", False, torch.int64)]
)
def test_packed_sequences(gates, reverse, offsets):
    shape = 1, 10, 1, 5, 8
    w = AttentionWorkload("", *shape, frozenset(), "", gates, torch.float32, True, reverse, (9, 0, 1))
    case = Case.of(w)
    packed = case.inputs["cu_seqlens"].to(offsets)
    case = dataclasses.replace(case, inputs={**case.inputs, "cu_seqlens": packed})
    assert_within(case, case.run_module(linear_attention_launch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("steps", "dk", "dv", "strength", "reverse"),
    [(70, 20, 19, 0.01, False), (70, 20, 19, 30.0, True), (1, 1, 1, 0.01, True)],
    ids=["one product", "levels", "smallest"],
)
def test_chunks(steps, dk, dv, strength, reverse, dtype):
    case = problem("g g_gamma gk", (1, steps, 2, dk, dv), dtype, strength=strength, reverse=reverse)
    assert_within(case, case.run_module(chunked), "chunked")
