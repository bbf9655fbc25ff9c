"""The Triton code generated from the bodies of sinkhorn_balance, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from tiles import assert_within, tiles

from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance import launch
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.ops.balance.passes import Average

# tiles that neither the rows of a share nor the shares nor the columns divide
BLOCKS = dict.fromkeys(launch.KERNELS, (4,)) | {launch.COLUMNS: (4, 8)}
CHOICES = tiles(BLOCKS, **{launch.STEP: (("programs", 1),)})
SINKGD = BalanceOptions(10, 0.0, scale="none")


@pytest.mark.parametrize("settings", [BalanceOptions(), SINKGD, BalanceOptions(4, first="cols")], ids=str)
@pytest.mark.parametrize(
    ("batch", "m", "n", "dtype"),
    [(1, 101, 19, torch.float32), (2, 37, 12, torch.bfloat16), (3, 2, 5, torch.float16)],
    ids=str,
)
def test_updates(batch, m, n, dtype, settings):
    values = "normal" if m == 2 else "model"
    workload = BalanceWorkload("tiles", batch, frozenset(), "", n, m, dtype, values, settings)
    assert_within(workload, CHOICES)


@pytest.mark.parametrize(
    ("average", "settings"),
    [
        (Average(0.95, True), BalanceOptions()),
        (Average(0.9, False), BalanceOptions(4)),
        (Average(0.0, False), BalanceOptions()),
        (Average(0.0, False), SINKGD),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("batch", "m", "n", "dtype", "values"),
    [
        (1, 101, 19, torch.float32, "model"),
        (2, 37, 12, torch.bfloat16, "model"),
        (2, 30, 20, torch.float16, "normal"),
        (2, 41, 33, torch.bfloat16, "peaked"),
    ],
    ids=str,
)
def test_steps(batch, m, n, dtype, values, average, settings):
    workload = BalanceWorkload("tiles", batch, frozenset(), "", n, m, dtype, values, settings, average)
    assert_within(workload, CHOICES)


def test_defaults():
    assert_within(BalanceWorkload("defaults", 2, frozenset(), "", 64, 70), {})
