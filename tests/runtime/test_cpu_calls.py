"""Tensor operations that the CPU paths make: for few tokens each costs more than its arithmetic."""

from __future__ import annotations

import functools

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
    """The forward, the backward and the definition of one matrix, each with its arguments."""
    x, how = randn(1, n, m), (20, 1e-6, form, "rows")
    definition = functools.partial(reference.sinkhorn, n_iters=20, form=form)
    return (sinkhorn.forward, x, *how, torch.float32), (sinkhorn.backward, x, x, *how), (definition, x)


def of_fixed_points(solver, n):
    x = randn(1, n, n)
    return (
        (sinkhorn.forward, x, 20, 1e-6, "deepseek", "rows", torch.float32),
        (implicit.backward, x, x.softmax(-1), 20, "corrected", solver, torch.float32),
        (functools.partial(reference.sinkhorn, n_iters=20), x),
    )


def of_streams(name, n, tokens=1):
    f, x, post, comb = (randn(tokens, *size) for size in ((64,), (n, 64), (n,), (n, n)))
    of_fn = n * n + 2 * n
    fn, scale, base, mixes = randn(of_fn, n * 64), randn(3), randn(of_fn), randn(tokens, of_fn)
    rows, how = x.flatten(1), SplitOptions(n, 20, 1e-6, 2.0, 1e-6, 0.0, "io")
    update, upstream = Update(f, x, post, comb), CoefficientGradients(post, post, comb)
    norms = hc_mixes.forward(rows, fn, 1e-6, False)[1]
    split = functools.partial(reference.hc_split_sinkhorn, hc_mult=n)
    return {
        "hc_pre": ((hc_pre.forward, x, post), (hc_pre.backward, f, x, post), (reference.hc_pre, x, post)),
        "hc_post": (
            (hc_post.forward, update, "io"),
            (hc_post.backward, x, update, "io"),
            (reference.hc_post, f, x, post, comb),
        ),
        "hc_mixes": (
            (hc_mixes.forward, rows, fn, 1e-6, False),
            (hc_mixes.backward, mixes, rows, fn, mixes, norms),
            (reference.hc_mixes, rows, fn),
        ),
        "hc_split_sinkhorn": (
            (hc_split.forward, mixes, scale, base, how, torch.float32),
            (hc_split.backward, upstream, mixes, scale, base, how),
            (split, mixes, scale, base),
        ),
    }[name]


def of_elements(batch):
    x, y, z = randn(batch, 32, 16), randn(batch, 32, 8), randn(batch, 16, 8)
    backward = dot_compress.backward, y, x, y, z.unsqueeze(1)
    return (dot_compress.forward, x, y, z, 1), backward, (reference.dot_compress, x, y, z)


SIZES = (4, 4), (7, 16), (16, 16), (128, 128)
TABLE = [(of_matrices, (form, *size)) for form in ("deepseek", "log") for size in SIZES]
TABLE += [(of_fixed_points, row) for row in (("direct", 4), ("cg", 4), ("cg", 128))]
TABLE += [(of_streams, (of, n)) for of in ("hc_mixes", "hc_split_sinkhorn") for n in (4, 16)]
TABLE += [(of_streams, (of, *row)) for of in ("hc_pre", "hc_post") for row in ((4,), (16,), (16, 64))]
TABLE += [(of_elements, (batch,)) for batch in (1, 64)]
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
    forward, backward, definition = make(*row)
    made = calls(*forward)
    of_forward, of_both = MORE.get(row, LIMITS)
    assert made <= of_forward * calls(*definition) + FEW
    assert made + calls(*backward) <= of_both * calls(with_gradients, *definition) + FEW


def test_an_aligned_projection_is_not_copied():
    """Padding fn of 4 x 4096 streams took as long as three calls of the definition on one token."""
    x, fn = randn(1, 64), randn(24, 64)
    assert hc_mixes._projection(x, fn) is fn
    assert hc_mixes._projection(x, fn[:, 1:]).data_ptr() != fn.data_ptr()
