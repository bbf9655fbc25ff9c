"""`--op hc_post`: its parts, and all of it under a stub of tritonbench beside planted backends."""

from __future__ import annotations

import pytest
import torch
from planted import statuses

from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.ops.mhc.post import eager
from tritonbench_ops.hc_post import cases as parts

SMALL = ["--op", "hc_post", "--device", "cpu", "--warmup", "1", "--rep", "1", "--only"]
SHAPE = ["--tokens", "100", "--hidden", "40"]
PLANTED = """
from helion_sinkhorn import hc_post
from tritonbench_ops.hc_post import cases as parts

class Spoiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out):
        out = out.clone()
        out[50, 1, 3] = float("nan")
        return out
    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad[50, 1, 3] = float("nan")
        return grad

planted = {
    "helion_other_order": lambda f, x, post, comb: hc_post(f, x, post, comb, comb_order="oi"),
    "helion_wrong_gradient": lambda *t: WrongGradient.apply(hc_post(*t)),
    "helion_raises": lambda *t: raises(),
    "nan_in_the_middle": lambda *t: Spoiled.apply(hc_post(*t)),
    "no_gradient_of_post": lambda f, x, post, comb: hc_post(f, x, 0 * post + post.detach(), comb),
}
parts.BACKENDS.update({name: lambda f=f: f for name, f in planted.items()})
"""


def test_right_backends_pass_and_planted_ones_fail_in_the_modes_that_show_them():
    modes = ("fwd", "bwd", "fwd_bwd", "fwd_no_grad")
    names = (
        "helion_hc_post", "helion_other_order", "helion_wrong_gradient", "helion_raises",
        "nan_in_the_middle", "no_gradient_of_post",
    )  # fmt: skip
    metrics = ["--metrics", "latency,accuracy,x_floor,gbps,flops"]
    runs = [[*SMALL, name, *SHAPE, *metrics, "--mode", mode] for name in names for mode in modes]
    assert statuses(PLANTED, runs) == [
        *(0, 0, 0, 0),
        *(1, 1, 1, 1),
        *(0, 1, 1, 0),
        *(1, 1, 1, 1),
        *(1, 1, 1, 1),
        *(0, 1, 1, 0),
    ]  # fmt: skip


def test_cases_are_the_bench_workloads():
    rows = parts.cases(parts.parse([]), torch.bfloat16)
    assert [(row.batch, row.c) for row in rows] == [(w.batch, w.c) for w in tagged("bench", HcPostWorkload)]
    (row,) = parts.cases(parts.parse(["--tokens", "3", "--streams", "2", "--hidden", "5"]), torch.float16)
    assert (row.batch, row.n, row.c, row.dtype) == (3, 2, 5, torch.float16)
    shapes = [tuple(t.shape) for t in parts.inputs(row, "cpu")]
    assert shapes == [(3, 5), (3, 2, 5), (3, 2), (3, 2, 2), (3, 2, 5)]


@pytest.mark.parametrize("flags", [["--tokens", "0"], ["--unknown", "1"], ["--tok", "3"]])
def test_wrong_flags_end_the_run(flags, capsys):
    with pytest.raises(SystemExit, match="2"):
        parts.parse(flags)
    assert "--op hc_post" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_entry_is_judged(dtype, monkeypatch):
    monkeypatch.setattr(parts, "PIECE_ENTRIES", 7 * 4 * 40)
    (case,) = parts.cases(parts.parse(SHAPE), dtype)
    *given, grad = parts.inputs(case, "cpu")
    out, gradients = eager.forward(*given, None, "io"), eager.backward(grad, *given, None, "io")
    assert parts.share_of_budget((*given, grad), out, gradients) <= 1
    for which in range(5):
        both = [t.clone() for t in (out, *gradients)]
        both[which][51, ..., -1] *= 1.05
        assert parts.share_of_budget((*given, grad), both[0], both[1:]) > 1, which


def test_bytes_moved_once():
    narrow = torch.bfloat16
    given = torch.empty(5, 8, dtype=narrow), torch.empty(5, 4, 8, dtype=narrow), torch.empty(5, 4)
    given = *given, torch.empty(5, 4, 4)
    assert parts.bytes_moved(*given, "fwd") == parts.bytes_moved(*given, "fwd_no_grad") == 5 * (144 + 80)
    assert parts.bytes_moved(*given, "bwd") == 5 * (224 + 160)
    assert parts.bytes_moved(*given, "fwd_bwd") == 5 * (368 + 240)


def test_names_survive_the_writers():
    assert all(name.isidentifier() for name in parts.BACKENDS)
