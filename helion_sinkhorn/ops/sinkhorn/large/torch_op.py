"""The torch operators of large matrices and of marginals.

`helion_sinkhorn::sinkhorn_large` returns P, its potentials f (..., n) and g (..., m), empty with eps, and the
vectors of iterations that the gradient needs, (T, ..., n) and (T, ..., m), with T = 0 unless `keep`.  Its
backward returns the gradients of the logits and of the marginals, (..., 0) without marginals.  `groups` names
the process groups over which the rows are sharded; there are `lines` rows in all.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.large import eager
from helion_sinkhorn.ops.sinkhorn.large.ranks import ranks_of
from helion_sinkhorn.ops.sinkhorn.large.sides import Matrices, empty_gradients, empty_results
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import (
    Implementations,
    define,
    differentiable,
    last,
    without_autocast,
)

FORWARD, BACKWARD = "sinkhorn_large", "sinkhorn_large_backward"
implementations = Implementations("helion_sinkhorn.ops.sinkhorn.large.launch")


def forward(
    logits, log_rows, log_columns, n_iters, eps, first, temperature, keep, implementation, out_dtype, groups,
    lines,
):  # fmt: skip
    """(P, f, g, vectors of rows, vectors of columns)."""
    given = Matrices(logits, log_rows, log_columns, eps, first, temperature, ranks_of(groups, first, lines))
    if implementation == "helion":
        with implementations.launching(logits) as launch:
            return launch.forward(given, n_iters, keep, out_dtype)
    with without_autocast(logits):
        return eager.forward(given, n_iters, keep, out_dtype)


def backward(
    dp, df, dg, logits, log_rows, log_columns, of_rows, of_columns, eps, first, temperature, implementation,
    groups, lines,
):  # fmt: skip
    """(dX, gradients of both marginals) from the kept vectors of the iterations."""
    given = Matrices(logits, log_rows, log_columns, eps, first, temperature, ranks_of(groups, first, lines))
    if implementation == "helion":
        with implementations.launching(logits) as launch:
            return launch.backward(dp, df, dg, given, of_rows, of_columns)
    with without_autocast(logits):
        return eager.backward(dp, df, dg, given, of_rows, of_columns)


def _empty_results(
    logits, log_rows, log_columns, n_iters, eps, first, temperature, keep, implementation, out_dtype, *ranks
):
    return empty_results(logits, n_iters, eps, keep, implementation, out_dtype)


def _empty_gradients(dp, df, dg, logits, log_rows, *others):
    return empty_gradients(logits, log_rows)


def _keep(ctx, inputs, output):
    ctx.n_iters, ctx.eps, ctx.first, ctx.temperature, ctx.kept, ctx.how, _, *ctx.ranks = inputs[3:]
    ctx.save_for_backward(*inputs[:3], *(output[3:] if ctx.kept else ()))
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1 if ctx.eps else 3 :])


def _gradient(ctx, dp, df, dg, *_):
    if dp is None and df is None and dg is None:
        return (None,) * 12
    logits, log_rows, log_columns, *vectors = ctx.saved_tensors
    marginals = log_rows, log_columns
    # kernels of matrices whose rows ranks share have no gradient
    how = "pytorch" if ctx.ranks[0] else ctx.how
    if not ctx.kept:
        # the forward did not know that a gradient would be needed, so it runs again
        options = ctx.n_iters, ctx.eps, ctx.first, ctx.temperature, True, how, logits.dtype, *ctx.ranks
        with torch.no_grad():
            *_, vectors_of_rows, vectors_of_columns = call(logits, *marginals, *options)
        vectors = [vectors_of_rows, vectors_of_columns]
    given = dp, df, dg, logits, *marginals, *vectors
    dx, *gradients = apply_backward(*given, ctx.eps, ctx.first, ctx.temperature, how, *ctx.ranks)
    of_marginals = [None if t is None else d.to(t.dtype) for t, d in zip(marginals, gradients, strict=True)]
    return dx, *of_marginals, *[None] * 9


call = define(
    FORWARD,
    "(Tensor logits, Tensor? log_rows, Tensor? log_columns, int n_iters, float eps, str first,"
    " float temperature, bool keep, str implementation, ScalarType out_dtype, str[] groups, int lines)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    forward, _empty_results, 3,
)  # fmt: skip
call_backward = define(
    BACKWARD,
    "(Tensor? dp, Tensor? df, Tensor? dg, Tensor logits, Tensor? log_rows, Tensor? log_columns,"
    " Tensor of_rows, Tensor of_columns, float eps, str first, float temperature, str implementation,"
    " str[] groups, int lines)"
    " -> (Tensor, Tensor, Tensor)",
    backward, _empty_gradients, 8,
)  # fmt: skip
apply = differentiable(FORWARD, "sinkhorn", call, _keep, _gradient)
apply_backward = last(BACKWARD, "sinkhorn", call_backward)
roles(FORWARD, "ttt -> tttss", _empty_results, before(2))
roles(BACKWARD, "ttttttss -> ttt", _empty_gradients, before(2, 3))
