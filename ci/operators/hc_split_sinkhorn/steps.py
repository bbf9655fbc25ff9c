"""hc_split_sinkhorn step by step in PyTorch, as kernels may have it; wrong implementations change one step.

Each run takes (workload, mixes, dpre, dpost, dcomb, scale, base), an element of the batch a group of
tokens, and returns pre, post, comb, dmixes, and of each element dbase and dscale.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate import columns
from ci.gate.arithmetic import PLAIN, Arithmetic
from ci.gate.columns import Change
from ci.gate.wrong import Results, by_eager
from ci.operators.sinkhorn import steps as sinkhorn
from helion_sinkhorn.lab.sinkhorn import budget as testing
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.lab.split.budget import RESULTS
from helion_sinkhorn.lab.split.evidence import run
from helion_sinkhorn.lab.split.workloads import HcWorkload
from helion_sinkhorn.ops.mhc.split import reference

GRADIENTS = ("dmixes", "dbase", "dscale")


def parts(w: HcWorkload, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The columns of pre, post and comb."""
    return t.split((w.n, w.n, w.n * w.n), -1)


def square(w: HcWorkload, t: torch.Tensor) -> torch.Tensor:
    return t.unflatten(-1, (w.n, w.n))


def over_tokens(total: Change) -> Change:
    """A sum over the last axis as one over the tokens of an element, (K, G, columns) -> (K, 1, columns)."""
    return lambda t: total(t.mT).unsqueeze(1)


at_once = over_tokens(columns.at_once)
tiles = over_tokens(columns.tiles_one_by_one)
tree = over_tokens(columns.tree)


# Sinkhorn: (workload, logits, gradient, arithmetic) -> (comb, gradient of the logits), comb by input stream


def scaling(w, logits, grad, machine: Arithmetic):
    """The scaling form and its adjoint by projections."""
    return testing.scaling_form(logits, grad, w.n_iters, w.eps, "deepseek", "rows", machine)


def by_autograd(function: Callable[..., torch.Tensor]):
    """From a function (call of `sinkhorn`, logits, arithmetic)."""

    def comb(w, logits, grad, machine):
        leaf = logits.detach().clone().requires_grad_()
        call = SinkhornWorkload(w.name, w.n, w.n, w.batch, w.tags, w.source, w.n_iters, eps=w.eps)
        p = function(call, leaf, machine)
        return p.detach(), torch.autograd.grad(p, leaf, grad)[0]

    return comb


def in_place(**change):
    """The matrix itself divided by its sums; change: the change of Sinkhorn's matrix."""
    return by_autograd(lambda call, t, machine: sinkhorn.in_place(t, call, machine, **change))


def other_gradient(gradient: Callable[..., torch.Tensor]):
    """The right comb with a gradient from (workload, logits, gradient of comb)."""
    return lambda w, t, grad, machine: (scaling(w, t, grad, machine)[0], gradient(w, t, grad).to(t.dtype))


# The norm of a projection: (workload, mean square, arithmetic) -> (r, k), the factors of `budget.normed`


def rms(w, mean, machine: Arithmetic):
    """By a division of 1, and a factor that does not divide by 0."""
    if w.eps_outside:
        root = mean.sqrt()
        r = machine.divide(torch.ones_like(root), root + w.norm_eps)
        return r, -machine.divide(r, root) / w.size
    r = machine.divide(torch.ones_like(mean), (mean + w.norm_eps).sqrt())
    return r, -r * r / w.size


@dataclass(frozen=True)
class Steps:
    """hc_split_sinkhorn step by step: a field is a choice of implementations or a place for a fault."""

    machine: Arithmetic = PLAIN
    comb: Callable[..., tuple[torch.Tensor, torch.Tensor]] = scaling
    sigmoid: Callable[[torch.Tensor, Arithmetic], torch.Tensor] = lambda a, machine: a.sigmoid()
    slope: Callable[[torch.Tensor], torch.Tensor] | None = None
    """The derivative of the sigmoid as a function of a; None for sigmoid(a) sigmoid(-a)."""
    total: Change = at_once
    total_scale: Change | None = None
    """How dscale is added up, where it is done otherwise."""
    columns_first: bool = True
    """Whether the columns of a token are added for dscale before the tokens are."""
    dtype: torch.dtype = torch.float32
    factors: Callable[[HcWorkload, torch.Tensor], torch.Tensor] = lambda w, s: s
    """Applied to the columns' scales (K, 1, columns)."""
    grads: Callable[..., tuple[torch.Tensor, ...]] = lambda dpre, dpost, dcomb: (dpre, dpost, dcomb)
    norm: Callable[..., tuple[torch.Tensor, torch.Tensor]] = rms

    def __call__(self, w: HcWorkload, mixes, dpre, dpost, dcomb, scale, base) -> Results:
        given = mixes, dpre, dpost, dcomb, scale, base
        mixes, dpre, dpost, dcomb, scale, base = (t.to(self.dtype) for t in given)
        dpre, dpost, dcomb = self.grads(dpre, dpost, dcomb)
        if w.splits:
            partials, squares = (self.machine.sum(t, 0)[0] for t in w.parts(mixes))
            r, k = (t.unsqueeze(-1) for t in self.norm(w, squares / w.size, self.machine))
            mixes = r * partials
        sizes = torch.tensor((w.n, w.n, w.n * w.n))
        s = self.factors(w, scale.repeat_interleave(sizes, -1)[:, None])
        if self.machine.fused:
            a = (mixes.double() * s.double() + base[:, None].double()).to(self.dtype)
        else:
            a = mixes * s + base[:, None]
        logits = parts(w, a)[2]
        n, _, _, post_mult, pre_eps, post_eps, order = w.arguments
        comb, dlogits = self.comb(
            w, square(w, logits), dcomb if order == "io" else dcomb.mT.contiguous(), self.machine
        )
        gates = self.sigmoid(a[..., : 2 * n], self.machine)
        if self.slope:
            slopes = self.slope(a[..., : 2 * n])
        else:
            slopes = gates * self.sigmoid(-a[..., : 2 * n], self.machine)
        dgates = torch.cat([dpre, post_mult * dpost], -1) * slopes
        da = torch.cat([dgates, dlogits.flatten(-2)], -1)
        total = self.total_scale or self.total
        each = [
            total(part.sum(-1, keepdim=True)) if self.columns_first else total(part).sum(-1, keepdim=True)
            for part in parts(w, da * mixes)
        ]
        dmixes = da * s
        if w.splits:
            slopes = 0.5 * k * self.machine.sum(dmixes * mixes, -1)
            dmixes = torch.cat([r * dmixes, slopes], -1).unsqueeze(1).repeat(1, w.splits, 1, 1)
        results = {
            "pre": gates[..., :n] + pre_eps,
            "post": post_mult * gates[..., n:] + post_eps,
            "comb": (comb if order == "io" else comb.mT).contiguous(),
            "dmixes": dmixes,
            "dbase": self.total(da),
            "dscale": torch.cat(each, -1),
        }
        return {name: t.to(w.dtype if name == "dmixes" else torch.float32) for name, t in results.items()}


EXACT = functools.lru_cache(maxsize=4)(Steps(dtype=torch.float64))
exactly = functools.partial(Steps, dtype=torch.float64)


def by_exp(a: torch.Tensor, machine: Arithmetic) -> torch.Tensor:
    """1 / (1 + exp(-a))."""
    e = machine((-a).exp(), machine.EXP)
    return machine(1.0 / (1.0 + e), machine.RECIPROCAL)


def by_exp_of_size(a: torch.Tensor, machine: Arithmetic) -> torch.Tensor:
    """From exp(-|a|), which never overflows."""
    e = machine((-a.abs()).exp(), machine.EXP)
    return torch.where(a < 0, machine.divide(e, 1.0 + e), machine.divide(torch.ones_like(e), 1.0 + e))


def by_tanh(a: torch.Tensor, machine: Arithmetic) -> torch.Tensor:
    """1/2 + tanh(a / 2) / 2, with an error of a unit of 1 for every gate."""
    return 0.5 + 0.5 * (0.5 * a).tanh()


@functools.lru_cache(maxsize=1)
def pytorch(w: HcWorkload, mixes, dpre, dpost, dcomb, scale, base) -> Results:
    """The specification in float32 and autograd, element by element."""
    each = []
    for k in range(len(mixes)):
        leaves = [t[k].float().requires_grad_() for t in (mixes, scale, base)]
        given, options = w.given(leaves[0])
        out = reference.hc_split_sinkhorn(given, *leaves[1:], **options)
        given = [t[k].float() for t in (dpre, dpost, dcomb)]
        dmixes, dscale, dbase = torch.autograd.grad(out, leaves, given)
        each.append((*(t.detach() for t in out), dmixes.to(w.dtype), dbase[None], dscale[None]))
    return dict(zip(RESULTS, map(torch.stack, zip(*each, strict=True)), strict=True))


right = by_eager(run, RESULTS)
