"""Correct implementations of hc_mixes and wrong ones."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from ci.gate import wrong
from ci.gate.arithmetic import keep_bits, truncated
from ci.gate.columns import Change
from ci.gate.products import Product, in_float64, in_order, permuted, split, tree
from ci.gate.wrong import Results, Run, Wrong, by_eager, everywhere, narrow
from ci.operators.hc_mixes.steps import (
    EXACT,
    TILE,
    Steps,
    in_three_parts,
    of_parts,
    reciprocal_norm,
)
from helion_sinkhorn.lab.mixes.budget import RESULTS, by_autograd
from helion_sinkhorn.lab.mixes.evidence import run
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.rounding import tf32, tf32_cut

ODD, SINGLE, LONG = (f"mixes_{name}" for name in ("odd", "odd_fp32", "long"))


def summed(product: Product) -> Steps:
    """One way to sum for all three products."""
    return Steps(z=product, product=product, tokens=product)


def pytorch(w: MixesWorkload, x, dmixes, fn) -> Results:
    """Float32 autograd of the specification."""
    mixes, dx, dfn = by_autograd(w, *(t.flatten(2).float() for t in (x, dmixes, fn)))
    return {"mixes": mixes, "dx": dx.to(w.dtype), "dfn": dfn}


right = by_eager(run, RESULTS)


def wide(w: MixesWorkload) -> bool:
    return w.precision == "float32"


def single(w: MixesWorkload) -> bool:
    return w.dtype == torch.float32


def in_tf32(change: Change) -> Run:
    """One TF32 product for each, of x only where it is float32."""
    of_single = Steps(fn=change, fn_back=change, g=change, x=change)
    of_narrow = replace(of_single, x=lambda t: t)
    return wrong.where(lambda w: not wide(w), lambda w, *t: (of_single if single(w) else of_narrow)(w, *t))


NVIDIA = summed(in_three_parts)
AMD = summed(functools.partial(split, count=8, product=functools.partial(in_order, depth=8)))
VENDORS = {"nvidia": NVIDIA, "amd": AMD}
BASELINE = Steps()

GOOD: dict[str, Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": pytorch,
    "the CPU path": right,
    "the equations in float32": BASELINE,
    "sums in float64": summed(in_float64),
    **{f"in order, {k} terms a step": summed(functools.partial(in_order, depth=k)) for k in (32, 128)},
    "last terms first": summed(functools.partial(in_order, backwards=True)),
    "a tree of slabs": summed(tree),
    "terms permuted": summed(permuted),
    **{f"split-K {k}": summed(functools.partial(split, count=k)) for k in (2, 16)},
    "three bfloat16 parts, cut (NVIDIA)": NVIDIA,
    "fused multiply-adds in order, split-K 8 (AMD)": AMD,
    "fn in two parts for a narrow dx": lambda w, *inputs: {
        name: t for name, t in Steps(fn_back=of_parts(2))(w, *inputs).items() if name != "dx" or narrow(w)
    },
    "TF32, rounded": in_tf32(tf32),
    "TF32, cut": in_tf32(tf32_cut),
}


def exactly(**steps) -> Steps:
    """Right to the last rounding except for these steps."""
    return Steps(exactly=True, **steps)


call = functools.partial(wrong.called, EXACT)
given = functools.partial(wrong.given, EXACT, ("x", "dmixes", "fn"))
one = functools.partial(wrong.one, EXACT)


def eps_matters(w: MixesWorkload) -> bool:
    return w.norm_eps >= 0.01 or w.name == "mixes_tiny"


WRONG = [
    Wrong("fn in bfloat16", exactly(fn=of_parts(1)), ("mixes",), everywhere),
    Wrong("fn in two bfloat16 parts", exactly(fn=of_parts(2)), ("mixes",), wide),
    Wrong("fn in float8, TF32 asked", exactly(
          fn=lambda t: t.float().to(torch.float8_e4m3fn).to(t.dtype)), ("mixes",), lambda w: not wide(w)),
    Wrong("fn in two bfloat16 parts for a float32 dx", exactly(fn_back=of_parts(2)), ("dx",),
          lambda w: wide(w) and single(w)),
    Wrong("upstream gradient in bfloat16", exactly(g=of_parts(1)), ("dx", "dfn"), everywhere),
    Wrong("upstream gradient in two bfloat16 parts", exactly(g=of_parts(2)), ("dfn",), wide),
    Wrong("upstream gradient in TF32, float32 asked", exactly(g=tf32), ("dx", "dfn"), wide),
    Wrong("x in two bfloat16 parts", exactly(x=of_parts(2)), ("mixes", "dfn"),
          lambda w: wide(w) and single(w)),
    Wrong("accumulator of 16 bits", Steps(z=functools.partial(in_order, depth=16,
          add=lambda t: keep_bits(t.float(), 15))), ("mixes",), lambda w: wide(w) and w.columns > 32),
    Wrong("a reciprocal root of 12 bits", exactly(norm=lambda w, q: keep_bits(
          reciprocal_norm(w, q).float(), 12).double()), RESULTS, wide),
    Wrong("eps on the other side of the root", call(eps_outside=lambda w: not w.eps_outside), RESULTS,
          eps_matters),
    Wrong("no eps", call(norm_eps=0.0), RESULTS, lambda w: eps_matters(w) or w.values == "zero token"),
    Wrong("mean over the padded count", exactly(mean=lambda w, x: x.square().sum(-1, keepdim=True)
          / (-(-x.size(-1) // TILE) * TILE)), RESULTS, lambda w: w.columns % TILE != 0),
    Wrong("no norm", exactly(norm=lambda w, q: torch.ones_like(q)), RESULTS, everywhere),
    Wrong("the norm's term of eps inside", exactly(factor=lambda w, q, r, size: -r.square() / size), ("dx",),
          lambda w: w.eps_outside),
    Wrong("dx truncated", exactly(last=lambda w, t: truncated(w, t.float())), ("dx",), narrow),
    Wrong("rows of fn one further", given(fn=lambda t: t.roll(1, -2)), ("mixes", "dx"), lambda w: w.m > 1),
    Wrong("columns wrap at 256", given(x=lambda t: t.flatten(2)[..., torch.arange(
          t[0, 0].numel()) % 256].view(t.shape)), ("mixes", "dfn"), ODD),
    Wrong("tokens wrap at 32", given(x=lambda t: t[:, torch.arange(t.size(1)) % 32]), ("mixes", "dx"), LONG),
    Wrong("mixes low by 2^-18 everywhere", one("mixes", lambda t: t * (1 - 2.0**-18)), ("mixes",), ODD),
    *wrong.damages(EXACT, RESULTS),
    *wrong.of_any(right, ODD, "dx", 1),
    *wrong.of_any(right, SINGLE, "mixes", 1, only=("written", "lane")),
    *wrong.of_any(right, LONG, "dfn", 1, only=("bits", "stale")),
]  # fmt: skip
