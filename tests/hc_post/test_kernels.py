"""The bodies of hc_post, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import pytest
import torch
from hc_streams import LAYOUTS, post_errors, post_inputs
from reference_mode import of_each_variant

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, TRIALS
from helion_sinkhorn.lab.post.workloads import ROWS
from helion_sinkhorn.ops.mhc.post import eager, launch
from helion_sinkhorn.runtime.kernel import candidates

WORKLOADS = [w for w in ROWS if "ci" in w.tags]
DTYPES = torch.float32, torch.bfloat16, torch.float16
GRADIENTS = ("df", "dx", "dpost", "dcomb")


def results(f, x, post, comb, bias, grad, comb_order="io", run=launch):
    given = f, x, post, comb, bias, comb_order
    return {"out": run.forward(*given)} | dict(zip(GRADIENTS, run.backward(grad, *given), strict=True))


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_every_workload_is_within_its_budget(workload):
    inputs = workload.make_inputs()
    errors = post_errors(results(*inputs, **workload.options), *inputs, **workload.options)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("n", range(1, 17))
def test_streams(n):
    dtype, comb_order = DTYPES[n % 3], ("io", "oi")[n % 2]
    inputs = post_inputs(3, n=n, c=24, dtype=dtype, has_bias=n % 2 == 0)
    errors = post_errors(results(*inputs, comb_order), *inputs, comb_order)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("name", [launch.FORWARD, launch.BACKWARD])
@pytest.mark.parametrize(("n", "c"), [(4, 512), (4, 67), (1, 2), (16, 34)])
def test_every_variant_that_is_tried_is_within_its_budget(name, n, c):
    call = launch.call_for(n, c, torch.bfloat16)
    for choice in of_each_variant(candidates(KERNELS[name], call, DEVICES["h200"])):
        assert TRIALS[name].error(call, choice, "cpu") <= 1, choice


@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (2, 1, 3)], ids=str)
def test_results_have_the_shapes_and_dtypes_of_what_pytorch_makes(lead, has_bias):
    wide, narrow = torch.float32, torch.bfloat16
    for f_dtype, coefficients in ((wide, narrow), (narrow, wide), (torch.float64, torch.float64)):
        inputs = post_inputs(
            *lead, dtype=narrow, f_dtype=f_dtype, coefficients=coefficients, has_bias=has_bias
        )
        found, expected = results(*inputs), results(*inputs, run=eager)
        for name, t in expected.items():
            same = found[name].shape, found[name].dtype, found[name].stride()
            assert same == (t.shape, t.dtype, t.stride()), name
        errors = post_errors(found, *inputs)
        assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout):
    *given, bias, grad = post_inputs(3, 5)
    moved = *(LAYOUTS[layout](t) for t in given), bias.repeat_interleave(2)[::2], LAYOUTS[layout](grad)
    found, expected = results(*moved), results(*(t.contiguous() for t in moved))
    assert all(torch.equal(found[name], t) for name, t in expected.items())
