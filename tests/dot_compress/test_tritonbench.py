"""What `--op dot_compress` shows of gradients beside Inductor's."""

from __future__ import annotations

import json

import pytest
import torch
from planted import outputs

from tritonbench_ops.dot_compress import cases as parts

SMALL = ["--op", "dot_compress", "--device", "cpu", "--warmup", "1", "--rep", "1"]


def test_the_reported_rule_is_that_of_assert_close():
    a, b = torch.randn(2, 1000).bfloat16()
    atol, rtol = parts.REPORTED
    count = parts.mismatches(a, b)
    assert count == int((~torch.isclose(a.double(), b.double(), rtol, atol)).sum())
    assert 100 < count < 1000
    assert parts.mismatches(b.clone().fill_(float("nan")), b) == 1000


BESIDE_INDUCTOR = """
import json, sys
from helion_sinkhorn import dot_compress
from tritonbench_ops.dot_compress import cases as parts

class Off(torch.autograd.Function):
    # three entries of dy by 1, which is beyond the tolerance where they are small, and by 0.1 in a fourth
    @staticmethod
    def forward(ctx, y):
        return y.clone()
    @staticmethod
    def backward(ctx, dy):
        dy = dy.clone()
        dy[0, :3, 0], dy[0, 3, 0] = dy[0, :3, 0] + 1, dy[0, 3, 0] + 0.1
        return dy

parts.BACKENDS["torch_compile"] = lambda: dot_compress
parts.BACKENDS["helion_off"] = lambda: lambda x, y, *z: dot_compress(x, Off.apply(y), *z)
from tritonbench_ops.register import class_of
run_of = class_of("dot_compress").run
def shown(self, *arguments, **options):
    run_of(self, *arguments, **options)
    print(json.dumps(self.output.result[0][1]["helion_off"].extra_metrics))
class_of("dot_compress").run = shown
"""


def test_the_table_answers_what_was_reported():
    """pytorch/helion#1661: mismatches and the largest difference of each gradient beside Inductor's."""
    size = ["--batch", "2", "--m", "30", "--d", "8", "--k", "4", "--with-z", "--precision", "fp32"]
    metrics = "accuracy,max_abs_err,shares,inductor_mismatches,inductor_max_diff"
    run = [*SMALL, "--only", "torch_compile,helion_off", *size, "--mode", "bwd", "--metrics", metrics]
    *_, table, statuses = outputs(BESIDE_INDUCTOR, [run])
    assert json.loads(statuses) == [1]
    table = json.loads(table)
    assert table["inductor_mismatches"] == "dx=0 dy=3 dz=0"
    assert table["inductor_max_diff"] == "dx=0 dy=1 dz=0"
    errors, shares = (
        dict(part.split("=") for part in table[name].split()) for name in ("max_abs_err", "shares")
    )
    assert float(errors["dy"]) == pytest.approx(1, abs=0.01)
    assert float(errors["dx"]) < 1e-3
    assert float(shares["dy"]) > 100
    assert float(shares["dx"]) <= 1
