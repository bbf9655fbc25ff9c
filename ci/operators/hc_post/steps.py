"""hc_post step by step in PyTorch, for correct implementations and for faults."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.arithmetic import PLAIN, Arithmetic
from ci.gate.columns import Change, at_once, same
from ci.gate.wrong import Results, by_eager
from helion_sinkhorn.lab.post.budget import exact
from helion_sinkhorn.lab.post.evidence import dtype_of, results, run
from helion_sinkhorn.lab.post.workloads import HcPostWorkload

NAMES = ("f", "x", "post", "comb", "grad", "bias")
"""The inputs, in the gate's order."""


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for a fault."""

    machine: Arithmetic = PLAIN
    """Its `dot` adds the streams."""
    columns: Change = at_once
    """The sums of dpost and dcomb."""
    tokens: Change = at_once
    """The sum of dbias, over the last dimension."""
    output_first: bool = True
    """Whether the sublayer's output is added before the streams, or after them."""
    product: Change = same
    """Applied to a product before it is added."""
    mixed: Change = same
    """Applied to the sum over streams before the sublayer's output is added."""
    last: Callable[[HcPostWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """Applied to what is rounded to the dtypes of x and f."""
    dtype: torch.dtype = torch.float32

    def __call__(self, w: HcPostWorkload, f, x, post, comb, grad, bias=None) -> Results:
        f, x, post, comb, grad = (t.to(self.dtype) for t in (f, x, post, comb, grad))
        comb = comb if w.comb_order == "io" else comb.mT
        given = f if bias is None else f + bias.to(self.dtype).unsqueeze(1)
        dpost = self.columns(self.product(grad * given.unsqueeze(-2)))
        # (input stream, output stream, column)
        dcomb = self.columns(self.product(x.unsqueeze(-2) * grad.unsqueeze(-3)))
        by_name = {
            "out": self.last(w, self.expanded(given, x, post, comb)),
            "df": self.last(w, self.dot(grad, post.unsqueeze(-1))),
            "dx": self.last(w, self.dot(grad.unsqueeze(-3), comb.unsqueeze(-1))),
            "dpost": dpost,
            "dcomb": dcomb if w.comb_order == "io" else dcomb.mT.contiguous(),
        }
        if bias is not None:
            by_name["dbias"] = self.tokens(self.dot(grad, post.unsqueeze(-1)).mT).unsqueeze(1)
        return {name: t.to(dtype_of(w, name)) for name, t in by_name.items()}

    def dot(self, terms: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The weighted sum over the last dimension but one."""
        if self.product is same:
            return self.machine.dot(terms, weights, -2).squeeze(-2)
        return self.machine.sum(self.product(terms * weights), -2).squeeze(-2)

    def expanded(self, given, x, post, comb) -> torch.Tensor:
        """The new streams, before their last rounding."""
        # (output stream, input stream, column)
        terms = x.unsqueeze(-3).expand(*x.shape[:-1], *x.shape[-2:])
        weights = comb.mT.unsqueeze(-1)
        if self.mixed is not same:
            own = self.product(post.unsqueeze(-1) * given.unsqueeze(-2))
            return self.mixed(self.dot(terms, weights)) + self.mixed(own)
        own = given[..., None, None, :].expand(*x.shape[:-1], 1, -1)
        order = 1 if self.output_first else -1
        every = torch.cat((own, terms)[::order], -2)
        return self.dot(every, torch.cat((post[..., None, None], weights)[::order], -2))


EXACT = functools.lru_cache(maxsize=4)(Steps(dtype=torch.float64))


@functools.lru_cache(maxsize=1)
def pytorch(w: HcPostWorkload, f, x, post, comb, grad, bias=None) -> Results:
    """The specification in float32 and autograd; the gradient of the bias element by element."""
    by_name = exact(f, x, post, comb, grad, bias, w.comb_order, torch.float32)
    return {name: t.to(dtype_of(w, name)) for name, t in by_name.items()}


right = by_eager(run, results)
