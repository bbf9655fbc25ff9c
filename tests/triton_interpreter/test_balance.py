"""The Triton code generated from the bodies of sinkhorn_balance, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from tiles import assert_within, tiles

from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance import launch
from helion_sinkhorn.ops.balance.launch import Launches
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


def test_masked_rows_are_neither_read_nor_written():
    """A row of NaN whose d is 0 changes nothing, and NaN among the weights of that row stays."""
    x, w = torch.randn(2, 9, 19), torch.randn(2, 9, 19)
    live = torch.rand(2, 9) < 0.5
    live[:, 0], live[:, 1] = True, False
    c, size, found = torch.rand(2, 19), torch.ones(1), []
    for given in (x, torch.where(live.unsqueeze(2), x, torch.nan)):
        moved = torch.where(live.unsqueeze(2), w, torch.nan)
        Launches(CHOICES).update(given, c, live.float(), moved, size, 1e-20, True)
        assert torch.equal(moved.isnan().all(2), ~live)
        found.append(moved.nan_to_num())
    assert torch.equal(*found)
    assert not torch.equal(found[0][live], w[live])


def test_defaults():
    assert_within(BalanceWorkload("defaults", 2, frozenset(), "", 64, 70), {})
