"""Inputs of hc_pre and hc_post, their results with gradients, and what these allocate."""

from __future__ import annotations

import torch
from autograd_calls import randn, values_and_gradients
from torch.utils._python_dispatch import TorchDispatchMode

from helion_sinkhorn import hc_post, hc_pre
from helion_sinkhorn.lab.post import budget as post_budget
from helion_sinkhorn.lab.pre import budget as pre_budget


def pre_inputs(*lead, n=4, c, dtype=torch.float32):
    """(x, pre, dy)."""
    return randn(*lead, n, c, dtype=dtype), randn(*lead, n, seed=1), randn(*lead, c, seed=2, dtype=dtype)


def pre_results(x, pre, dy):
    """{"y", "dx", "dpre"}."""
    return dict(zip(pre_budget.RESULTS, values_and_gradients(hc_pre, (x, pre), [dy]), strict=True))


def post_inputs(*lead, n=4, c=33, dtype=torch.float32, has_bias=True):
    """(f, x, post, comb, bias or None, upstream gradient)."""
    return (
        randn(*lead, c, dtype=dtype), randn(*lead, n, c, seed=1, dtype=dtype), randn(*lead, n, seed=2),
        randn(*lead, n, n, seed=3), randn(c, seed=4) if has_bias else None,
        randn(*lead, n, c, seed=5, dtype=dtype),
    )  # fmt: skip


def post_results(f, x, post, comb, bias, grad):
    """{"out", "df", "dx", "dpost", "dcomb", and with a bias "dbias"}."""
    given = [t for t in (f, x, post, comb, bias) if t is not None]
    return dict(zip(post_budget.RESULTS, values_and_gradients(hc_post, given, [grad]), strict=False))


def one_rounding(narrow, truth):
    """The rms error of a narrow result, relative to the error of rounding the exact result once."""
    error, least = narrow.double() - truth, truth.to(narrow.dtype).double() - truth
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
