"""The bodies of hc_mixes, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn

from helion_sinkhorn.lab.mixes.budget import RESULTS
from helion_sinkhorn.lab.mixes.evidence import EVIDENCE
from helion_sinkhorn.lab.mixes.workloads import ROWS
from helion_sinkhorn.lab.operators import kernel_calls
from helion_sinkhorn.ops.mhc.mixes import launch
from helion_sinkhorn.ops.mhc.mixes.kernels import parts_of
from helion_sinkhorn.runtime import launch as door

WORKLOADS = [w for w in ROWS if "ci" in w.tags]


def by_bodies(w, x, dmixes, fn):
    mixes, norms = launch.forward(x, fn, w.norm_eps, w.eps_outside, w.precision)
    return mixes, *launch.backward(dmixes, x, fn, mixes, norms, w.precision)


def first_element(w):
    x, fn, weight, dmixes = w.make_inputs()
    return x[:1], dmixes[:1], (fn if weight is None else fn * weight)[None]


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


@pytest.mark.parametrize(("dtype", "count"), [(torch.float16, 2), (torch.float32, 3)])
def test_parts_hold_every_bit(dtype, count):
    """Numbers of ordinary size: the last part of one below 1e-33 is subnormal in bfloat16."""
    x = randn(1000, dtype=dtype) * 10.0 ** torch.randint(-4, 4, (1000,)).to(dtype)
    parts = parts_of(x, count)
    assert {p.dtype for p in parts} == {torch.bfloat16}
    assert torch.equal(sum(p.double() for p in parts), x.double())
    assert not torch.equal(sum(p.double() for p in parts[:-1]), x.double())
