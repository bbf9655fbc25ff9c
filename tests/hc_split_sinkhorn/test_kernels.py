"""The bodies of hc_split_sinkhorn, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("helion", reason="helion is not installed")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.operators import KERNELS
from helion_sinkhorn.ops.hc_split_sinkhorn import eager, launch
from helion_sinkhorn.ops.hc_split_sinkhorn.budget import error_budget, exact
from helion_sinkhorn.ops.hc_split_sinkhorn.trials import TRIALS
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import ROWS
from helion_sinkhorn.runtime.kernel import candidates
from helion_sinkhorn.testing.rounding import worst

WORKLOADS = [w for w in ROWS if "ci" in w.tags]


def results(workload, mixes, dpre, dpost, dcomb, scale, base, run=launch):
    """Every result of the first element; the sums are its own."""
    arguments = mixes[0], scale[0], base[0], *workload.arguments
    found = dict(zip(("pre", "post", "comb"), run.forward(*arguments, torch.float32), strict=True))
    dmixes, sums = run.backward(dpre[0], dpost[0], dcomb[0], *arguments)
    dbase, dscale = sums.unsqueeze(0).split((mixes.size(-1), 3), -1)
    return {
        name: t[None] for name, t in {**found, "dmixes": dmixes, "dbase": dbase, "dscale": dscale}.items()
    }


def first_element(workload):
    mixes, scale, base, *gradients = workload.make_inputs()
    return *(t[:1] for t in (mixes, *gradients)), scale[None], base[None]


@pytest.mark.parametrize("run", [launch, eager], ids=["bodies", "eager"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_every_workload_is_within_its_budget(workload, run):
    inputs = first_element(workload)
    truth, budgets = exact(workload, *inputs), error_budget(workload, *inputs)
    found = results(workload, *inputs, run=run)
    shares = {name: worst(t, truth[name], budgets[name]) for name, t in found.items()}
    assert max(shares.values()) <= 1, shares


@pytest.mark.parametrize("name", [launch.FORWARD, launch.BACKWARD])
@pytest.mark.parametrize(("n", "n_iters", "eps"), [(4, 20, 1e-6), (8, 5, 1e-6), (3, 5, 1e-6), (4, 20, 0.0)])
def test_every_config_that_is_tried_is_within_its_budget(name, n, n_iters, eps):
    call = launch.call_for(n, n_iters, eps, torch.float32)
    for choice in candidates(KERNELS[name], call, DEVICES["h200"]):
        assert TRIALS[name].error(call, choice, "cpu") <= 1, choice


@pytest.mark.parametrize("unused", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_outputs_that_nothing_used(unused):
    workload = WORKLOADS[0]
    mixes, *gradients, scale, base = first_element(workload)
    arguments = mixes, scale[0], base[0], *workload.arguments
    given = [None if k in unused else t for k, t in enumerate(gradients)]
    zeros = [torch.zeros_like(t) if k in unused else t for k, t in enumerate(gradients)]
    for found, expected in zip(
        launch.backward(*given, *arguments), launch.backward(*zeros, *arguments), strict=True
    ):
        assert torch.equal(found, expected)


def test_the_room_for_sums_is_enough_when_a_choice_is_refused(monkeypatch):
    workload, refused = WORKLOADS[0], []
    inputs = first_element(workload)
    expected = results(workload, *inputs)
    run_and_keep = launch.run_and_keep

    def refuse_once(kernel, views, own, tensors, key):
        if not refused:
            refused.append(views[10].size(0))
            raise RuntimeError("out of resource")
        run_and_keep(kernel, views, own, tensors, key)

    call = launch.call_for(workload.n, workload.n_iters, workload.eps, workload.dtype)
    default = launch.default_choice(KERNELS[launch.BACKWARD], call, DEVICES["h200"])
    stored = launch.Choice(default.kernel, default.config, default.variant, "a stored one", True)
    monkeypatch.setattr(launch.serving, "choose", lambda *a: default if refused else stored)
    monkeypatch.setattr(launch.serving.choose, "cache_clear", lambda: None, raising=False)
    monkeypatch.setattr(launch, "run_and_keep", refuse_once)
    mixes, dpre, dpost, dcomb, scale, base = (t[0] for t in inputs)
    dmixes, _ = launch.backward(dpre, dpost, dcomb, mixes, scale, base, *workload.arguments)
    assert refused
    assert torch.equal(dmixes, expected["dmixes"][0])
