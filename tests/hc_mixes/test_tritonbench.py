"""`--op hc_mixes`: its parts, and all of it under a stub of tritonbench beside planted backends."""

from __future__ import annotations

import pytest
import torch
from planted import statuses

from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.workloads import tagged
from tritonbench_ops.hc_mixes import cases as parts

SMALL = ["--op", "hc_mixes", "--device", "cpu", "--warmup", "1", "--rep", "1", "--only"]
SHAPE = ["--tokens", "100", "--hidden", "60"]
PLANTED = """
from helion_sinkhorn import hc_mixes
from tritonbench_ops.hc_mixes import cases as parts

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

def changed(change):
    return lambda *t, **options: change(hc_mixes(*t, **options))

planted = {
    "helion_wrong_mixes": changed(lambda t: t + 1e-4),
    "helion_rows_exchanged": changed(lambda t: t[:, [1, 0, *range(2, 24)]]),
    "helion_wrong_gradient": changed(WrongGradient.apply),
    "helion_raises": lambda *t, **options: raises(),
    "nan_in_the_middle": changed(lambda t: Spoiled.apply(t, float("nan"))),
    "zeros_in_the_middle": changed(lambda t: Spoiled.apply(t, 0.0)),
    "no_gradient_of_fn": lambda x, fn, **o: hc_mixes(x, 0 * fn + fn.detach(), **o),
    "fn_in_two_parts": lambda x, fn, **o: hc_mixes(x, fn.bfloat16() + (fn - fn.bfloat16()).bfloat16(), **o),
}
parts.BACKENDS.update({name: lambda f=f: f for name, f in planted.items()})
"""


def test_right_backends_pass_and_planted_ones_fail_in_the_modes_that_show_them():
    modes = ("fwd", "bwd", "fwd_bwd", "fwd_no_grad")
    names = (
        "helion_hc_mixes", "helion_hc_mixes_tf32",
        "helion_wrong_mixes", "helion_rows_exchanged", "helion_wrong_gradient", "helion_raises",
        "nan_in_the_middle", "zeros_in_the_middle", "no_gradient_of_fn", "fn_in_two_parts",
    )  # fmt: skip
    metrics = ["--metrics", "latency,accuracy,x_floor,gbps,flops"]
    runs = [[*SMALL, name, *SHAPE, *metrics, "--mode", mode] for name in names for mode in modes]
    assert statuses(PLANTED, runs) == [
        *(0, 0, 0, 0),
        *(0, 0, 0, 0),
        *(1, 0, 1, 1),
        *(1, 1, 1, 1),
        *(0, 1, 1, 0),
        *(1, 1, 1, 1),
        *(1, 1, 1, 1),
        *(1, 1, 1, 1),
        *(0, 1, 1, 0),
        *(1, 1, 1, 1),
    ]  # fmt: skip


def test_cases_are_the_bench_workloads():
    rows = parts.cases(parts.parse([]), torch.bfloat16)
    assert [(row.batch, row.c) for row in rows] == [(w.batch, w.c) for w in tagged("bench", MixesWorkload)]
    flags = ["--tokens", "3", "--streams", "2", "--hidden", "5", "--rows", "8"]
    (row,) = parts.cases(parts.parse(flags), torch.float16)
    assert (row.batch, row.n, row.c, row.m, row.dtype) == (3, 2, 5, 8, torch.float16)
    assert [tuple(t.shape) for t in parts.inputs(row, "cpu")] == [(3, 10), (8, 10), (3, 8)]


@pytest.mark.parametrize("flags", [["--tokens", "0"], ["--unknown", "1"], ["--tok", "3"]])
def test_wrong_flags_end_the_run(flags, capsys):
    with pytest.raises(SystemExit, match="2"):
        parts.parse(flags)
    assert "--op hc_mixes" in capsys.readouterr().err


def test_bytes_moved_once():
    (case,) = parts.cases(parts.parse(["--tokens", "5", "--hidden", "8"]), torch.bfloat16)
    x = torch.empty(5, 32, dtype=torch.bfloat16)
    forward = 5 * (64 + 96) + 24 * 32 * 4
    assert parts.bytes_moved(x, case, "fwd") == parts.bytes_moved(x, case, "fwd_no_grad") == forward
    assert parts.bytes_moved(x, case, "bwd") == 2 * forward
    assert parts.bytes_moved(x, case, "fwd_bwd") == 3 * forward


def test_names_survive_the_writers():
    assert all(name.isidentifier() for name in parts.BACKENDS)
