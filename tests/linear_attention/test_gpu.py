"""Recurrent linear attention on a CUDA or ROCm device, against float64 on the CPU and its bounds."""

from __future__ import annotations

import functools

import pytest
import torch
from padded_packs import check_padding

from helion_sinkhorn import recurrent_linear_attention
from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.lab.workloads import tagged

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def walked(**arguments):
    return recurrent_linear_attention(**arguments, method="recurrent", implementation="helion")


def workload(gates, shape=(2, 37, 3, 16, 24), dtype=torch.float32, **options):
    return AttentionWorkload("", *shape, frozenset(), "", gates=gates, dtype=dtype, **options)


def check(w):
    case = Case.of(w)
    ratios = case.judge(case.to(DEVICE).run(walked))
    assert max(ratios.values()) <= 1, (w, ratios)


@pytest.mark.parametrize("w", tagged("ci", AttentionWorkload), ids=lambda w: w.name)
def test_judged_workloads(w):
    check(w)


@pytest.mark.parametrize("gates", ["", "g", "g_gamma", "gv", "g gk gv"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gates(gates, reverse):
    check(workload(gates, states=True, reverse=reverse))


@pytest.mark.parametrize(("dk", "dv"), [(1, 1), (3, 5), (4, 1), (20, 48), (96, 33), (128, 64), (256, 256)])
def test_sizes(dk, dv):
    check(workload("gk", (1, 19, 2, dk, dv)))


def test_packed_sequences():
    check(workload("g gk gv", (1, 60, 2, 16, 32), states=True, lengths=(7, 0, 16, 1, 36)))


@pytest.mark.parametrize("reverse", [False, True])
def test_steps_of_no_sequence_are_zeros(reverse):
    check_padding(lambda case: case.run(walked), reverse, DEVICE)


def test_the_same_bits_again_and_in_any_batch():
    w = workload("g g_gamma gk gv", (4, 65, 3, 64, 128), torch.bfloat16, states=True)
    first, second = (Case.of(w).to(DEVICE).run(walked) for _ in range(2))
    for name, x in first.items():
        assert torch.equal(x, second[name]), name
    tensors, _, _ = w.make_inputs(device=DEVICE)
    alone = {name: x if name == "g_gamma" else x[2:3] for name, x in tensors.items()}
    o, end = walked(**alone, output_final_state=True)
    assert torch.equal(o, first["o"][2:3])
    assert torch.equal(end, first["end"][2:3])


@pytest.mark.parametrize("method", ["recurrent", "chunked"])
def test_a_kept_launch_takes_each_tensor_for_its_own_argument(method):
    generator = torch.Generator(DEVICE).manual_seed(0)
    q, k, v = torch.randn((3, 2, 70, 2, 64), device=DEVICE, generator=generator).unbind()
    run = functools.partial(recurrent_linear_attention, method=method, implementation="helion")
    expected = run(q, k, v)
    assert not torch.equal(run(q, q, q), expected)
    assert torch.equal(run(q, k, v), expected)
    assert torch.equal(run(q.clone(), k.clone(), v.clone()), expected)
