"""The Triton code of the walks of linear attention against float64, where steps come from cu_seqlens."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
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
    ratios = case.judge(case.run_module(linear_attention_launch))
    assert max(ratios.values()) <= 1, ratios
