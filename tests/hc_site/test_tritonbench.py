"""`--op hc_site`: its parts, and all of it under a stub of tritonbench beside planted backends."""

from __future__ import annotations

import pytest
import torch
from hc_sites import site_results
from planted import statuses

from helion_sinkhorn.ops.hc_site.workloads import HcSiteWorkload
from helion_sinkhorn.workloads import tagged
from tritonbench_ops.hc_site import cases as parts

SMALL = ["--op", "hc_site", "--device", "cpu", "--precision", "fp32", "--warmup", "1", "--rep", "1", "--only"]
SHAPE = ["--tokens", "40", "--hidden", "24"]
PLANTED = """
from helion_sinkhorn import hc_site
from tritonbench_ops.hc_site import cases as parts

def narrow_fn(x, fn, scale, base, **options):
    return hc_site(x, fn.bfloat16(), scale, base, **options)

def wrong_gradient(*given, **options):
    y, *rest = hc_site(*given, **options)
    return WrongGradient.apply(y), *rest

def no_residual(*given, **options):
    *found, residual = hc_site(*given, **options)
    return *found, 0 * residual + residual.detach()

planted = {
    "helion_narrow_fn": narrow_fn, "helion_wrong_gradient": wrong_gradient, "helion_raises": raises,
    "helion_no_residual": no_residual,
}
parts.BACKENDS.update({name: lambda f=f: f for name, f in planted.items()})
"""


def test_right_backends_pass_and_planted_ones_fail_in_the_modes_that_show_them():
    modes = ("fwd", "bwd", "fwd_no_grad")
    names = (
        "helion_hc_site", "helion_narrow_fn", "helion_wrong_gradient", "helion_raises", "helion_no_residual",
    )  # fmt: skip
    metrics = ["--metrics", "latency,accuracy,x_floor,gbps,flops"]
    runs = [[*SMALL, name, *SHAPE, *metrics, "--mode", mode] for name in names for mode in modes]
    assert statuses(PLANTED, runs) == [0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0]


def test_streams_alone_have_the_precision_that_was_asked_for():
    """tritonbench casts every input; a backward in bfloat16 without kernels is autograd's, and not judged."""
    planting = """
from helion_sinkhorn import hc_site
from tritonbench_ops.hc_site import cases as parts

def of_a_model(x, fn, scale, base, **options):
    dtypes = [t.dtype for t in (x, fn, scale, base)]
    assert dtypes == [torch.bfloat16, *[torch.float32] * 3] and fn.is_leaf, dtypes
    return hc_site(x, fn, scale, base, **options)

parts.BACKENDS.update(helion_hc_site=lambda: of_a_model, helion_raises=lambda: raises)
"""
    bf16 = ["bf16" if word == "fp32" else word for word in SMALL]
    modes = ("fwd", "bwd", "fwd_bwd", "fwd_no_grad")
    runs = [[*bf16, "helion_hc_site", *SHAPE, "--mode", mode] for mode in modes]
    runs.append([*bf16, "helion_raises", *SHAPE, "--mode", "bwd"])
    assert statuses(planting, runs) == [0, 0, 0, 0, 1]


def test_cases_are_the_bench_workloads():
    rows = parts.cases(parts.parse([]), torch.bfloat16)
    assert [(row.batch, row.c) for row in rows] == [(w.batch, w.c) for w in tagged("bench", HcSiteWorkload)]
    (row,) = parts.cases(parts.parse(["--tokens", "3", "--streams", "2", "--hidden", "5"]), torch.float16)
    assert (row.batch, row.n, row.c, row.dtype) == (3, 2, 5, torch.float16)
    shapes = [tuple(t.shape) for t in parts.inputs(row, "cpu")]
    assert shapes == [(3, 2, 5), (8, 10), (3,), (8,), (3, 2, 5), (3, 5), (3, 2), (3, 2, 2)]


@pytest.mark.parametrize("flags", [["--tokens", "0"], ["--unknown", "1"]])
def test_wrong_flags_end_the_run(flags, capsys):
    with pytest.raises(SystemExit, match="2"):
        parts.parse(flags)
    assert "--op hc_site" in capsys.readouterr().err


def test_every_entry_is_judged(monkeypatch):
    monkeypatch.setattr(parts, "PIECE_ENTRIES", 7 * 4 * 24)
    (case,) = parts.cases(parts.parse(SHAPE), torch.float32)
    given = parts.inputs(case, "cpu")
    found = site_results(given[:4], given[4:])
    values, gradients = [*[*found.values()][:3], given[0]], [*found.values()][3:]
    assert parts.share_of_budget(case, given, values, gradients) <= 1
    for which in range(8):
        both = [t.clone() for t in (*values, *gradients)]
        both[which][33 if which < 5 else -1] *= 1.05
        assert parts.share_of_budget(case, given, both[:4], both[4:]) > 1, which


def test_bytes_moved_once():
    (case,) = parts.cases(parts.parse(["--tokens", "5", "--hidden", "8"]), torch.bfloat16)
    fn, mixes = 24 * 32 * 4, 5 * 24 * 4
    assert parts.bytes_moved(case, "fwd") == 5 * 5 * 16 + mixes + fn
    assert parts.bytes_moved(case, "bwd") == 5 * 13 * 16 + 4 * mixes + 2 * fn


def test_names_survive_the_writers():
    assert all(name.isidentifier() for name in parts.BACKENDS)
