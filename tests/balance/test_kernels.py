"""The bodies of sinkhorn_balance, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.balance.workloads import ROWS
from helion_sinkhorn.ops.balance import eager, launch
from helion_sinkhorn.ops.balance.launch import Launches


def test_rows_that_are_masked_are_not_read():
    """All passes after the norms give the same whatever they hold, and weights of these rows stay."""
    (update,) = next(w for w in ROWS if w.name == "balance_model").make_inputs()
    live = update.norm(dim=2) > 0.05
    x = torch.where(live.unsqueeze(2), update, torch.nan)
    passes, d = Launches(), live.float()
    c, found = torch.rand(update.size(0), update.size(2)), []
    for given in (update, x):
        sums, stepped = passes.squares(given, c, d, passes.order(live), 1e-20, True, True)
        out = torch.empty_like(given)
        passes.finish(given, c, stepped, out, 1e-20, True, 1.0)
        w = torch.where(live.unsqueeze(2), update.flip(2), torch.inf)
        passes.update(given, c, stepped, w, torch.ones(1), 1e-20, True)
        assert w[~live].isinf().all()
        found.append((sums, stepped, out, w))
    assert not live.all()
    assert found[0][3][live].isfinite().all()
    assert all(map(torch.equal, *found))


def test_nan_reaches_the_weights():
    """By the kernels as by PyTorch: a row step makes d NaN, and the row is no masked one."""
    x, w = torch.ones(1, 8, 4), torch.ones(1, 8, 4)
    x[0, 3, 2] = torch.nan
    d = torch.ones(1, 8)
    d[0, 3], d[0, 5] = torch.nan, 0.0
    for passes in (Launches(), eager):
        passes.update(x, torch.ones(1, 4), d, moved := w.clone(), torch.ones(1), 1e-20, True)
        assert moved[0, 3].isnan().all()
        assert torch.equal(moved[0, 5], w[0, 5])
        assert moved[0, [0, 1, 2, 4, 6, 7]].isfinite().all()


def test_the_order_has_each_row_once_and_the_masked_ones_last():
    live = torch.rand(3, 50) < 0.4
    rows, count = Launches().order(live)
    assert count.tolist() == live.sum(1).tolist()
    for k, of in enumerate(rows.view(3, 50)):
        assert of[: count[k]].tolist() == (live[k].nonzero().flatten() + 50 * k).tolist()
        assert sorted(of.tolist()) == [*range(50 * k, 50 * k + 50)]


def test_shares_do_not_depend_on_the_batch():
    one, many = (Launches()._shares(torch.empty(b, 5000, 256)) for b in (1, 9))
    assert one == many > 1
    assert launch.call_for(256, torch.float32).columns == 256
