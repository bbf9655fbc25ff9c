"""`--op dot_compress`: its parts, and all of it under a stub of tritonbench beside planted backends."""

from __future__ import annotations

import json

import pytest
import torch
from planted import MODES, WITH_GRADIENTS, assert_failing, each_pass, outputs

from tritonbench_ops.dot_compress import cases as parts

SMALL = ["--op", "dot_compress", "--device", "cpu", "--warmup", "1", "--rep", "1", "--only"]
SHAPE = ["--batch", "3", "--m", "100", "--d", "32", "--k", "16", "--with-z"]
PLANTED = """
from helion_sinkhorn import dot_compress
from tritonbench_ops.dot_compress import cases as parts

planted = {
    "helion_wrong_gradient": lambda *t: WrongGradient.apply(dot_compress(*t)),
    "third_party": lambda *t: 1.02 * dot_compress(*t),
}
parts.BACKENDS.update({name: lambda f=f: f for name, f in planted.items()})
"""


@each_pass
def test_right_backends_pass_and_planted_ones_fail_in_the_modes_that_show_them(modes):
    failing = {
        "helion_dot_compress,helion_dot_compress_precise": (), "helion_wrong_gradient": WITH_GRADIENTS,
        "third_party": MODES,
    }  # fmt: skip
    metrics = ["--metrics", "latency,accuracy,inductor_mismatches,max_abs_err,x_floor,gbps,flops"]
    assert_failing(PLANTED, modes, ([*SMALL[:-1], *SHAPE, *metrics], failing))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("stale", "wrong"), [("b", {"out", "dx"}), ("db", {"dx", "dy", "dz"}), ("", set())])
def test_a_stale_column_of_an_intermediate_is_wrong(stale, wrong, dtype):
    """One of x'y or of x'grad in the middle element, from the element before."""
    shapes, draws = ((100, 32), (100, 16), (32, 16), (100, 16)), torch.Generator().manual_seed(0)
    x, y, z, grad = (torch.randn(3, *shape, generator=draws).to(dtype) for shape in shapes)
    wide = [t.float() for t in (x, y, z, grad)]
    between = {"b": wide[0].mT @ wide[1] + wide[2], "db": wide[0].mT @ wide[3]}
    if stale:
        between[stale][1, :, -1] = between[stale][0, :, -1]
    b, db = between.values()
    found = {"out": wide[0] @ b, "dx": wide[3] @ b.mT + wide[1] @ db.mT, "dy": wide[0] @ db, "dz": db}
    found = {name: t.to(dtype) for name, t in found.items()}
    exact = parts.testing_dot_compress.exact(x, y, z, grad)
    shares = {n: parts.largest_share(t, exact[n].value, exact[n].budget) for n, t in found.items()}
    assert {name for name, share in shares.items() if share > 1} == wrong
    gradients = [found[name] for name in ("dx", "dy", "dz")]
    share = parts.share_of_budget(None, (x, y, z, grad), found["out"], gradients)
    assert share == max(shares.values())


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
    run = [*SMALL, "torch_compile,helion_off", *size, "--mode", "bwd", "--metrics", metrics]
    *_, table, found = outputs(BESIDE_INDUCTOR, [run])
    assert json.loads(found) == [1]
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


def test_an_input_reads_well():
    (case,) = parts.cases(parts.parse(SHAPE), torch.bfloat16)
    assert parts.x_value(case) == "3x100x32 16 z"
