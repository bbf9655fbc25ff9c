"""The Triton code generated from the bodies of sinkhorn_balance, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.lab.balance.evidence import EVIDENCE, truths
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance import launch
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.runtime.kernel import Choice

# tiles that neither the rows of a share nor the shares nor the columns divide
BLOCKS = {launch.NORMS: (4,), launch.STEP: (4,), launch.COLUMNS: (4, 8), launch.FINISH: (4,)}
CHOICES = {
    name: Choice(
        name, (("block_sizes", sizes), ("num_warps", 1)), (("programs", 1),) * (name == launch.STEP), "a test"
    )
    for name, sizes in BLOCKS.items()
}
SINKGD = BalanceOptions(10, 0.0, scale="none")


def check(workload, choices):
    (update,) = workload.make_inputs()
    found = EVIDENCE.run(workload, choices, ("u",), update)["u"]
    assert truths(workload, update)["u"].judge(found).reasons == []


@pytest.mark.parametrize("settings", [BalanceOptions(), SINKGD, BalanceOptions(4, first="cols")], ids=str)
@pytest.mark.parametrize(
    ("batch", "m", "n", "dtype"),
    [(1, 101, 19, torch.float32), (2, 37, 12, torch.bfloat16), (3, 2, 5, torch.float16)],
    ids=str,
)
def test_updates(batch, m, n, dtype, settings):
    values = "normal" if m == 2 else "model"
    workload = BalanceWorkload("tiles", batch, frozenset(), "", n, m, dtype, values, settings)
    check(workload, CHOICES)


def test_defaults():
    check(BalanceWorkload("defaults", 2, frozenset(), "", 64, 70), {})
