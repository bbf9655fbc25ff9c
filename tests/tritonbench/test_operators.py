"""`--op`: cases, flags and bytes of the operators, and runs of their right backends under a stub."""

from __future__ import annotations

import importlib

import pytest
import torch
from planted import statuses

from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.lab.split.workloads import HcWorkload
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.ops.balance.options import BalanceOptions
from tritonbench_ops.bounds import largest_part, pieces

CASES = {
    "dot_compress": (
        DotWorkload, "--batch 3 --k 8 --with-z", {"batch": 3, "m": 3219, "d": 256, "k": 8, "has_z": True},
        None,
    ),
    "hc_mixes": (
        MixesWorkload, "--tokens 3 --streams 2 --hidden 5 --rows 8", {"batch": 3, "n": 2, "c": 5, "m": 8},
        [(3, 10), (8, 10), (3, 8)],
    ),
    "hc_post": (
        HcPostWorkload, "--tokens 3 --streams 2 --hidden 5", {"batch": 3, "n": 2, "c": 5},
        [(3, 5), (3, 2, 5), (3, 2), (3, 2, 2), (3, 2, 5)],
    ),
    "hc_pre": (
        HcPreWorkload, "--tokens 3 --streams 2 --hidden 5", {"batch": 3, "n": 2, "c": 5},
        [(3, 2, 5), (3, 2), (3, 5)],
    ),
    "hc_site": (
        HcSiteWorkload, "--tokens 3 --streams 2 --hidden 5", {"batch": 3, "n": 2, "c": 5},
        [(3, 2, 5), (8, 10), (3,), (8,), (3, 5), (3, 2), (3, 2, 2), (3, 2, 5)],
    ),
    "hc_split_sinkhorn": (
        HcWorkload, "--tokens 3 --streams 2 --n-iters 5", {"batch": 3, "n": 2, "n_iters": 5},
        [(3, 8), (3,), (8,), (3, 2), (3, 2), (3, 2, 2)],
    ),
    "recurrent_linear_attention": (
        AttentionWorkload, "--batch 3 --dv 8 --gates=", {"sequences": 3, "steps": 2048, "dv": 8, "gates": ""},
        None,
    ),
    "sinkhorn": (
        SinkhornWorkload, "--n 8 --batch 7 --n-iters 3 --form log --first cols",
        {"batch": 7, "n": 8, "m": 8, "n_iters": 3, "form": "log", "first": "cols"}, None,
    ),
    "sinkhorn_balance": (
        BalanceWorkload, "--rows 3 --columns 5", {"batch": 3, "n": 5, "settings": BalanceOptions()},
        [(1, 3, 5)],
    ),
}  # fmt: skip
"""The workload, flags, what a case of them has, and the shapes of its inputs."""
SIZES = "batch", "n", "c", "m", "d", "k", "steps", "heads", "dk", "dv"


def parts_of(name):
    return importlib.import_module(f"tritonbench_ops.{name}.cases")


@pytest.mark.parametrize("name", CASES)
def test_cases_are_the_bench_workloads(name):
    workload, flags, expected, shapes = CASES[name]
    parts = parts_of(name)
    cases, bench = (
        [tuple(getattr(row, k, None) for k in SIZES) for row in rows]
        for rows in (parts.cases(parts.parse([]), torch.bfloat16), tagged("bench", workload))
    )
    # some come in several dtypes
    assert cases == [*dict.fromkeys(bench)]
    (row,) = parts.cases(parts.parse(flags.split()), torch.float16)
    assert {k: getattr(row, k) for k in (*expected, "dtype")} == {**expected, "dtype": torch.float16}
    assert shapes is None or [tuple(t.shape) for t in parts.inputs(row, "cpu")] == shapes
    backends = importlib.import_module("tritonbench_ops.sinkhorn.backends") if name == "sinkhorn" else parts
    assert all(backend.isidentifier() for backend in backends.BACKENDS), "the writers of tables split names"


@pytest.mark.parametrize("name", CASES)
def test_wrong_flags_end_the_run(name, capsys):
    size, short = {
        "dot_compress": ("--m", "--with"), "recurrent_linear_attention": ("--steps", "--ste"),
        "sinkhorn_balance": ("--rows", "--col"), "sinkhorn": ("--n", "--ite"),
    }.get(name, ("--tokens", "--tok"))  # fmt: skip
    for flags in ([size, "0"], ["--unknown", "1"], [short, "3"]):
        with pytest.raises(SystemExit, match="2"):
            parts_of(name).parse(flags)
        assert f"--op {name}" in capsys.readouterr().err


SHAPES = {
    "dot_compress": "--batch 3 --m 100 --d 32 --k 16 --with-z",
    "hc_post": "--tokens 100 --hidden 40", "hc_pre": "--tokens 100 --hidden 40",
    "hc_mixes": "--tokens 100 --hidden 60", "hc_split_sinkhorn": "--tokens 100",
    "hc_site": "--tokens 40 --hidden 24 --precision fp32 --mode bwd",
    "recurrent_linear_attention": "--batch 3 --steps 12 --heads 3 --dk 8 --dv 6",
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_right_backends_pass_in_both_passes(device):
    """In the precision that each has by itself; test_wrong_backends.py has wrong ones."""
    start = (
        f"--device {device} --warmup 1 --rep 1 --mode fwd_bwd --metrics latency,accuracy,x_floor,gbps,flops"
    )
    right = {
        "recurrent_linear_attention": "helion_recurrent",
        "dot_compress": "helion_dot_compress,helion_dot_compress_precise",
    }
    runs = [
        ["--op", name, *f"{start} {shape} --only {right.get(name, f'helion_{name}')}".split()]
        for name, shape in SHAPES.items()
    ]
    assert statuses("", runs) == [0] * len(runs)


def test_streams_of_a_site_alone_have_the_precision_that_was_asked_for():
    """tritonbench casts every input; a backward in bfloat16 without kernels is autograd's, and not tested."""
    planting = """
from helion_sinkhorn import hc_site
from tritonbench_ops.hc_site import cases as parts

def of_a_model(x, fn, scale, base, **options):
    dtypes = [t.dtype for t in (x, fn, scale, base)]
    assert dtypes == [torch.bfloat16, *[torch.float32] * 3] and fn.is_leaf, dtypes
    return hc_site(x, fn, scale, base, **options)

parts.BACKENDS.update(helion_hc_site=lambda: of_a_model, helion_raises=lambda: raises)
"""
    start = "--op hc_site --device cpu --precision bf16 --warmup 1 --rep 1 --tokens 40 --hidden 24 --only"
    runs = [[*start.split(), "helion_hc_site", "--mode", m] for m in ("fwd", "bwd", "fwd_bwd", "fwd_no_grad")]
    runs.append([*start.split(), "helion_raises", "--mode", "bwd"])
    assert statuses(planting, runs) == [0, 0, 0, 0, 1]


SITE = "--tokens 5 --hidden 8"
STEPS = 2 * 3 * 4
"""Steps of all heads of the sequences below."""


@pytest.mark.parametrize(
    ("name", "flags", "forward", "backward"),
    [
        ("dot_compress", "--batch 2 --m 10 --d 8 --k 3", 2 * 20 * (8 + 2 * 3), 2 * 20 * (2 * 8 + 3 * 3)),
        ("hc_post", SITE, 5 * (144 + 80), 5 * (224 + 160)),
        ("hc_pre", SITE, 5 * (80 + 16), 5 * (144 + 32)),
        ("hc_split_sinkhorn", "--tokens 5", 5 * (48 + 96), 5 * (96 + 96)),
        ("hc_mixes", SITE, 5 * (64 + 96) + 24 * 32 * 4, 2 * (5 * (64 + 96) + 24 * 32 * 4)),
        ("hc_site", SITE, 5 * 5 * 16 + 5 * 24 * 4 + 24 * 32 * 4,
         5 * 13 * 16 + 4 * 5 * 24 * 4 + 2 * 24 * 32 * 4),
        ("recurrent_linear_attention", "--batch 2 --steps 3 --heads 4 --dk 8 --dv 5 --gates=gv",
         2 * STEPS * (8 + 8 + 5 + 5 + 5), 2 * STEPS * (2 * (8 + 8 + 5 + 5) + 5)),
    ],
)  # fmt: skip
def test_bytes_moved_once(name, flags, forward, backward):
    parts = parts_of(name)
    (case, *_) = parts.cases(parts.parse(flags.split()), torch.bfloat16)
    expected = {"fwd": forward, "fwd_no_grad": forward, "bwd": backward, "fwd_bwd": forward + backward}
    assert {mode: parts.bytes_moved(case, mode) for mode in expected} == expected


def test_a_balanced_update_is_read_for_its_norms_and_each_row_step():
    parts = parts_of("sinkhorn_balance")
    (case,) = parts.cases(parts.parse(["--rows", "8", "--columns", "4"]), torch.bfloat16)
    assert parts.bytes_moved(case) == (7 + 1) * 8 * 4 * 2


@pytest.mark.parametrize(
    ("name", "flags", "shown"),
    [
        ("dot_compress", "--batch 3 --m 100 --d 32 --k 16 --with-z", "3x100x32 16 z"),
        (
            "recurrent_linear_attention",
            "--batch 2 --steps 3 --heads 4 --dk 8 --dv 5 --gates=gv",
            "2x3x4x8 5 gv",
        ),
    ],
)
def test_an_input_reads_well(name, flags, shown):
    parts = parts_of(name)
    (case,) = parts.cases(parts.parse(flags.split()), torch.bfloat16)
    assert parts.x_value(case) == shown


def test_pieces_have_every_row_once():
    spans = [(piece.start, piece.stop) for piece in pieces(10, 7, 2)]
    assert spans == [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_a_budget_of_nan_allows_no_error():
    """max() of floats passed over it, and anything was accurate."""
    assert largest_part(torch.tensor([0.0, 1.0]), torch.tensor([1.0, torch.nan])) == torch.inf
