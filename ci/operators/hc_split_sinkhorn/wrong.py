"""Correct implementations of hc_split_sinkhorn and wrong ones."""

from __future__ import annotations

import functools

import torch

from ci.gate import arithmetic, columns, wrong
from ci.gate.arithmetic import AMD, NVIDIA, Arithmetic, keep_bits
from ci.gate.damage import cleared
from ci.gate.wrong import Run, Wrong, everywhere
from ci.operators.hc_split_sinkhorn.steps import (
    EXACT,
    GRADIENTS,
    Steps,
    at_once,
    by_autograd,
    by_exp,
    by_exp_of_size,
    by_tanh,
    exactly,
    in_place,
    over_tokens,
    pytorch,
    right,
    rms,
    scaling,
    tiles,
    tree,
)
from ci.operators.sinkhorn import wrong as of_sinkhorn
from helion_sinkhorn.lab.split.budget import RESULTS
from helion_sinkhorn.lab.split.workloads import HcWorkload


def steep(w: HcWorkload) -> bool:
    """Gates near 0 and 1, where one minus the other has no digits."""
    return w.parameters in ("saturated", "checkpoint") or w.spread > 1


def closed(w: HcWorkload) -> bool:
    """Gates so near 0 that tanh, right to a unit of 1, has no digits of them."""
    return w.parameters == "saturated" or w.spread > 1


def without_slopes(w, *inputs):
    """PyTorch, which takes 1 - sigmoid(a), which is WRONG: without what shows it."""
    shows = GRADIENTS if steep(w) else ("dmixes",)
    return {name: t for name, t in pytorch(w, *inputs).items() if name not in shows}


VENDORS = {vendor: Steps(machine, sigmoid=by_exp_of_size) for vendor, machine in arithmetic.VENDORS.items()}
BASELINE = pytorch

GOOD: dict[str, Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": without_slopes,
    "the CPU path": right,
    "u-v, tokens at once": Steps(),
    "u-v, tokens in order": Steps(total=over_tokens(columns.in_order)),
    "u-v, sums and tokens backwards": Steps(
        Arithmetic(sums="backwards"), total=over_tokens(lambda t: columns.in_order(t.flip(-1)))
    ),
    "u-v, trees": Steps(Arithmetic(sums="tree"), total=tree),
    "u-v, fused, tiles of tokens": Steps(Arithmetic(fused=True), total=tiles),
    "u-v, programs of tokens, columns last": Steps(total=over_tokens(columns.programs), columns_first=False),
    "u-v, tokens in float64": Steps(total=over_tokens(columns.wide)),
    "u-v, NVIDIA functions": Steps(NVIDIA, sigmoid=by_exp_of_size, total=tiles),
    "u-v, AMD functions": Steps(AMD, sigmoid=by_exp_of_size, total=tiles),
    "in place, division rounded": Steps(comb=in_place(), total=tiles),
    "in place, tree sums": Steps(Arithmetic(sums="tree"), comb=in_place(), total=tree),
    "gates by exp": Steps(sigmoid=by_exp, total=tiles),
    "gates by exp of the size": Steps(sigmoid=by_exp_of_size, total=tiles),
}


NAMES = ("mixes", "dpre", "dpost", "dcomb", "scale", "base")
given = functools.partial(wrong.given, EXACT, NAMES)
one = functools.partial(wrong.one, EXACT)
exchanged = functools.partial(wrong.exchanged, EXACT)
call = functools.partial(wrong.called, EXACT)


def columns_first(w, logits, grad, machine):
    return tuple(t.mT for t in scaling(w, logits.mT, grad.mT, machine))


def normed_by(change) -> Run:
    """Right except for the factors (r, k) of the norm."""
    return exactly(norm=lambda w, mean, machine: change(*rms(w, mean, machine)))


def maximum_left_out(w, t):
    e = t.exp()
    return of_sinkhorn.iterated(w, e / e.sum(-1, keepdim=True) + w.eps)


def with_comb(function) -> Run:
    """Comb by a function of Sinkhorn's call and the logits."""
    return Steps(comb=by_autograd(lambda call, t, machine: function(call, t)))


def reduced(w: HcWorkload) -> bool:
    return w.splits > 0


def based(w: HcWorkload) -> bool:
    """Elsewhere every comb is almost the same, 1 / n."""
    return w.parameters != "initial"


def unconverged(w: HcWorkload) -> bool:
    return w.n_iters <= 5 or w.spread > 1


def far(w: HcWorkload) -> bool:
    """From a permutation, near which iterations make as much of a rounding as of eps."""
    return w.parameters != "checkpoint"


ONE, LAST, NARROW, THREE = "hc_one_iteration", "hc_outputs_last", "hc_bf16", "hc_three_streams"
VALUES = ("pre", "post", "comb")
OF_COMB = ("comb", "dmixes")
WRONG = [
    Wrong("comb transposed", one("comb", lambda t: t.mT), ("comb",), everywhere),
    Wrong("columns before rows", exactly(comb=columns_first), OF_COMB, based),
    Wrong("comb_order ignored", call(comb_order="io"), OF_COMB, lambda w: w.comb_order == "oi"),
    Wrong("1 - sigmoid in the gates' gradient", Steps(slope=lambda a: a.sigmoid() * (1 - a.sigmoid())),
          ("dmixes",), steep),
    Wrong("gates by tanh", Steps(sigmoid=by_tanh), ("dmixes",), closed),
    Wrong("eps not in the denominators", exactly(comb=in_place(eps=0.0)), ("comb",), far),
    Wrong("no eps on pre", call(pre_eps=0.0), ("pre",), everywhere),
    Wrong("eps on post too", call(post_eps=lambda w: w.post_eps + w.eps), ("post",), everywhere),
    Wrong("post_mult left out", call(post_mult=1.0), ("post", "dmixes", "dbase"), everywhere),
    Wrong("one iteration fewer", call(n_iters=lambda w: w.n_iters - 1), ("comb",),
          lambda w: w.n_iters > 1 and unconverged(w)),
    Wrong("dscale of another part", one("dscale", lambda t: t.roll(1, -1)), ("dscale",), everywhere),
    Wrong("sums of 16 bits", Steps(total=over_tokens(functools.partial(
        columns.in_order, partial=lambda t: keep_bits(t, 15)))), ("dbase", "dscale"), everywhere),
    Wrong("sums of the first tile of tokens", exactly(total=lambda t: at_once(t[:, :32])),
          ("dbase", "dscale"), everywhere),
    Wrong("base left out", given(base=torch.zeros_like), RESULTS, based),
    Wrong("mixes rounded to bfloat16", given(mixes=lambda t: t.bfloat16().to(t.dtype)),
          ("pre", "post", "comb"), lambda w: w.dtype != torch.bfloat16),
    Wrong("no gradient of pre", exactly(grads=lambda a, b, c: (0 * a, b, c)), GRADIENTS, everywhere),
    Wrong("TF32 products", Steps(Arithmetic(operand=lambda t: keep_bits(t, 10))), ("comb",),
          lambda w: w.n_iters > 1),
    Wrong("exponential of 12 bits", Steps(Arithmetic(exp_ulps=2.0**11), sigmoid=by_exp),
          ("pre", "post", "comb"), everywhere),
    Wrong("a split left out", given(mixes=cleared(slice(None), -1, ..., slice(-1))), VALUES, reduced),
    Wrong("the norm left out", normed_by(lambda r, k: (torch.ones_like(r), k)), RESULTS, reduced),
    Wrong("norm_eps on the other side of the root", call(eps_outside=lambda w: not w.eps_outside), VALUES,
          reduced),
    Wrong("the norm's gradient left out", normed_by(lambda r, k: (r, 0 * k)), ("dmixes",), reduced),
    Wrong("no gradient where a result is unused", exchanged(lambda w, results: {
        name: torch.zeros_like(results[name]) for name in GRADIENTS}), GRADIENTS,
          lambda w: bool(w.unused)),
    Wrong("no maximum subtracted", with_comb(maximum_left_out), OF_COMB, "hc_peaked"),
    Wrong("no maximum subtracted, logits of a model", with_comb(maximum_left_out), ("comb",), THREE,
          hidden="any shift gives the same softmax until an exponential overflows"),
    Wrong("padding counted", with_comb(of_sinkhorn.padded), OF_COMB, THREE),
    Wrong("post a unit low everywhere", one("post", lambda t: t * (1 - 2.0**-21)), ("post",), ONE),
    Wrong("tie of comb broken up", one("comb", lambda t: torch.nextafter(t, t + 1)), ("comb",), ONE,
          hidden="a unit in the last place is what correct arithmetic is off by too"),
    *wrong.damages(EXACT, RESULTS),
    *wrong.of_any(right, LAST, "comb", 3),
    *wrong.of_any(right, NARROW, "dmixes", 1, only=("corner", "behind the end", "lane", "line")),
    *wrong.of_any(right, THREE, "dbase", 2, only=("last element never", "bits")),
]  # fmt: skip
