"""Tensor operations that the CPU paths make: for few tokens each costs more than its arithmetic."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn
from torch.utils._python_dispatch import TorchDispatchMode

from helion_sinkhorn import reference
from helion_sinkhorn.ops.dot_compress import eager as dot_compress
from helion_sinkhorn.ops.mhc.mixes import eager as hc_mixes
from helion_sinkhorn.ops.mhc.post import eager as hc_post
from helion_sinkhorn.ops.mhc.pre import eager as hc_pre
from helion_sinkhorn.ops.mhc.split import eager as hc_split
from helion_sinkhorn.ops.mhc.split.options import CoefficientGradients, SplitOptions
from helion_sinkhorn.ops.sinkhorn import eager as sinkhorn
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit
from helion_sinkhorn.runtime.updates import Update


class Count(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.calls += 1
        return function(*arguments, **(options or {}))


def calls(run, *arguments) -> int:
    with Count() as count:
        run(*arguments)
    return count.calls


def with_gradients(definition, *arguments) -> None:
    leaves = [t.clone().requires_grad_() for t in arguments]
    results = definition(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    torch.autograd.grad(results, leaves, [torch.ones_like(t) for t in results])


def of_matrices(form, n, m):
    """(forward, backward, definition, its arguments) of one matrix."""
    x, how = randn(1, n, m), (20, 1e-6, form, "rows")
    return (
        lambda: sinkhorn.forward(x, *how, torch.float32),
        lambda: sinkhorn.backward(x, x, *how),
        lambda x: reference.sinkhorn(x, 20, form=form),
        (x,),
    )


def of_fixed_points(solver, n):
    x = randn(1, n, n)
    return (
        lambda: sinkhorn.forward(x, 20, 1e-6, "deepseek", "rows", torch.float32),
        lambda: implicit.backward(x, x.softmax(-1), 20, "corrected", solver, torch.float32),
        lambda x: reference.sinkhorn(x, 20),
        (x,),
    )


def of_streams(name, n, tokens=1):
    f, x, post, comb = (randn(tokens, *size) for size in ((64,), (n, 64), (n,), (n, n)))
    fn, scale, base, mixes = (
        randn(n * n + 2 * n, n * 64),
        randn(3),
        randn(n * n + 2 * n),
        randn(tokens, n * n + 2 * n),
    )
    rows, how = x.flatten(1), SplitOptions(n, 20, 1e-6, 2.0, 1e-6, 0.0, "io")
    update, upstream = Update(f, x, post, comb), CoefficientGradients(post, post, comb)
    norms = hc_mixes.forward(rows, fn, 1e-6, False)[1]
    return {
        "hc_pre": (
            lambda: hc_pre.forward(x, post),
            lambda: hc_pre.backward(f, x, post),
            reference.hc_pre,
            (x, post),
        ),
        "hc_post": (
            lambda: hc_post.forward(update, "io"),
            lambda: hc_post.backward(x, update, "io"),
            reference.hc_post,
            (f, x, post, comb),
        ),
        "hc_mixes": (
            lambda: hc_mixes.forward(rows, fn, 1e-6, False),
            lambda: hc_mixes.backward(mixes, rows, fn, mixes, norms),
            reference.hc_mixes,
            (rows, fn),
        ),
        "hc_split_sinkhorn": (
            lambda: hc_split.forward(mixes, scale, base, how, torch.float32),
            lambda: hc_split.backward(upstream, mixes, scale, base, how),
            lambda *given: reference.hc_split_sinkhorn(*given, n),
            (mixes, scale, base),
        ),
    }[name]


def of_elements(batch):
    x, y, z = randn(batch, 32, 16), randn(batch, 32, 8), randn(batch, 16, 8)
    b = z.unsqueeze(1)
    return (
        lambda: dot_compress.forward(x, y, z, 1),
        lambda: dot_compress.backward(y, x, y, b),
        reference.dot_compress,
        (x, y, z),
    )


MATRICES = [(form, *size) for form in ("deepseek", "log") for size in ((4, 4), (7, 16), (16, 16), (128, 128))]
FIXED_POINTS = [("direct", 4), ("cg", 4), ("cg", 128)]
STREAMS = [(name, n) for name in ("hc_pre", "hc_post", "hc_mixes", "hc_split_sinkhorn") for n in (4, 16)]
STREAMS += [(name, 16, 64) for name in ("hc_pre", "hc_post")]
ELEMENTS = [(1,), (64,)]
TABLE = [(of_matrices, row) for row in MATRICES]
TABLE += [(of_fixed_points, row) for row in FIXED_POINTS]
TABLE += [(of_streams, row) for row in STREAMS]
TABLE += [(of_elements, row) for row in ELEMENTS]


LIMITS = 4, 3
"""Times the operations of the definition, forward and with gradients: half of the package's are views and
results written in place, which take less than what autograd keeps of the definition's."""
MORE = {("cg", 128): (4, 5)}
"""Conjugate gradients take steps of their own."""
FEW = 10
"""What a call of few operations may take besides: shapes, and room for its results."""


@pytest.mark.parametrize(("make", "row"), TABLE, ids=lambda value: getattr(value, "__name__", str(value)))
def test_one_token_takes_operations_as_the_definition_does(make, row):
    """It took 15,201 of them for a matrix of 128 x 128 where the definition takes 119."""
    forward, backward, definition, arguments = make(*row)
    made = calls(forward)
    of_forward, of_both = MORE.get(row, LIMITS)
    assert made <= of_forward * calls(definition, *arguments) + FEW
    assert made + calls(backward) <= of_both * calls(with_gradients, definition, *arguments) + FEW


def test_an_aligned_projection_is_not_copied():
    """Padding fn of 4 x 4096 streams took as long as three calls of the definition on one token."""
    x, fn = randn(1, 64), randn(24, 64)
    assert hc_mixes._projection(x, fn) is fn
    assert hc_mixes._projection(x, fn[:, 1:]).data_ptr() != fn.data_ptr()
