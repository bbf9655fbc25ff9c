"""Linear attention on a CUDA or ROCm device, against the recurrence in float64 on the CPU and its bounds.

`make accuracy` tests both methods there on its workloads, and that their bits are the same again and in any
batch; test_gates.py has each gate by itself.
"""

from __future__ import annotations

import functools

import pytest
import torch
from attention_problem import assert_within, problem

pytest.importorskip("triton")

from helion_sinkhorn import recurrent_linear_attention
from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
walked = functools.partial(recurrent_linear_attention, method="recurrent", implementation="helion")


@pytest.mark.parametrize(("dk", "dv"), [(1, 1), (3, 5), (4, 1), (20, 48), (96, 33), (128, 64), (256, 256)])
def test_sizes_of_walks(dk, dv):
    case = Case.of(AttentionWorkload("", 1, 19, 2, dk, dv, frozenset(), "", "gk", torch.float32))
    assert_within(case, case.to(DEVICE).run(walked))


CHUNKS = {
    "gla": ("gk", (2, 300, 2, 64, 128), torch.bfloat16, {}),
    "decays_fast": ("gk", (2, 300, 2, 64, 128), torch.bfloat16, {"strength": 30.0, "reverse": True}),
    "every_gate": ("g g_gamma gk", (1, 150, 3, 24, 20), torch.float32, {"reverse": True}),
    "retention": ("g_gamma", (1, 150, 1, 5, 3), torch.float32, {"strength": 0.1}),
    "no_gate": ("", (1, 100, 2, 100, 36), torch.bfloat16, {"states": False, "reverse": True}),
    "smallest": ("gk", (2, 2, 1, 1, 1), torch.float32, {}),
    "half": ("g", (2, 200, 2, 64, 64), torch.float16, {"strength": 0.1}),
    "float32": ("gk", (1, 300, 2, 64, 128), torch.float32, {"strength": 0.06}),
    # sides that machine code got wrong before they were padded to 64 (docs/dev/helion.md)
    "narrow_keys": ("gk", (2, 150, 2, 16, 64), torch.bfloat16, {}),
    "narrow_every_gate": ("g g_gamma gk", (1, 150, 3, 24, 20), torch.bfloat16, {"reverse": True}),
    "narrow_float32": ("gk", (2, 150, 2, 32, 32), torch.float32, {"strength": 0.1}),
    "wide_keys": ("gk", (1, 200, 2, 128, 128), torch.bfloat16, {"reverse": True}),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_are_within_their_budget_and_reproducible(name):
    *call, options = CHUNKS[name]
    judged = problem(*call, **options)
    actual, again = (judged.to(DEVICE).run_module(chunked) for _ in range(2))
    assert_within(judged, actual, "chunked")
    assert all(torch.equal(x, again[n]) for n, x in actual.items())


@pytest.mark.parametrize("method", ["recurrent", "chunked"])
def test_a_kept_launch_takes_each_tensor_for_its_own_argument(method):
    generator = torch.Generator(DEVICE).manual_seed(0)
    q, k, v = torch.randn((3, 2, 70, 2, 64), device=DEVICE, generator=generator).unbind()
    run = functools.partial(recurrent_linear_attention, method=method, implementation="helion")
    expected = run(q, k, v)
    assert not torch.equal(run(q, q, q), expected)
    assert torch.equal(run(q, k, v), expected)
    assert torch.equal(run(q.clone(), k.clone(), v.clone()), expected)
