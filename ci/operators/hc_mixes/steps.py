"""hc_mixes step by step in PyTorch, as kernels may have it; wrong implementations change one step.

Each run takes (workload, x, dmixes, fn) and returns mixes, dx and dfn.  An element of the batch is a group of
tokens with its own fn and dfn.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.columns import Change, same
from ci.gate.products import Product, cut, plain
from ci.gate.wrong import Results
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.rounding import bfloat16_parts

TILE = 64
"""Terms of a product that a program loads at a time."""
DEPTH = 16
"""Terms that a matrix unit adds at a time."""


def of_parts(count: int) -> Change:
    return lambda t: sum(bfloat16_parts(t, count))


def in_three_parts(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Tile by tile on a matrix unit that cuts, bfloat16 parts without their three smallest products."""
    pairs = [(i, j) for i, j in itertools.product(range(3), range(3)) if i + j < 3]
    lefts, rights = bfloat16_parts(a.float(), 3), bfloat16_parts(b.float(), 3)
    pairs = [(i, j) for i, j in pairs if lefts[i].any() and rights[j].any()]
    total = torch.zeros(*a.shape[:-1], b.size(-1))
    for first in range(0, a.size(-1), TILE):
        tile = torch.zeros_like(total)
        for i, j in pairs:
            for at in range(first, min(first + TILE, a.size(-1)), DEPTH):
                end = min(at + DEPTH, first + TILE)
                tile = cut(tile + lefts[i][..., at:end].double() @ rights[j][..., at:end, :].double())
        total = total + tile
    return total


def mean_square(w: MixesWorkload, x: torch.Tensor) -> torch.Tensor:
    return x.square().sum(-1, keepdim=True) / x.size(-1)


def reciprocal_norm(w: MixesWorkload, q: torch.Tensor) -> torch.Tensor:
    return 1 / (q.sqrt() + w.norm_eps) if w.eps_outside else 1 / (q + w.norm_eps).sqrt()


def norm_factor(w: MixesWorkload, q: torch.Tensor, r: torch.Tensor, size: int) -> torch.Tensor:
    """k, with which dx has k <dmixes, mixes> x."""
    if not w.eps_outside:
        return -r.square() / size
    return torch.where(q > 0, -r / q.sqrt() / size, 0.0)


@dataclass(frozen=True)
class Steps:
    """The equations, in float32 or exactly; each field is a step.

    fn, fn_back, x, g: factors of z, of dx, of z and dfn, of dx and dfn.  z, product and tokens: how the
    products over columns, over rows and over tokens are summed.
    """

    exactly: bool = False
    fn: Change = same
    fn_back: Change = same
    x: Change = same
    g: Change = same
    z: Product = plain
    product: Product = plain
    tokens: Product = plain
    mean: Callable[[MixesWorkload, torch.Tensor], torch.Tensor] = mean_square
    norm: Callable[[MixesWorkload, torch.Tensor], torch.Tensor] = reciprocal_norm
    factor: Callable[..., torch.Tensor] = norm_factor
    along: Callable[..., torch.Tensor] = lambda dmixes, mixes, z: (dmixes * mixes).sum(-1, keepdim=True)
    r_of_dx: Change = same
    r_of_dfn: Change = same
    term: Callable[[MixesWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """The terms of dx before they are added."""
    last: Callable[[MixesWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """dx before it is rounded."""

    def __call__(self, w: MixesWorkload, x, dmixes, fn) -> Results:
        dtype = torch.float64 if self.exactly else torch.float32
        x, dmixes, fn = (t.flatten(2).to(dtype) for t in (x, dmixes, fn))
        q = self.mean(w, x)
        r = self.norm(w, q)
        z = self.z(self.x(x), self.fn(fn).mT)
        mixes = r * z
        of_norm = self.factor(w, q, r, x.size(-1)) * self.along(dmixes, mixes, z) * x
        of_product = self.product(self.g(self.r_of_dx(r) * dmixes), self.fn_back(fn))
        dx = self.term(w, of_product) + self.term(w, of_norm)
        dfn = self.tokens(self.g(self.r_of_dfn(r) * dmixes).mT, self.x(x))
        return {"mixes": mixes.float(), "dx": self.last(w, dx).to(w.dtype), "dfn": dfn.float()}


EXACT = functools.lru_cache(maxsize=1)(Steps(exactly=True))
"""Rounded once from float64; damaged and exchanged, and computed once for the same inputs."""
