"""The torch operators of sinkhorn_balance, which have no gradient.

`helion_sinkhorn::sinkhorn_balance` returns the balanced update, `sinkhorn_balance_into` writes it to `out`,
which may be the update, and `sinkhorn_balance_step` updates weights of one shape by it.  All take any
leading shape; `groups` names the process groups over which the rows are sharded, and `implementation` is
"helion" or "pytorch".
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.balance import eager
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.ops.balance.passes import Average, balance
from helion_sinkhorn.ops.balance.passes import step as optimizer_step
from helion_sinkhorn.runtime.gradients import NAMESPACE, register_gradient
from helion_sinkhorn.runtime.tokens import batch_first
from helion_sinkhorn.runtime.torch_op import Implementations, define, operator_named
from helion_sinkhorn.runtime.views import flattened

NAME, INTO, STEP = "sinkhorn_balance", "sinkhorn_balance_into", "sinkhorn_balance_step"
OPTIONS = "int steps, float zero_row_threshold, float eps, str scale, str first"
implementations = Implementations("helion_sinkhorn.ops.balance.launch:LAUNCHES", eager)


def into(update, out, *rest):
    """Write the balanced update to out; see api.sinkhorn_balance."""
    *options, groups, implementation = rest
    _refuse_partial_overlap(update, out)
    x, options = flattened(update, 2), BalanceOptions(*options)
    written = out.view(x.shape) if out.is_contiguous() else torch.empty_like(x)
    with _passes(x, implementation) as passes:
        balance(x, written, options, groups, passes)
    if passes is not eager:
        # autograd does not see what kernels write
        torch.autograd.graph.increment_version(written)
    if not out.is_contiguous():
        out.copy_(written.view(out.shape))


def _passes(x, implementation):
    """The context of the passes of x (B, m, n)."""
    # for an axis of 1 Helion would make another program
    return implementations.chosen_for(x, "pytorch" if x.size(1) == 1 else implementation)


def step(weights, gradients, averages, size, *rest):
    """Update weights, and the averages of their gradients; see passes.step."""
    momentum, nesterov, *options, groups, implementation = rest
    moved = [*weights, *averages]
    places = [flattened(t, 2) for t in moved]
    given = places[: len(weights)], [flattened(g, 2) for g in gradients], places[len(weights) :]
    average, options = Average(momentum, nesterov), BalanceOptions(*options)
    with _passes(given[1][0], implementation) as passes:
        optimizer_step(*given, average, size, options, groups, passes)
    for t, place in zip(moved, places, strict=True):
        if place.data_ptr() != t.data_ptr():
            t.copy_(place.view(t.shape))
        elif passes is not eager:
            torch.autograd.graph.increment_version(t)


def _refuse_partial_overlap(update, out) -> None:
    """Raise ValueError where rows of out would be written over rows of the update that are still to be read.

    Tensors that are not contiguous are copied, so they are no problem.  The check is here, where tensors have
    addresses.
    """
    apart = abs(out.data_ptr() - update.data_ptr())
    if 0 < apart < out.numel() * out.element_size() and out.is_contiguous() and update.is_contiguous():
        raise ValueError(
            f"out begins {apart} bytes from update and shares part of its memory; pass update itself, or a "
            "tensor that shares none"
        )


def balanced(update, *rest):
    """The balanced update, contiguous."""
    out = torch.empty(update.shape, dtype=update.dtype, device=update.device)
    into(update, out, *rest)
    return out


def no_gradient(ctx, *given):
    """A derivative that raises."""
    raise NotImplementedError(
        "sinkhorn_balance has no gradient: it is a step of an optimizer. Call it under torch.no_grad() or on "
        "update.detach(); helion_sinkhorn.reference.sinkhorn_balance is differentiable by autograd."
    )


_SCHEMA = f"{OPTIONS}, str[] groups, str implementation"
call = define(
    NAME,
    f"(Tensor update, {_SCHEMA}) -> Tensor",
    balanced, lambda update, *rest: update.new_empty(update.shape), 1,
)  # fmt: skip
call_into = define(
    INTO, f"(Tensor update, Tensor(a!) out, {_SCHEMA}) -> ()", into, lambda *given: None, 2
)  # fmt: skip
call_step = define(
    STEP,
    "(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] averages, Tensor size, float momentum, "
    "bool nesterov, int steps, float zero_row_threshold, float eps, str[] groups, str implementation) -> ()",
    step, lambda *given: None, 4,
)  # fmt: skip
register_gradient(NAME, call, no_gradient)


@torch.library.register_vmap(f"{NAMESPACE}::{NAME}")
def _(info, in_dims, update, *rest):
    return operator_named(NAME)(batch_first(update, in_dims[0], info.batch_size), *rest), 0


@torch.library.register_vmap(f"{NAMESPACE}::{INTO}")
def _(info, in_dims, *given):
    raise NotImplementedError(
        "sinkhorn_balance has no vmap with out; leave out out, or pass all matrices as one update (..., m, n)"
    )
