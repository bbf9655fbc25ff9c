"""`--op sinkhorn`: its parts, all of it under a stub of tritonbench, and under a checkout if there is one."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest
import torch
from planted import CHECKOUT, MODES, ROOT, TREES, WITH_GRADIENTS, folder_of, needs_checkout, statuses, under

from helion_sinkhorn import Implicit, reference, sinkhorn
from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.lab.sinkhorn.workloads import LARGEST_ENTRIES
from tritonbench_ops import launch, measure
from tritonbench_ops import verdict as gate
from tritonbench_ops.sinkhorn import backends, cases, compare

SMALL = ["--op", "sinkhorn", "--device", "cpu", "--batch", "500", "--n", "4", "--n-iters", "3"]
LARGE = ["--op", "sinkhorn", "--device", "cpu", "--batch", "1", "--n", "192", "--n-iters", "2"]
QUICK = ["--warmup", "1", "--rep", "1"]
OURS = "eager,helion_sinkhorn"


def python(tree: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return under(folder_of(tree), *arguments, **environment)


def ran(tree: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A command of tritonbench_ops that ends well."""
    done = python(tree, "-m", "tritonbench_ops", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


# ---------------------------------------------------------------------------------------- pure parts


def test_importing_the_parts_imports_neither_tritonbench_nor_helion():
    """And needs no `benchmarks`, which is another package in Helion's driver."""
    code = "import sys\nsys.modules['benchmarks'] = None\n"
    code += "from tritonbench_ops import driver, launch, measure, register, verdict\n"
    code += "from tritonbench_ops.sinkhorn import backends, cases, compare\n"
    code += "print(sorted({'tritonbench', 'helion', 'triton'} & set(sys.modules)))"
    done = python("stub", "-c", code)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--n 8 --batch 7", {(8, 7, 20, "deepseek", "rows")}),
        ("--n 5 --batch 7 --n-iters 3", {(5, 7, 3, "deepseek", "rows")}),
        ("--batch 2 --form log --first cols", {(n, 2, 20, "log", "cols") for n in (4, 8, 16, 32, 64)}),
        # large matrices come alone and by eight
        ("--n 1024 --n-iters 2", {(1024, batch, 2, "deepseek", "rows") for batch in (1, 8)}),
    ],
)
def test_flags_choose_the_cases(flags, expected):
    rows = cases.cases(cases.parse(flags.split()), torch.float32)
    chosen = [(w.n, w.batch, w.n_iters, w.form, w.first) for w in rows]
    assert sorted(chosen) == sorted(expected)
    assert all(w.n == w.m for w in rows)


def test_a_size_outside_of_the_table_gets_batches_that_fit():
    rows = cases.cases(cases.parse(["--n", "100"]), torch.float32)
    assert len(rows) >= 2
    assert max(w.batch * w.n * w.m for w in rows) <= LARGEST_ENTRIES


def test_an_unusable_precision_says_which_are():
    with pytest.raises(ValueError, match="fp32, bf16 or fp16"):
        cases.cases(cases.parse([]), None)


def test_an_input_reads_well_and_survives_the_writers():
    (case,) = cases.cases(cases.parse(["--n", "4", "--batch", str(1 << 20)]), torch.float32)
    text = cases.x_value(case)
    assert text == "1048576x4x4 T=20"
    assert not set(text) & set(";-[]")


def test_bytes_moved():
    (case,) = cases.cases(cases.parse(["--n", "4", "--batch", "3"]), torch.bfloat16)
    moved = {mode: cases.bytes_moved(case, mode) / (2 * 3 * 4 * 4) for mode in cases.MODES}
    assert moved == {"fwd": 2, "fwd_no_grad": 2, "bwd": 3, "fwd_bwd": 5}


@pytest.mark.parametrize("mode", cases.MODES)
def test_the_floor_moves_the_bytes_of_its_mode(mode, monkeypatch):
    moved = []
    x = torch.randn(3, 4, 4)
    add, copy = torch.add, torch.Tensor.copy_
    monkeypatch.setattr(torch, "add", lambda *a, **k: moved.append(3) or add(*a, **k))
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *a: moved.append(2) or copy(*a))
    measure.floor(x, mode)()
    assert sum(moved) == {"fwd": 2, "fwd_no_grad": 2, "bwd": 3, "fwd_bwd": 5}[mode]


def test_the_gate_wants_what_comes_with_the_package_or_what_was_named():
    everything = backends.wanted([], [], "cuda")
    assert everything[:5] == [
        "eager", "torch_compile", "torch_compile_max_autotune", "helion_sinkhorn", "helion_default",
    ]  # fmt: skip
    assert not [name for name in everything if backends.BACKENDS[name].peer]
    assert "helion_default" not in backends.wanted([], [], "cpu")
    assert "torch_compile" not in backends.wanted([], ["torch_compile"], "cuda")
    assert backends.wanted(["liger"], [], "cpu") == ["liger"]


def of_backend(name: str, x: torch.Tensor, n_iters: int, form: str) -> tuple[torch.Tensor, ...]:
    """Logits, an upstream gradient, and what a backend makes of them: P and dX."""
    x, dy = x.requires_grad_(), make_cotangents(x)
    p = backends.BACKENDS[name].build(x, dy, n_iters, form, "rows")()
    return x, dy, p, *torch.autograd.grad(p, x, dy)


@pytest.mark.parametrize("solver", ["auto", "direct", "cg"])
def test_implicit_gradients_are_approximate_rows(solver):
    name = "helion_implicit_approximate" if solver == "auto" else f"helion_implicit_{solver}_approximate"
    assert backends.BACKENDS[name].approximate
    x, dy, p, dx = of_backend(name, make_logits("randn_1", 5, 8, 8), 20, "log")
    expected = sinkhorn(x, 20, form="log", backward=Implicit(solver=solver))
    assert torch.equal(p, expected)
    assert torch.equal(dx, torch.autograd.grad(expected, x, dy)[0])


@pytest.mark.parametrize("form", ["deepseek", "log"])
def test_the_kernels_own_configs_compute_the_definition(form):
    """What a CPU does not run under tritonbench."""
    x, *tensors = of_backend("helion_default", make_logits("randn_3", 5, 4, 4), 6, form)
    allowed = compare.budget(x, tensors[0], 6, form=form)
    assert compare.errors(x, *tensors, allowed, 6, form=form).share <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["eager", "helion_sinkhorn", "helion_default", "torch_compile"])
def test_backends_on_a_gpu(name):
    x = make_logits("randn_1", 8192, 4, 4).cuda().requires_grad_()
    dy = make_cotangents(x).cuda()
    call = (20, "deepseek", "rows")
    forward = backends.BACKENDS[name].build(x, dy, *call)
    p = forward()
    (dx,) = torch.autograd.grad(p, x, dy)
    assert compare.errors(x, dy, p, dx, compare.budget(x, dy, 20), 20).share <= 1
    if name.startswith("helion"):
        assert measure.kept_bytes(forward, x) == 64
        assert "sinkhorn_backward" in backends.BACKENDS[name].config(x, *call, "bwd")
    floor, own = (measure.milliseconds(run, x.device) for run in (measure.floor(x, "fwd"), forward))
    assert 0 < floor < own


def test_configs_are_those_of_the_mode():
    x = torch.empty(8, 4, 4)
    said = {mode: backends.default_config(x, 20, "deepseek", "rows", mode) for mode in cases.MODES}
    assert "sinkhorn_forward" in said["fwd"]
    assert "sinkhorn_backward" not in said["fwd"]
    assert "sinkhorn_forward" not in said["bwd"]
    assert said["fwd"] in said["fwd_bwd"]
    assert said["bwd"] in said["fwd_bwd"]
    assert not any(";" in text for text in said.values())


@pytest.mark.parametrize("ours_first", [False, True])
def test_tritonbench_s_own_folder_of_benchmarks_stays_importable(tmp_path, ours_first):
    """Its numeric_check and gen_metadata are run as benchmarks.numeric_check.run with both on PYTHONPATH."""
    theirs = tmp_path / "benchmarks" / "numeric_check"
    theirs.mkdir(parents=True)
    (theirs / "run.py").write_text("print('theirs')\n")
    path = [str(ROOT), str(tmp_path)][:: 1 if ours_first else -1]
    code = "import benchmarks.numeric_check.run, benchmarks.sinkhorn.peers as p; print(len(p.PEERS) > 0)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = forked.python("-c", code, env=environment, cwd=tmp_path / "benchmarks")
    assert done.stdout.split() == ["theirs", "True"], done.stderr


def peer_row(**changes: object):
    """A row of benchmarks/sinkhorn/peers.py that computes the deepseek form, for n = 4."""

    def build(x, dy, n_iters):
        leaf = x.detach().requires_grad_()
        y = sinkhorn(leaf, n_iters)
        return {
            "forward": lambda: sinkhorn(x, n_iters),
            "backward": lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True)[0],
        }

    row = {"build": build, "form": "deepseek", "first": "rows", "sizes": (4,), "environment": {}, "file": ""}
    return SimpleNamespace(**{**row, "package": "torch", **changes})


def test_a_peer_is_adapted():
    x, dy = make_logits("randn_1", 7, 4, 4), torch.randn(7, 4, 4)
    forward = backends.adapted("peer", peer_row())(x, dy, 5, "deepseek", "rows")
    errors = compare.errors(x, dy, forward(), forward.adjoint(), compare.budget(x, dy, 5), 5)
    assert errors.share <= 1


@pytest.mark.parametrize(
    ("row", "x", "form", "reason"),
    [
        ({}, torch.zeros(2, 8, 8), "deepseek", "square matrices of n in"),
        ({}, torch.zeros(2, 4, 3), "deepseek", "square"),
        ({}, torch.zeros(2, 4, 4), "log", "computes --form deepseek"),
        ({}, torch.zeros(2, 4, 4).half(), "deepseek", "float32"),
        ({"build": lambda *a: 1 / 0}, torch.zeros(2, 4, 4), "deepseek", "ZeroDivisionError"),
    ],
)
def test_a_peer_that_cannot_is_left_out_with_the_reason(row, x, form, reason):
    with pytest.raises(NotImplementedError, match=reason):
        backends.adapted("peer", peer_row(**row))(x, x, 5, form, "rows")


def test_an_absent_peer_says_what_is_missing():
    assert backends.absent(peer_row()) == ""
    assert "no-such-package is not installed" in backends.absent(peer_row(package="no-such-package"))
    assert "FLAG=1" in backends.absent(peer_row(environment={"FLAG": "1"}))
    assert "by file" in backends.absent(peer_row(file="kernels.py"))


def test_without_the_table_of_peers_all_else_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "benchmarks", None)
    monkeypatch.setitem(sys.modules, "benchmarks.sinkhorn", None)
    (row,) = backends.peers().values()
    assert "PYTHONPATH" in row.missing


def test_the_table_of_peers_is_adapted():
    table = pytest.importorskip("benchmarks.sinkhorn.peers", reason="there is no benchmarks/")
    rows = backends.peers()
    assert len(rows) == len(table.PEERS)
    assert all(row.peer and name.isidentifier() for name, row in rows.items())


def test_errors_are_what_they_are_called(monkeypatch):
    """One entry of many is wrong, and all gradients; test_wrong_backends.py has wrong rows and NaN."""
    monkeypatch.setattr(compare, "PIECE_ENTRIES", 16 * 100)
    x = make_logits("randn_1", 600, 4, 4)
    dy = make_cotangents(x)
    x64 = x.double().requires_grad_()
    p = reference.sinkhorn(x64, 20)
    (dx,) = torch.autograd.grad(p, x64, dy.double())
    wrong = p.detach().clone()
    wrong[17, 1, 2] = 2.0
    errors = compare.errors(x, dy, wrong.float(), 1.5 * dx.float(), compare.budget(x, dy, 20), 20)
    assert errors.share > 1
    assert errors.max_abs == pytest.approx(2 - float(p[17, 1, 2]))
    sums = torch.cat([wrong.sum(-1), wrong.sum(-2)])
    assert errors.marginal == pytest.approx(float((sums - 1).abs().max()))
    assert errors.gradient == pytest.approx(0.5)


def test_results_of_another_shape_or_dtype_are_refused():
    x = torch.zeros(4, 3, 3)
    allowed = compare.budget(x, x, 2)
    dtypes = r"results of torch\.float16 for logits of torch\.float32"
    for p, said in ((torch.zeros(4, 3, 1), "shape"), (None, "shape"), (x.half(), dtypes)):
        with pytest.raises(ValueError, match=said):
            compare.errors(x, x, p, None, allowed, 2)


def metrics(error_msg: str | None = None):
    return SimpleNamespace(error_msg=error_msg)


RAN = {"base": metrics(), "a": metrics()}


@pytest.mark.parametrize(
    ("results", "accurate", "sentence"),
    [
        ([], {}, "0 of 1 inputs"),
        ([("x", {"base": metrics()})], {}, "a did not run at x"),
        ([("x", {**RAN, "a": metrics("boom")})], {("x", "a"): True}, "a raised at x: boom"),
        ([("x", RAN)], {}, "a is inaccurate"),
        ([("x", RAN)], {("x", "a"): True, ("x", "base"): False}, "base is inaccurate"),
        ([("x", RAN)], {("x", "a"): True}, None),
    ],
)
def test_gate(results, accurate, sentence):
    names = ["base", "a"]
    failures = gate.failures(results, 1, names, names, ["base"], accurate)
    assert len(failures) == (sentence is not None)
    assert sentence is None or sentence in failures[0]


def test_the_launcher_speaks_both_dialects():
    assert launch.translated(["--rep", "5"], ["--iter"]) == ["--iter", "5"]
    assert launch.translated(["--iter=5"], ["--rep"]) == ["--rep=5"]
    assert launch.translated(["--rep", "5", "--csv"], ["--rep", "--csv"]) == ["--rep", "5", "--csv"]


# ------------------------------------------------------------------------------------- under tritonbench

PLANTED = """
from tritonbench_ops.sinkhorn.backends import BACKENDS, Backend, _eager

def gradient(logits, dy, *call):
    return lambda: WrongGradient.apply(_eager(logits, *call))

def forward_alone(logits, dy, *call):
    return lambda: _eager(logits.detach(), *call)

def adjoint_of_its_own(logits, dy, *call):
    # right, with raw passes as peers have them
    def adjoint():
        leaf = logits.detach().requires_grad_()
        return torch.autograd.grad(_eager(leaf, *call), leaf, dy)[0]
    forward = forward_alone(logits, dy, *call)
    forward.adjoint = adjoint
    return forward

def wrong_adjoint(logits, dy, *call):
    forward = adjoint_of_its_own(logits, dy, *call)
    right = forward.adjoint
    forward.adjoint = lambda: 1.02 * right()
    return forward

for build in (forward_alone, adjoint_of_its_own, wrong_adjoint):
    BACKENDS[build.__name__] = Backend(build, peer=True)
BACKENDS["approximate"] = Backend(gradient, peer=True, approximate=True)
BACKENDS["approximate_raises"] = Backend(lambda *call: raises, approximate=True)
BACKENDS["absent"] = Backend(adjoint_of_its_own, peer=True, missing="its package is not installed")
"""
CAUGHT = {
    "helion_sinkhorn": (), "adjoint_of_its_own": (), "forward_alone": WITH_GRADIENTS,
    "wrong_adjoint": WITH_GRADIENTS, "approximate": (), "approximate_raises": MODES, "absent": MODES,
}  # fmt: skip
"""Backend -> the modes in which the run has to fail when --only names it.

tests/tritonbench/test_wrong_backends.py has what any operator can get wrong.
"""


IN_OTHER_MODES = pytest.mark.nightly("seven runs of tritonbench a mode; fwd_bwd runs both passes")


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(
    "mode", [pytest.param(m, marks=() if m == "fwd_bwd" else IN_OTHER_MODES) for m in cases.MODES]
)
def test_planted_backends_are_caught(tree, mode):
    runs = [[*SMALL, *QUICK, "--mode", mode, "--only", name] for name in CAUGHT]
    caught = dict(zip(CAUGHT, statuses(PLANTED, runs, folder_of(tree)), strict=True))
    assert caught == {name: int(mode in modes) for name, modes in CAUGHT.items()}


@pytest.mark.parametrize("tree", TREES)
def test_what_else_ends_a_run(tree):
    common = [*SMALL, *QUICK, "--only"]
    runs = [
        [*common, "no_such_backend"],
        [*common, OURS, "--form", "log", "--first", "cols", "--precision", "bf16"],
        [*common, OURS, "--metrics", "latency"],
        ["--op", "sinkhorn", "--list-backends", "--list-metrics"],
        [*SMALL, *QUICK, "--mode", "bwd", "--skip", "torch_compile,torch_compile_max_autotune"],
        [*LARGE, *QUICK, "--mode", "bwd", "--only", OURS, "--form", "log"],
        [*common, OURS, "--metrics", "latency,no_such_metric"],
    ]
    unknown, *others, unknown_metric = statuses(PLANTED, runs, folder_of(tree))
    assert "no_such_backend" in unknown
    assert "helion_sinkhorn" in unknown
    # approximate gradients run only where they are named
    assert others == [0, 0, 0, 0, 0]
    assert "no_such_metric" in unknown_metric
    assert "x_floor" in unknown_metric


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_cpu_is_taken_and_said(tree):
    words = f"--op sinkhorn --batch 50 --n 4 --n-iters 3 --only {OURS}"
    assert "no GPU here: --device cpu" in ran(tree, *words.split(), *QUICK).stderr


METRICS = [
    "latency", "speedup", "accuracy", "gbps", "flops", "tflops", "x_floor", "max_abs_err", "grad_rel_err",
    "marginal_err", "host_us", "kept_bytes", "best_config",
]  # fmt: skip


@needs_checkout
def test_every_metric_is_in_the_json(tmp_path):
    path = tmp_path / "out.json"
    words = f"--mode fwd_bwd --only {OURS} --metrics {','.join(METRICS)} --num-inputs 1"
    ran("checkout", *SMALL, *QUICK, *words.split(), "--output-json", path)
    prefix, written = "tritonbench_sinkhorn_fwd_bwd[x_500x4x4 T=3-helion_sinkhorn]_", path.read_text()
    figures = {k.removeprefix(prefix): v for k, v in json.loads(written).items() if k.startswith(prefix)}
    assert set(figures) == set(METRICS)
    # a CPU has no allocator to ask
    assert {name for name, value in figures.items() if value is None} == {"kept_bytes"}
    assert figures["accuracy"] == 1.0
    assert figures["best_config"] == "vectorised PyTorch, logits kept"
    assert 0 < figures["max_abs_err"] < 1e-5
    assert figures["flops"] == 4 * 500 * 16 * 3 * 3
    assert figures["tflops"] > 0


@needs_checkout
def test_all_backends_of_the_package_run():
    done = ran("checkout", *SMALL[:-1], 1, *QUICK, "--mode", "fwd_bwd", "--csv")
    assert "torch_compile_max_autotune-accuracy" in done.stdout
    assert "helion_default" not in done.stdout
    assert "left out: " in done.stderr


STATUSES = {OURS: 0, "helion_default": 1}


@needs_checkout
def test_run_py_launches_it():
    if "--launch" not in (Path(CHECKOUT) / "run.py").read_text():
        pytest.skip("this tritonbench is older than run.py --launch (February 2026)")
    launched = "run.py", "--launch", "tritonbench_ops.launch", *SMALL, *QUICK, "--only"
    for (name, status), isolated in itertools.product(STATUSES.items(), ([], ["--isolate"])):
        done = python("checkout", *launched, name, *isolated)
        assert done.returncode == status, done.stderr[-3000:]


@needs_checkout
def test_plain_run_py_finds_a_link(tmp_path):
    shutil.copy(Path(CHECKOUT) / "run.py", tmp_path)
    shutil.copytree(Path(CHECKOUT) / "tritonbench", tmp_path / "tritonbench")
    link = tmp_path / "tritonbench" / "operators" / "sinkhorn"
    link.symlink_to(ROOT / "tritonbench_ops" / "sinkhorn")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    for name, status in STATUSES.items():
        done = forked.python(tmp_path / "run.py", *SMALL, "--only", name, env=environment, cwd=tmp_path)
        assert "eager" in done.stdout
        assert done.returncode == status, done.stderr[-3000:]
