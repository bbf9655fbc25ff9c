"""tritonbench_ops/upstream/sinkhorn in a tree of tritonbench (a stub of it): by itself, in every mode."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from forked import printed

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[2]
RUN = """
import json, sys
import torch
sys.path.insert(0, {tree!r})
from tritonbench.operators.op import load_opbench_by_name
from tritonbench.utils.parser import get_parser
Operator = load_opbench_by_name("sinkhorn")
import tritonbench.operators.sinkhorn.operator as module
{change}
options, extra = get_parser().parse_known_args({words!r})
operator = Operator(options, extra)
operator.run()
print(json.dumps({{
    "rows": [[list(x), {{n: [m.accuracy, m.extra_metrics, m.error_msg] for n, m in row.items()}}]
             for x, row in operator.output.result],
    "ours": sorted(name for name in sys.modules if name.startswith("tritonbench_ops")),
}}))
"""


def run(tmp_path, *words, change="", package=True, said=""):
    tree, own = tmp_path / "tree", ROOT / "tritonbench_ops" / "upstream" / "sinkhorn"
    shutil.copytree(ROOT / "tests" / "tritonbench" / "stub", tree)
    shutil.copytree(own, tree / "tritonbench" / "operators" / "sinkhorn")
    words = ["--op", "sinkhorn", "--device", "cpu", "--num-inputs", "1", *words]
    if not package:
        change = "assert module.helion_sinkhorn is None"
        (tree / "helion_sinkhorn.py").write_text("raise ModuleNotFoundError('helion_sinkhorn')")
    code = RUN.format(tree=str(tree), words=words, change=change)
    output = printed("-c", code, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert said in output
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize(
    ("mode", "flags", "n", "n_iters"),
    [("fwd", "--form deepseek", 4, 20), ("fwd_bwd", "--form log --n 8 --n-iters 7", 8, 7)],
)
def test_it_runs_by_itself_and_is_accurate(tmp_path, mode, flags, n, n_iters):
    words = f"--mode {mode} {flags} --metrics latency,accuracy,gbps,flops --only eager,helion"
    table = run(tmp_path, *words.split())
    ((x, row),) = table["rows"]
    assert x == [1024, n, n, n_iters]
    assert table["ours"] == []
    accuracy, extra, error = row["helion"]
    assert (accuracy, error) == (True, None)
    assert extra["flops"] == {"fwd": 1, "fwd_bwd": 3}[mode] * 4 * 1024 * n * n * n_iters
    assert extra["gbps"] > 0


WRONG = """
right = module.helion_sinkhorn

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p):
        return p * {value}
    @staticmethod
    def backward(ctx, dy):
        return dy * {gradient}

module.helion_sinkhorn = lambda *a, **o: Wrong.apply(right(*a, **o))
"""


@pytest.mark.parametrize(
    ("mode", "value", "gradient"),
    [
        pytest.param("fwd_no_grad", 1.001, 1, marks=pytest.mark.nightly("8 s; gradients run always")),
        ("bwd", 1, 1.001),
    ],
)
def test_a_wrong_function_is_inaccurate(tmp_path, mode, value, gradient):
    change = WRONG.format(value=value, gradient=gradient)
    table = run(tmp_path, "--mode", mode, "--metrics", "accuracy", "--only", "eager,helion", change=change)
    accuracy, _, error = table["rows"][0][1]["helion"]
    assert (accuracy, error) == (False, None)


def test_the_speedup_is_plotted(tmp_path):
    for package in ("pandas", "matplotlib"):
        pytest.importorskip(package, reason="triton.testing plots with pandas and matplotlib")
    change = "Operator.run = lambda self, run=Operator.run: (run(self), speed(self), self.plot())\n"
    change += "def speed(self):\n    for _, row in self.output.result: row['helion'].speedup = 7.5\n"
    table = run(tmp_path, "--metrics", "latency,speedup", "--only", "eager,helion", change=change, said="7.5")
    assert len(table["rows"]) == 1


def test_it_needs_no_helion_sinkhorn(tmp_path):
    table = run(tmp_path, "--metrics", "latency", "--skip", "torch_compile", package=False)
    assert list(table["rows"][0][1]) == ["eager"]
