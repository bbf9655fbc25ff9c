"""Inputs of hc_pre and hc_post, their results with gradients, and the errors of these."""

from __future__ import annotations

import torch
from autograd_calls import randn, values_and_gradients
from torch.utils._python_dispatch import TorchDispatchMode

from helion_sinkhorn import hc_post, hc_pre
from helion_sinkhorn.lab.post import budget as post_budget
from helion_sinkhorn.lab.pre import budget as pre_budget
from helion_sinkhorn.lab.rounding import worst


def of_weights(dtype, coefficients):
    """The dtype of the coefficients: as asked, or the computing type."""
    return coefficients or (torch.float64 if dtype == torch.float64 else torch.float32)


def pre_inputs(*lead, n=4, c=33, dtype=torch.float32, coefficients=None, seed=0):
    """(x, pre, dy)."""
    weights = of_weights(dtype, coefficients)
    return (
        randn(*lead, n, c, seed=seed, dtype=dtype),
        randn(*lead, n, seed=seed + 1, dtype=weights),
        randn(*lead, c, seed=seed + 2, dtype=dtype),
    )


def pre_results(x, pre, dy, f=hc_pre, **options):
    """{"y", "dx", "dpre"}."""
    return dict(zip(pre_budget.RESULTS, values_and_gradients(f, (x, pre), [dy], **options), strict=True))


def pre_errors(found, x, pre, dy):
    """The largest error of each result in units of its budget."""
    truth, budgets = pre_budget.exact(x, pre, dy), pre_budget.error_budget(x, pre, dy)
    return {name: worst(t, truth[name], budgets[name]) for name, t in found.items()}


def post_inputs(
    *lead, n=4, c=33, dtype=torch.float32, coefficients=None, f_dtype=None, has_bias=True, seed=0
):
    """(f, x, post, comb, bias or None, upstream gradient)."""
    weights = of_weights(dtype, coefficients)
    return (
        randn(*lead, c, seed=seed, dtype=f_dtype or dtype),
        randn(*lead, n, c, seed=seed + 1, dtype=dtype),
        randn(*lead, n, seed=seed + 2, dtype=weights),
        randn(*lead, n, n, seed=seed + 3, dtype=weights),
        randn(c, seed=seed + 4, dtype=weights) if has_bias else None,
        randn(*lead, n, c, seed=seed + 5, dtype=dtype),
    )


def post_results(f, x, post, comb, bias, grad, call=hc_post, **options):
    """{"out", "df", "dx", "dpost", "dcomb", and with a bias "dbias"}."""
    given = [t for t in (f, x, post, comb, bias) if t is not None]
    return dict(zip(post_budget.RESULTS, values_and_gradients(call, given, [grad], **options), strict=False))


def post_errors(found, f, x, post, comb, bias, grad, comb_order="io"):
    """The largest error of each result in units of its budget, all tokens as one element."""
    lead = x.dim() - 2
    tokens = x.shape[:lead].numel()

    def flat(t):
        return t.reshape(1, tokens, *t.shape[lead:])

    each = *map(flat, (f, x, post, comb, grad)), None if bias is None else bias[None], comb_order
    truth, budgets = post_budget.exact(*each), post_budget.error_budget(*each)
    whole = {name: t[None, None] if name == "dbias" else flat(t) for name, t in found.items()}
    return {name: worst(t, truth[name], budgets[name]) for name, t in whole.items()}


def one_rounding(found, truth):
    """The rms error of a narrow result, relative to the error of rounding the exact result once."""
    error, least = found.double() - truth, truth.to(found.dtype).double() - truth
    return (error.square().mean() / least.square().mean()).sqrt().item()


class LargestFloat32(TorchDispatchMode):
    """Counts the entries of the largest float32 tensor that is made inside."""

    entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for t in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(t, torch.Tensor) and t.dtype == torch.float32:
                self.entries = max(self.entries, t.numel())
        return made
