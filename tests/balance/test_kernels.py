"""The bodies of sinkhorn_balance, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import pytest
import torch
from reference_mode import of_each_variant

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.balance.evidence import EVIDENCE, truths
from helion_sinkhorn.lab.balance.workloads import ROWS, BalanceWorkload
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.balance import eager, launch
from helion_sinkhorn.ops.balance.launch import Launches
from helion_sinkhorn.runtime.kernel import candidates


def check(workload):
    inputs, names = workload.make_inputs(), EVIDENCE.results(workload)
    right = truths(workload, *inputs)
    for name, found in EVIDENCE.run(workload, {}, names, *inputs).items():
        assert right[name].judge(found).reasons == [], name


@pytest.mark.parametrize("workload", [w for w in ROWS if "ci" in w.tags], ids=lambda w: w.name)
def test_every_workload_is_within_its_budget(workload):
    check(workload)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [2, 3, 31, 64, 130])
def test_columns(n, dtype):
    check(BalanceWorkload("columns", 2, frozenset(), "", n, 37, dtype, "normal"))


@pytest.mark.parametrize("call", [*EVIDENCE.kernel_calls(ROWS[0])], ids=lambda call: call[0])
def test_every_variant_that_is_tried_is_within_its_budget(call):
    name, of = call
    for choice in of_each_variant(candidates(KERNELS[name], of, DEVICES["h200"])):
        assert EVIDENCE.error(of, choice, "cpu") <= 1, choice


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
