"""The bodies of hc_pre, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import pytest
import torch
from hc_streams import LAYOUTS, pre_errors, pre_inputs
from reference_mode import of_each_variant

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, TRIALS
from helion_sinkhorn.lab.pre.workloads import PLAIN
from helion_sinkhorn.ops.mhc.pre import eager, launch
from helion_sinkhorn.runtime.kernel import candidates

WORKLOADS = [w for w in PLAIN if "ci" in w.tags]


def results(x, pre, dy, run=launch):
    return {"y": run.forward(x, pre)} | dict(zip(("dx", "dpre"), run.backward(dy, x, pre), strict=True))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_every_workload_is_within_its_budget(workload):
    inputs = workload.make_inputs()
    errors = pre_errors(results(*inputs), *inputs)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("n", range(1, 17))
def test_streams(n):
    inputs = pre_inputs(7, n=n, c=40, dtype=(torch.float32, torch.bfloat16, torch.float16)[n % 3])
    errors = pre_errors(results(*inputs), *inputs)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("name", [launch.FORWARD, launch.BACKWARD])
@pytest.mark.parametrize(("n", "c"), [(4, 512), (4, 67), (1, 1), (16, 130)])
def test_every_variant_that_is_tried_is_within_its_budget(name, n, c):
    call = launch.call_for(n, c, torch.bfloat16)
    for choice in of_each_variant(candidates(KERNELS[name], call, DEVICES["h200"])):
        assert TRIALS[name].error(call, choice, "cpu") <= 1, choice


@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (2, 1, 3)], ids=str)
def test_results_have_the_shapes_and_dtypes_of_what_pytorch_makes(lead):
    for coefficients in (torch.float32, torch.bfloat16, torch.float64):
        inputs = pre_inputs(*lead, dtype=torch.bfloat16, coefficients=coefficients)
        found, expected = results(*inputs), results(*inputs, run=eager)
        for name, t in expected.items():
            same = found[name].shape, found[name].dtype, found[name].stride()
            assert same == (t.shape, t.dtype, t.stride()), name
        errors = pre_errors(found, *inputs)
        assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout):
    moved = [LAYOUTS[layout](t) for t in pre_inputs(3, 5)]
    found, expected = results(*moved), results(*(t.contiguous() for t in moved))
    assert all(torch.equal(found[name], t) for name, t in expected.items())
