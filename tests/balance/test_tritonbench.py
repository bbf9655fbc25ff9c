"""`--op sinkhorn_balance`: its parts, and all of it under a stub of tritonbench beside planted backends."""

from __future__ import annotations

import pytest
import torch
from planted import statuses

from helion_sinkhorn import sinkhorn_balance
from tritonbench_ops.sinkhorn_balance import cases as parts

SMALL = ["--op", "sinkhorn_balance", "--device", "cpu", "--warmup", "1", "--rep", "1", "--only"]
SHAPE = ["--rows", "100", "--columns", "40"]
PLANTED = """
from helion_sinkhorn import sinkhorn_balance
from tritonbench_ops.sinkhorn_balance import cases as parts

def spoiled(update):
    out = sinkhorn_balance(update)
    out[0, 50, 3] = float("nan")
    return out

planted = {
    "helion_a_step_less": lambda update: sinkhorn_balance(update, steps=10),
    "helion_in_place": lambda update: sinkhorn_balance(update, out=update),
    "helion_raises": raises,
    "nan_in_the_middle": spoiled,
}
parts.BACKENDS.update({name: lambda f=f: f for name, f in planted.items()})
"""


def test_right_backends_pass_and_planted_ones_fail():
    names = (
        "helion_sinkhorn_balance", "helion_a_step_less", "helion_in_place", "helion_raises",
        "nan_in_the_middle",
    )  # fmt: skip
    metrics = ["--metrics", "latency,accuracy,x_floor,gbps,flops"]
    modes = ("fwd", "fwd_no_grad", "bwd")
    runs = [[*SMALL, name, *SHAPE, *metrics, "--mode", mode] for name in names for mode in modes]
    assert statuses(PLANTED, runs) == [0, 0, 1] + 4 * [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_entry_is_tested(dtype):
    (case,) = parts.cases(parts.parse(SHAPE), dtype)
    (update,) = parts.inputs(case, "cpu")
    out = sinkhorn_balance(update)
    assert parts.share_of_budget(case, (update,), out) <= 1
    out[0, 51, -1] *= 1.05
    assert parts.share_of_budget(case, (update,), out) > 1


def test_bytes_moved():
    (case,) = parts.cases(parts.parse(["--rows", "8", "--columns", "4"]), torch.bfloat16)
    assert parts.bytes_moved(case) == (7 + 1) * 8 * 4 * 2
