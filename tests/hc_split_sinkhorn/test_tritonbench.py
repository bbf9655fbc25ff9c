"""`--op hc_split_sinkhorn`: its parts, and all of it under a stub of tritonbench beside planted backends."""

from __future__ import annotations

import pytest
import torch
from planted import statuses

from helion_sinkhorn.lab.split.workloads import HcWorkload
from helion_sinkhorn.lab.workloads import tagged
from tritonbench_ops.hc_split_sinkhorn import cases as parts

SMALL = ["--op", "hc_split_sinkhorn", "--device", "cpu", "--warmup", "1", "--rep", "1", "--only"]
SHAPE = ["--tokens", "100"]
PLANTED = """
from helion_sinkhorn import hc_split_sinkhorn
from tritonbench_ops.hc_split_sinkhorn import cases as parts

class Spoiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, value):
        ctx.value = value
        out = out.clone()
        out[50] = value
        return out
    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad[50] = ctx.value
        return grad, None

def changed(which, change):
    def run(*t, **options):
        out = list(hc_split_sinkhorn(*t, **options))
        out[which] = change(out[which])
        return tuple(out)
    return run

planted = {
    "helion_wrong_pre": changed(0, lambda t: t + 1e-5),
    "helion_wrong_comb": changed(2, lambda t: t.mT),
    "helion_wrong_gradient": changed(1, WrongGradient.apply),
    "helion_raises": lambda *t, **options: raises(),
    "nan_in_the_middle": changed(2, lambda t: Spoiled.apply(t, float("nan"))),
    "zeros_in_the_middle": changed(0, lambda t: Spoiled.apply(t, 0.0)),
    "no_gradient_of_scale": lambda m, s, b, **o: hc_split_sinkhorn(m, 0 * s + s.detach(), b, **o),
}
parts.BACKENDS.update({name: lambda f=f: f for name, f in planted.items()})
"""


def test_right_backends_pass_and_planted_ones_fail_in_the_modes_that_show_them():
    modes = ("fwd", "bwd", "fwd_bwd", "fwd_no_grad")
    names = (
        "helion_hc_split_sinkhorn",
        "helion_wrong_pre", "helion_wrong_comb", "helion_wrong_gradient", "helion_raises",
        "nan_in_the_middle", "zeros_in_the_middle", "no_gradient_of_scale",
    )  # fmt: skip
    metrics = ["--metrics", "latency,accuracy,x_floor,gbps,flops"]
    runs = [[*SMALL, name, *SHAPE, *metrics, "--mode", mode] for name in names for mode in modes]
    assert statuses(PLANTED, runs) == [
        *(0, 0, 0, 0),
        *(1, 0, 1, 1),
        *(1, 1, 1, 1),
        *(0, 1, 1, 0),
        *(1, 1, 1, 1),
        *(1, 1, 1, 1),
        *(1, 1, 1, 1),
        *(0, 1, 1, 0),
    ]  # fmt: skip


def test_cases_are_the_bench_workloads():
    rows = parts.cases(parts.parse([]), torch.float32)
    assert [row.batch for row in rows] == [w.batch for w in tagged("bench", HcWorkload)]
    (row,) = parts.cases(parts.parse(["--tokens", "3", "--streams", "2", "--n-iters", "5"]), torch.float16)
    assert (row.batch, row.n, row.n_iters, row.dtype) == (3, 2, 5, torch.float16)
    shapes = [tuple(t.shape) for t in parts.inputs(row, "cpu")]
    assert shapes == [(3, 8), (3,), (8,), (3, 2), (3, 2), (3, 2, 2)]


@pytest.mark.parametrize("flags", [["--tokens", "0"], ["--unknown", "1"], ["--tok", "3"]])
def test_wrong_flags_end_the_run(flags, capsys):
    with pytest.raises(SystemExit, match="2"):
        parts.parse(flags)
    assert "--op hc_split_sinkhorn" in capsys.readouterr().err


def test_bytes_moved_once():
    mixes = torch.empty(5, 24)
    assert parts.bytes_moved(mixes, "fwd") == parts.bytes_moved(mixes, "fwd_no_grad") == 5 * 192
    assert parts.bytes_moved(mixes, "bwd") == 5 * 288
    assert parts.bytes_moved(mixes.bfloat16(), "fwd_bwd") == 5 * (144 + 192)


def test_names_survive_the_writers():
    assert all(name.isidentifier() for name in parts.BACKENDS)
