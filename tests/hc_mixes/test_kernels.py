"""The bodies of hc_mixes, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn
from reference_mode import of_each_variant

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.mixes.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.mixes.evidence import EVIDENCE
from helion_sinkhorn.lab.mixes.workloads import ROWS, MixesWorkload
from helion_sinkhorn.lab.operators import KERNELS, TRIALS, kernel_calls
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.ops.mhc.mixes import eager, launch
from helion_sinkhorn.ops.mhc.mixes.kernels import parts_of
from helion_sinkhorn.ops.mhc.mixes.space import CHUNK, MixesCall
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import candidates

WORKLOADS = [w for w in ROWS if "ci" in w.tags]


def by_bodies(w, x, dmixes, fn):
    mixes, norms = launch.forward(x, fn, w.norm_eps, w.eps_outside, w.precision)
    return mixes, *launch.backward(dmixes, x, fn, mixes, norms, w.precision)


def by_eager(w, x, dmixes, fn):
    rows = x.reshape(-1, fn.size(1))
    mixes, norms = eager.forward(rows, fn, w.norm_eps, w.eps_outside)
    dx, dfn = eager.backward(dmixes, rows, fn, mixes, norms)
    return mixes, dx.view(x.shape), dfn


def first_element(w):
    x, fn, weight, dmixes = w.make_inputs()
    return x[:1], dmixes[:1], (fn if weight is None else fn * weight)[None]


@pytest.mark.parametrize("run", [by_bodies, by_eager])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_every_workload_is_within_its_budget(workload, run):
    inputs = first_element(workload)
    truth, budgets = exact(workload, *inputs), error_budget(workload, *inputs)
    found = run(workload, *(t[0] for t in inputs))
    shares = {
        name: worst(t[None], truth[name], budgets[name]) for name, t in zip(RESULTS, found, strict=True)
    }
    assert max(shares.values()) <= 1, shares
    assert [t.dtype for t in found] == [torch.float32, workload.dtype, torch.float32]


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("workload", ["mixes_two_streams", "mixes_one_row"])
def test_the_gate_runs_these_kernels(workload, name):
    """The evidence launches them one by one, with choices of its own; on CPU tensors as on a GPU."""
    workload = next(w for w in WORKLOADS if w.name == workload)
    inputs = first_element(workload)
    expected = dict(zip(RESULTS, by_bodies(workload, *(t[0] for t in inputs)), strict=True))[name]
    found = EVIDENCE.run(workload, {}, (name,), *inputs)[name]
    assert torch.equal(found.reshape(expected.shape), expected)


@pytest.mark.parametrize("name", ["mixes_one_row", "mixes_odd"])
def test_the_calls_of_a_workload_are_those_that_are_used(name, monkeypatch):
    served = []

    def recorded(kernel, call, *arguments, **options):
        served.append((kernel.name, call))
        door.launch(kernel, call, *arguments, **options)

    monkeypatch.setattr(launch, "launch", recorded)
    workload = next(w for w in WORKLOADS if w.name == name)
    x, dmixes, fn = (t[0] for t in first_element(workload))
    by_bodies(workload, x, dmixes, fn)
    assert served == list(kernel_calls(workload))


CALLS = (
    MixesCall("bfloat16", 24, 4 * 96, "float32"),
    MixesCall("float32", 24, 4 * 96, "float32"),
    MixesCall("float16", 80, 633, "float32"),
    MixesCall("bfloat16", 3, CHUNK + 3, "tf32"),
)


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("name", launch.KERNELS)
def test_every_variant_that_is_tried_is_within_its_budget(name, call):
    for choice in of_each_variant(candidates(KERNELS[name], call, DEVICES["h200"])):
        assert TRIALS[name].error(call, choice, "cpu") <= 1, choice


@pytest.mark.parametrize("eps_outside", [False, True])
def test_norms_are_those_of_the_cpu_path(eps_outside):
    """r, and k, which the gradient of the norm has as a factor and which is 0 for a token of zeros."""
    x, fn = randn(9, 40), randn(8, 40, seed=1)
    x[4] = 0
    _, norms = launch.forward(x, fn, 0.1, eps_outside, "float32")
    torch.testing.assert_close(norms, eager.forward(x, fn, 0.1, eps_outside)[1])
    assert (norms[4, 1] == 0) == eps_outside


@pytest.mark.parametrize(("dtype", "count"), [(torch.float16, 2), (torch.float32, 3)])
def test_parts_hold_every_bit(dtype, count):
    """Numbers of ordinary size: the last part of one below 1e-33 is subnormal in bfloat16."""
    x = randn(1000, dtype=dtype) * 10.0 ** torch.randint(-4, 4, (1000,)).to(dtype)
    parts = parts_of(x, count)
    assert {p.dtype for p in parts} == {torch.bfloat16}
    assert torch.equal(sum(p.double() for p in parts), x.double())
    assert not torch.equal(sum(p.double() for p in parts[:-1]), x.double())


@pytest.mark.parametrize("lead", [(), (7,), (2, 3), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("merged", [False, True])
def test_any_leading_shape(lead, merged):
    """Streams or merged, the same bits in the same shapes."""
    w = MixesWorkload("asked", 1, frozenset(), "a test")
    x, fn, dmixes = randn(*lead, 3, 11, dtype=torch.bfloat16), randn(15, 33, seed=1), randn(*lead, 15, seed=2)
    expected = by_bodies(w, x.reshape(-1, 33), dmixes.reshape(-1, 15), fn)
    found = by_bodies(w, x.flatten(-2) if merged else x, dmixes, fn)
    assert [t.shape for t in found] == [dmixes.shape, (x.flatten(-2) if merged else x).shape, fn.shape]
    assert_equal([t.flatten() for t in found], [t.flatten() for t in expected])


def test_any_layout_and_any_dtype_of_fn():
    w = MixesWorkload("asked", 1, frozenset(), "a test")
    x, fn, dmixes = randn(6, 4, 10, dtype=torch.bfloat16), randn(24, 40, seed=1).half(), randn(6, 24, seed=2)
    expected = by_bodies(w, x, dmixes, fn.float())
    spread = torch.zeros(6, 4, 21, dtype=torch.bfloat16)[..., 1:11].copy_(x)
    moved = x.mT.contiguous().mT, dmixes.mT.contiguous().mT, fn.mT.contiguous().mT
    assert not any(t.is_contiguous() for t in (spread, *moved))
    assert_equal(by_bodies(w, *moved), expected)
    assert_equal(by_bodies(w, spread, dmixes, fn), expected)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 256, 257, 300])
@pytest.mark.parametrize("m", [24, 80])
def test_shares_of_any_number_of_tokens(m, tokens):
    """dfn is summed in shares, some of which may be empty; of more than 32 rows dx is shared out too."""
    w = MixesWorkload("asked", 1, frozenset(), "a test", dtype=torch.float32)
    inputs = randn(1, tokens, 20), randn(1, tokens, m, seed=2), randn(1, m, 20, seed=1)
    truth, budgets = exact(w, *inputs), error_budget(w, *inputs)
    found = by_bodies(w, *(t[0] for t in inputs))
    for name, t in zip(RESULTS, found, strict=True):
        assert worst(t[None], truth[name], budgets[name]) <= 1, name
