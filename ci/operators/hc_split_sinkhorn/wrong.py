"""Correct implementations of hc_split_sinkhorn and wrong ones."""

from __future__ import annotations

import functools

import torch

from ci.gate import arithmetic, columns, wrong
from ci.gate.arithmetic import AMD, NVIDIA, PLAIN, Arithmetic, bfloat16, keep_bits
from ci.gate.columns import Change
from ci.gate.damage import at, edited
from ci.gate.wrong import Run, Wrong, everywhere, narrow
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
    other_gradient,
    over_tokens,
    parts,
    pytorch,
    right,
    rms,
    scaling,
    tiles,
    tree,
)
from ci.operators.sinkhorn import wrong as of_sinkhorn
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
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


def logits_by_columns(w, logits, grad, machine):
    p, dlogits = scaling(w, logits.mT, grad, machine)
    return p, dlogits.mT


def stationary(w, logits, grad):
    """The gradient of the fixed point, whether or not it was reached."""
    p = scaling(w, logits, grad, PLAIN)[0]
    # an element that is not finite has no pseudo-inverse
    p = torch.where(p.isfinite().all(-1).all(-1)[..., None, None], p, 1.0 / w.n)
    return Stationarity(p.flatten(0, 1), grad.flatten(0, 1), "corrected").exact.view(p.shape)


def of_other_call(**change) -> Run:
    """The right forward with the gradients of a different call."""
    return lambda w, *inputs: (
        EXACT(w, *inputs) | {name: call(**change)(w, *inputs)[name] for name in GRADIENTS}
    )


def from_stored_dmixes(w, mixes, *rest):
    """dscale from the rounded dmixes, divided by the scale again."""
    found, scale = EXACT(w, mixes, *rest), rest[3]
    each = at_once(found["dmixes"].double() * mixes.double())
    sums = torch.cat([p.sum(-1, keepdim=True) for p in parts(w, each)], -1)
    return found | {"dscale": (sums / scale[:, None]).float()}


def without(split: int, columns: slice) -> Change:
    """Partial sums (K, splits, G, columns) without these of a split; the last column are the squares."""

    def change(t):
        t = t.clone()
        t[:, split, :, columns] = 0.0
        return t

    return change


def normed_by(change) -> Run:
    """Right except for the factors (r, k) of the norm."""
    return exactly(norm=lambda w, mean, machine: change(*rms(w, mean, machine)))


def gradient_without_norm(w, mixes, *rest):
    """dpartials without r."""
    found = EXACT(w, mixes, *rest)
    squares = w.parts(mixes.double())[1]
    r, _ = rms(w, squares.sum(0) / w.size, PLAIN)
    t = found["dmixes"].clone()
    t[..., :-1] /= r.float()[:, None, :, None]
    return found | {"dmixes": t}


def maximum_left_out(w, t):
    e = t.exp()
    return of_sinkhorn.iterated(w, e / e.sum(-1, keepdim=True) + w.eps)


def plainly(function):
    """Comb by a function of Sinkhorn's call and the logits."""
    return by_autograd(lambda call, t, machine: function(call, t))


def with_comb(function) -> Run:
    return Steps(comb=plainly(function))


def unused(w: HcWorkload) -> bool:
    return bool(w.unused)


def reduced(w: HcWorkload) -> bool:
    return w.splits > 0


def scaled(w: HcWorkload) -> bool:
    return w.parameters in ("trained", "initial")


def own_scales(w: HcWorkload) -> bool:
    return w.parameters == "trained"


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
    Wrong("logits of comb by columns", exactly(comb=logits_by_columns), OF_COMB, everywhere),
    Wrong("comb_order ignored", call(comb_order="io"), OF_COMB, lambda w: w.comb_order == "oi"),
    Wrong("comb_order ignored in the gradient", of_other_call(comb_order="io"), ("dmixes",),
          lambda w: w.comb_order == "oi"),
    Wrong("1 - sigmoid in the gates' gradient", Steps(slope=lambda a: a.sigmoid() * (1 - a.sigmoid())),
          ("dmixes",), steep),
    Wrong("gates by tanh", Steps(sigmoid=by_tanh), ("dmixes",), closed),
    Wrong("the gates' gradient without sigmoid(-a)", exactly(slope=torch.sigmoid), GRADIENTS, everywhere),
    Wrong("eps not in the denominators", exactly(comb=in_place(eps=0.0)), ("comb",), far),
    Wrong("eps not in the softmax", exactly(comb=in_place(start_eps=0.0)), ("comb",), based),
    Wrong("no eps on pre", call(pre_eps=0.0), ("pre",), everywhere),
    Wrong("eps on post too", call(post_eps=lambda w: w.post_eps + w.eps), ("post",), everywhere),
    Wrong("post_mult left out", call(post_mult=1.0), ("post", "dmixes", "dbase"), everywhere),
    Wrong("post_mult left out of the gradient", of_other_call(post_mult=1.0), GRADIENTS, everywhere),
    Wrong("one iteration fewer", call(n_iters=lambda w: w.n_iters - 1), ("comb",),
          lambda w: w.n_iters > 1 and unconverged(w)),
    Wrong("one iteration more", call(n_iters=lambda w: w.n_iters + 1), ("comb",), unconverged),
    Wrong("last half-step missing", exactly(comb=in_place(steps=1)), OF_COMB, unconverged),
    Wrong("gradient of one iteration fewer", of_other_call(n_iters=lambda w: max(1, w.n_iters - 1)),
          ("dmixes",), lambda w: w.n_iters > 1 and unconverged(w)),
    Wrong("implicit gradient passed off as exact", exactly(comb=other_gradient(stationary)), ("dmixes",),
          unconverged),
    Wrong("the softmax's adjoint missing", exactly(comb=plainly(of_sinkhorn.without_first_sums)),
          ("dmixes",), lambda w: based(w) and w.dtype != torch.bfloat16),
    Wrong("scalings taken for constants", exactly(comb=other_gradient(
        lambda w, t, grad: scaling(w, t, grad, PLAIN)[0] * grad)), ("dmixes",), everywhere),
    Wrong("dscale of another part", one("dscale", lambda t: t.roll(1, -1)), ("dscale",), everywhere),
    Wrong("dscale from the rounded dmixes", from_stored_dmixes, ("dscale",), narrow),
    Wrong("sums of 16 bits", Steps(total=over_tokens(functools.partial(
        columns.in_order, partial=lambda t: keep_bits(t, 15)))), ("dbase", "dscale"), everywhere),
    Wrong("sums of the first tile of tokens", exactly(total=lambda t: at_once(t[:, :32])),
          ("dbase", "dscale"), everywhere),
    Wrong("dbase times the scale", exchanged(lambda w, found: {"dbase": at_once(found["dmixes"].float())}),
          ("dbase",), lambda w: scaled(w) and not reduced(w)),
    Wrong("dbase never filled", one("dbase", lambda t: torch.zeros_like(t)), ("dbase",), everywhere),
    Wrong("dmixes without the scale", lambda w, *inputs: EXACT(w, *inputs) | {
        "dmixes": exactly(factors=lambda w, s: torch.ones_like(s))(w, *inputs)["dmixes"]}, ("dmixes",),
          scaled),
    Wrong("scale of pre for post", given(scale=lambda s: s[:, [0, 0, 2]]), ("post", "dmixes"), own_scales),
    Wrong("base left out", given(base=torch.zeros_like), RESULTS, based),
    Wrong("mixes rounded to bfloat16", given(mixes=lambda t: t.bfloat16().to(t.dtype)),
          ("pre", "post", "comb"), lambda w: w.dtype != torch.bfloat16),
    Wrong("no gradient of pre", exactly(grads=lambda a, b, c: (0 * a, b, c)), GRADIENTS, everywhere),
    Wrong("coefficients rounded to bfloat16", exchanged(lambda w, found: {
        name: bfloat16(found[name]) for name in ("pre", "post", "comb")}), VALUES, everywhere),
    Wrong("a part of the token before", one("dmixes", lambda t: t + 2.0**-6 * t.roll(1, 1)), ("dmixes",),
          everywhere),
    Wrong("TF32 products", Steps(Arithmetic(operand=lambda t: keep_bits(t, 10))), ("comb",),
          lambda w: w.n_iters > 1),
    Wrong("exponential of 12 bits", Steps(Arithmetic(exp_ulps=2.0**11), sigmoid=by_exp),
          ("pre", "post", "comb"), everywhere),
    Wrong("a split left out", given(mixes=without(-1, slice(-1))), VALUES, reduced),
    Wrong("the norm left out", normed_by(lambda r, k: (torch.ones_like(r), k)), RESULTS, reduced),
    Wrong("norm_eps on the other side of the root", call(eps_outside=lambda w: not w.eps_outside), VALUES,
          reduced),
    Wrong("norm_eps added to the sum of squares", call(norm_eps=lambda w: w.norm_eps / w.size), VALUES,
          lambda w: reduced(w) and not w.eps_outside),
    Wrong("the squares not divided by their number", call(size=1), VALUES, reduced),
    Wrong("the norm's gradient left out", normed_by(lambda r, k: (r, 0 * k)), ("dmixes",), reduced),
    Wrong("dmixes for the gradient of partial sums", gradient_without_norm, ("dmixes",), reduced),
    Wrong("no gradient where a result is unused", exchanged(lambda w, found: {
        name: torch.zeros_like(found[name]) for name in GRADIENTS}), GRADIENTS, unused),
    Wrong("no maximum subtracted", with_comb(maximum_left_out), OF_COMB, "hc_peaked"),
    Wrong("no maximum subtracted, logits of a model", with_comb(maximum_left_out), ("comb",), THREE,
          hidden="any shift gives the same softmax until an exponential overflows"),
    Wrong("padding counted", with_comb(of_sinkhorn.padded), OF_COMB, THREE),
    Wrong("the first token's scale for all parts", given(scale=lambda s: s[:, :1].expand_as(s)), VALUES, ONE),
    Wrong("base one column late", given(base=lambda b: b.roll(1, -1)), VALUES, THREE),
    Wrong("base in half precision", given(base=lambda b: b.half().float()), VALUES, ONE),
    Wrong("upstream gradient of comb in bfloat16", given(dcomb=bfloat16), ("dmixes", "dbase"), ONE),
    Wrong("gates of a table of 12 bits", Steps(sigmoid=lambda a, machine: keep_bits(a.sigmoid(), 12)),
          ("pre", "post"), ONE),
    Wrong("a stale tile of 16 tokens", one("pre", at((slice(None), slice(16, 32)), lambda t: t[:, :16])),
          ("pre",), ONE),
    Wrong("post a unit low everywhere", one("post", lambda t: t * (1 - 2.0**-21)), ("post",), ONE),
    Wrong("tie of comb broken up", one("comb", lambda t: torch.nextafter(t, t + 1)), ("comb",), ONE,
          hidden="a unit in the last place is what correct arithmetic is off by too"),
    Wrong("dbase of the element before added", one("dbase", edited(lambda t: t[1:].add_(t[:-1].clone()))),
          ("dbase",), ONE),
    *wrong.damages(EXACT, RESULTS),
    *wrong.of_any(right, LAST, "comb", 3),
    *wrong.of_any(right, NARROW, "dmixes", 1, only=("corner", "behind the end", "lane", "line")),
    *wrong.of_any(right, THREE, "dbase", 2, only=("last element never", "bits")),
]  # fmt: skip
