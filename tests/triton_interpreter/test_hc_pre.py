"""The Triton code generated from the bodies of hc_pre, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from hc_streams import pre_errors, pre_inputs

from helion_sinkhorn.lab.pre.normed import budget as normed_budget
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.ops.mhc.pre import launch
from helion_sinkhorn.ops.mhc.pre.normed import launch as normed
from helion_sinkhorn.ops.mhc.pre.normed import space as normed_space
from helion_sinkhorn.runtime.kernel import Choice

# two tiles and a tail of tokens, and of columns
TOKENS, COLUMNS = 5, 67
BLOCKS = {launch.FORWARD: (2, 32), launch.BACKWARD: (32, 2)}
"""(tokens, columns), and in the backward (columns, tokens)."""


def choice(kernel):
    config = ("block_sizes", BLOCKS[kernel]), ("num_warps", 1)
    return Choice(kernel, config, (), "a test")


CALLS = [(n, torch.float32) for n in (1, 3, 4)] + [(4, torch.bfloat16), (5, torch.float16)]


@pytest.mark.parametrize(("n", "dtype"), CALLS, ids=str)
def test_values_and_gradients(n, dtype):
    inputs = x, pre, dy = pre_inputs(TOKENS, n=n, c=COLUMNS, dtype=dtype)
    y = launch.forward(x, pre, choice(launch.FORWARD))
    dx, dpre = launch.backward(dy, x, pre, choice=choice(launch.BACKWARD))
    errors = pre_errors({"y": y, "dx": dx, "dpre": dpre}, *inputs)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("shape", [(TOKENS, 4, 1), (1, 2, 33), (2, 2, 2, 40)], ids=str)
def test_defaults_on_other_shapes(shape):
    *lead, n, c = shape
    inputs = x, pre, dy = pre_inputs(*lead, n=n, c=c, dtype=torch.bfloat16, coefficients=torch.bfloat16)
    dx, dpre = launch.backward(dy, x, pre)
    errors = pre_errors({"y": launch.forward(x, pre), "dx": dx, "dpre": dpre}, *inputs)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize(("n", "dtype"), [(3, torch.float32), (4, torch.bfloat16)], ids=str)
def test_the_norm_behind_it(n, dtype):
    """More tokens than programs of the backward, so that some take two."""
    tokens = 1, normed_space.SHARES + 3
    x, pre, du = pre_inputs(*tokens, n=n, c=24, dtype=dtype)
    weight = torch.linspace(0.5, 1.5, 24)
    found = normed.forward(x, pre, weight, 1e-6), *normed.backward(du, x, pre, weight, 1e-6, dtype)
    given = x, pre, du, weight.unsqueeze(0), 1e-6
    exact, allowed = normed_budget.exact(*given), normed_budget.error_budget(*given)
    for name, t in zip(normed_budget.RESULTS, found, strict=True):
        assert worst(t.view(exact[name].shape), exact[name], allowed[name]) <= 1, name
