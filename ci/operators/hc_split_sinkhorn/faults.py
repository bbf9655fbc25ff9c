"""Correct implementations of hc_split_sinkhorn and wrong ones.

GOOD differs in the order of sums, in functions and in how Sinkhorn's iterations are carried, FAULTS in what
no implementation may do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import arithmetic, gate
from ci.gate.arithmetic import AMD, NVIDIA, PLAIN, Arithmetic, bfloat16, keep_bits
from ci.gate.damage import DAMAGES
from ci.gate.gate import Fault
from ci.operators.hc_split_sinkhorn.steps import (
    EXACT,
    GRADIENTS,
    TILE,
    Change,
    Steps,
    at_once,
    backwards,
    by_exp,
    by_exp_of_size,
    by_tanh,
    differentiated,
    exactly,
    in_order,
    in_place,
    on_cpu,
    other_gradient,
    parts,
    programs,
    pytorch,
    rms,
    same,
    scaling,
    tiles,
    tree,
    wide,
)
from helion_sinkhorn.ops.hc_split_sinkhorn.budget import RESULTS
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import HcWorkload
from helion_sinkhorn.ops.sinkhorn.implicit.budget import Stationarity


def steep(w: HcWorkload) -> bool:
    """Gates near 0 and 1, where one minus the other has no digits."""
    return w.parameters in ("saturated", "checkpoint") or w.spread > 1


def closed(w: HcWorkload) -> bool:
    """Gates so near 0 that tanh, right to a unit of 1, has no digits of them."""
    return w.parameters == "saturated" or w.spread > 1


def without_slopes(w, *inputs):
    """PyTorch, which takes 1 - sigmoid(a), one of FAULTS: without what shows it."""
    shows = GRADIENTS if steep(w) else ("dmixes",)
    return {name: t for name, t in pytorch(w, *inputs).items() if name not in shows}


VENDORS = {vendor: Steps(machine, sigmoid=by_exp_of_size) for vendor, machine in arithmetic.VENDORS.items()}
BASELINE = pytorch

GOOD: dict[str, gate.Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": without_slopes,
    "the CPU path": on_cpu,
    "u-v, tokens at once": Steps(),
    "u-v, tokens in order": Steps(total=in_order),
    "u-v, sums and tokens backwards": Steps(Arithmetic(sums="backwards"), total=backwards),
    "u-v, trees": Steps(Arithmetic(sums="tree"), total=tree),
    "u-v, fused, tiles of tokens": Steps(Arithmetic(fused=True), total=tiles),
    "u-v, programs of tokens, columns last": Steps(total=programs, columns_first=False),
    "u-v, tokens in float64": Steps(total=wide),
    "u-v, NVIDIA functions": Steps(NVIDIA, sigmoid=by_exp_of_size, total=tiles),
    "u-v, AMD functions": Steps(AMD, sigmoid=by_exp_of_size, total=tiles),
    "in place, division rounded": Steps(comb=in_place(), total=tiles),
    "in place, tree sums": Steps(Arithmetic(sums="tree"), comb=in_place(), total=tree),
    "gates by exp": Steps(sigmoid=by_exp, total=tiles),
    "gates by exp of the size": Steps(sigmoid=by_exp_of_size, total=tiles),
}


def call(**change) -> gate.Run:
    """Right for another call; values may be functions of the workload."""

    def run(w, *inputs):
        other = {name: v(w) if callable(v) else v for name, v in change.items()}
        return EXACT(replace(w, **other), *inputs)

    return run


def given(**change: Callable[..., torch.Tensor]) -> gate.Run:
    """Right for other inputs, by name."""

    def run(w, *inputs):
        names = ("mixes", "dpre", "dpost", "dcomb", "scale", "base")
        return EXACT(w, *(change.get(name, same)(t) for name, t in zip(names, inputs, strict=True)))

    return run


def changed(change: Callable[[HcWorkload, gate.Results], gate.Results]) -> gate.Run:
    """Right results, then exchanged or damaged."""

    def run(w, *inputs):
        found = EXACT(w, *inputs)
        return found | change(w, found)

    return run


def damaged(damage: Change) -> gate.Run:
    return changed(lambda w, found: {name: damage(t) for name, t in found.items()})


def one(name: str, change: Callable[[HcWorkload, torch.Tensor], torch.Tensor]) -> gate.Run:
    return changed(lambda w, found: {name: change(w, found[name]).to(found[name].dtype)})


def columns_first(w, logits, grad, machine):
    return tuple(t.mT for t in scaling(w, logits.mT, grad.mT, machine))


def logits_by_columns(w, logits, grad, machine):
    p, dlogits = scaling(w, logits.mT, grad, machine)
    return p, dlogits.mT


def without_first_sums(w, t, machine):
    """The softmax differentiated as if its sums were constants."""
    p = (t - t.logsumexp(-1, keepdim=True).detach()).exp() + w.eps
    for k in range(2 * w.n_iters - 1):
        p = p / (p.sum(-1 if k % 2 else -2, keepdim=True) + w.eps)
    return p


def stationary(w, logits, grad):
    """The gradient of the fixed point, whether or not it was reached."""
    p = scaling(w, logits, grad, PLAIN)[0]
    return Stationarity(p.flatten(0, 1), grad.flatten(0, 1), "corrected").exact.view(p.shape)


def of_other_call(**change) -> gate.Run:
    """The right forward with gradients of another call."""
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


def normed_by(change) -> gate.Run:
    """Right but for the factors (r, k) of the norm."""
    return exactly(norm=lambda w, mean, machine: change(*rms(w, mean, machine)))


def gradient_without_norm(w, mixes, *rest):
    """dpartials without r."""
    found = EXACT(w, mixes, *rest)
    squares = w.parts(mixes.double())[1]
    r, _ = rms(w, squares.sum(0) / w.size, PLAIN)
    t = found["dmixes"].clone()
    t[..., :-1] /= r.float()[:, None, :, None]
    return found | {"dmixes": t}


def ones_for_unused(w, *inputs):
    return given(**{w.unused: torch.ones_like})(w, *inputs)


def unused(w: HcWorkload) -> bool:
    return bool(w.unused)


def reduced(w: HcWorkload) -> bool:
    return w.splits > 0


def narrow(w: HcWorkload) -> bool:
    return w.dtype != torch.float32


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


VALUES = ("pre", "post", "comb")
OF_COMB = ("comb", "dmixes")
FAULTS = [
    Fault("comb transposed", one("comb", lambda w, t: t.mT), ("comb",)),
    Fault("columns before rows", exactly(comb=columns_first), OF_COMB, based),
    Fault("logits of comb by columns", exactly(comb=logits_by_columns), OF_COMB),
    Fault("comb_order ignored", call(comb_order="io"), OF_COMB, lambda w: w.comb_order == "oi"),
    Fault("comb_order ignored in the gradient", of_other_call(comb_order="io"), ("dmixes",),
          lambda w: w.comb_order == "oi"),
    Fault("1 - sigmoid in the gates' gradient", Steps(slope=lambda a: a.sigmoid() * (1 - a.sigmoid())),
          ("dmixes",), steep),
    Fault("gates by tanh", Steps(sigmoid=by_tanh), ("dmixes",), closed),
    Fault("the gates' gradient without sigmoid(-a)", exactly(slope=torch.sigmoid), GRADIENTS),
    Fault("eps not in the denominators", exactly(comb=in_place(eps=0.0)), ("comb",), far),
    Fault("eps not in the softmax", exactly(comb=in_place(start_eps=0.0)), ("comb",), based),
    Fault("eps nowhere", exactly(comb=in_place(start_eps=0.0, eps=0.0)), ("comb",)),
    Fault("eps of comb ten times too large", exactly(comb=in_place(start_eps=1e-2, eps=1e-2)), ("comb",)),
    Fault("no eps on pre", call(pre_eps=0.0), ("pre",)),
    Fault("eps on post too", call(post_eps=lambda w: w.post_eps + w.eps), ("post",)),
    Fault("post_mult left out", call(post_mult=1.0), ("post", "dmixes", "dbase")),
    Fault("post_mult left out of the gradient", of_other_call(post_mult=1.0), GRADIENTS),
    Fault("one iteration fewer", call(n_iters=lambda w: w.n_iters - 1), ("comb",),
          lambda w: w.n_iters > 1 and unconverged(w)),
    Fault("one iteration more", call(n_iters=lambda w: w.n_iters + 1), ("comb",), unconverged),
    Fault("ten iterations", call(n_iters=10), ("comb",), unconverged),
    Fault("last half-step missing", exactly(comb=in_place(steps=1)), OF_COMB, unconverged),
    Fault("gradient of one iteration fewer", of_other_call(n_iters=lambda w: max(1, w.n_iters - 1)),
          ("dmixes",), lambda w: w.n_iters > 1 and unconverged(w)),
    Fault("implicit gradient passed off as exact", exactly(comb=other_gradient(stationary)), ("dmixes",),
          unconverged),
    Fault("the softmax's adjoint missing", exactly(comb=differentiated(without_first_sums)), ("dmixes",),
          lambda w: based(w) and w.dtype != torch.bfloat16),
    Fault("scalings taken for constants", exactly(comb=other_gradient(
        lambda w, t, grad: scaling(w, t, grad, PLAIN)[0] * grad)), ("dmixes",)),
    Fault("dscale of another part", one("dscale", lambda w, t: t.roll(1, -1)), ("dscale",)),
    Fault("dscale without the mixes", changed(lambda w, found: {"dscale": torch.cat(
        [p.sum(-1, keepdim=True) for p in parts(w, found["dbase"])], -1)}), ("dscale",)),
    Fault("dscale from the rounded dmixes", from_stored_dmixes, ("dscale",), narrow),
    Fault("dscale summed in bfloat16", Steps(total_scale=functools.partial(in_order, partial=bfloat16)),
          ("dscale",)),
    Fault("sums of 16 bits", Steps(total=functools.partial(in_order, partial=lambda t: keep_bits(t, 15))),
          ("dbase", "dscale")),
    Fault("sums without the last token", exactly(total=lambda t: at_once(t[:, :-1])), ("dbase", "dscale")),
    Fault("sums of the first tile of tokens", exactly(total=lambda t: at_once(t[:, :TILE])),
          ("dbase", "dscale")),
    Fault("the last token summed twice", exactly(total=lambda t: at_once(torch.cat([t, t[:, -1:]], 1))),
          ("dbase", "dscale")),
    Fault("dbase times the scale", changed(lambda w, found: {"dbase": at_once(found["dmixes"].float())}),
          ("dbase",), lambda w: scaled(w) and not reduced(w)),
    Fault("dbase never filled", one("dbase", lambda w, t: torch.zeros_like(t)), ("dbase",)),
    Fault("dmixes without the scale", lambda w, *inputs: EXACT(w, *inputs) | {
        "dmixes": exactly(factors=lambda w, s: torch.ones_like(s))(w, *inputs)["dmixes"]}, ("dmixes",),
          scaled),
    Fault("scale of pre for post", given(scale=lambda s: s[:, [0, 0, 2]]), ("post", "dmixes"), own_scales),
    Fault("base left out", given(base=torch.zeros_like), RESULTS, based),
    Fault("mixes rounded to bfloat16", given(mixes=lambda t: t.bfloat16().to(t.dtype)),
          ("pre", "post", "comb"), lambda w: w.dtype != torch.bfloat16),
    Fault("upstream gradients in bfloat16", exactly(grads=lambda *grads: [
        t.bfloat16().double() for t in grads]), ("dbase", "dscale")),
    Fault("upstream gradients of pre and post exchanged", exactly(
        grads=lambda a, b, c: (b, a, c)), GRADIENTS),
    Fault("no gradient of pre", exactly(grads=lambda a, b, c: (0 * a, b, c)), GRADIENTS),
    Fault("coefficients rounded to bfloat16", changed(lambda w, found: {
        name: bfloat16(found[name]) for name in ("pre", "post", "comb")}), ("pre", "post", "comb")),
    Fault("a part of the token before", one("dmixes", lambda w, t: t + 2.0**-6 * t.roll(1, 1)), ("dmixes",)),
    Fault("bfloat16 iterates", Steps(comb=in_place(iterate=bfloat16)), ("comb",)),
    Fault("TF32 products", Steps(Arithmetic(operand=lambda t: keep_bits(t, 10))), ("comb",),
          lambda w: w.n_iters > 1),
    Fault("reciprocal of 8 bits", Steps(Arithmetic(multiplies=True, inverse=lambda t: keep_bits(t, 8)),
          comb=in_place()), ("comb",)),
    Fault("exponential of 12 bits", Steps(Arithmetic(exp_ulps=2.0**11), sigmoid=by_exp),
          ("pre", "post", "comb")),
    Fault("a split left out", given(mixes=without(-1, slice(-1))), VALUES, reduced),
    Fault("the squares of a split left out", given(mixes=without(-1, slice(-1, None))), VALUES, reduced),
    Fault("the norm left out", normed_by(lambda r, k: (torch.ones_like(r), k)), RESULTS, reduced),
    Fault("the norm twice", normed_by(lambda r, k: (r * r, k)), RESULTS, reduced),
    Fault("norm_eps on the other side of the root", call(eps_outside=lambda w: not w.eps_outside), VALUES,
          reduced),
    Fault("norm_eps left out", call(norm_eps=0.0), VALUES, reduced),
    Fault("norm_eps added to the sum of squares", call(norm_eps=lambda w: w.norm_eps / w.size), VALUES,
          lambda w: reduced(w) and not w.eps_outside),
    Fault("the squares not divided by their number", call(size=1), VALUES, reduced),
    Fault("the norm's gradient left out", normed_by(lambda r, k: (r, 0 * k)), ("dmixes",), reduced),
    Fault("the norm's gradient on one side of the root", of_other_call(
        eps_outside=lambda w: not w.eps_outside), ("dmixes",), reduced),
    Fault("the gradient of squares twice", normed_by(lambda r, k: (r, 2 * k)), ("dmixes",), reduced),
    Fault("dmixes for the gradient of partial sums", gradient_without_norm, ("dmixes",), reduced),
    Fault("a gradient of the first split alone", one("dmixes", lambda w, t: torch.cat(
        [t[:, :1], 0 * t[:, 1:]], 1)), ("dmixes",), reduced),
    Fault("no gradient where a result is unused", changed(lambda w, found: {
        name: torch.zeros_like(found[name]) for name in GRADIENTS}), GRADIENTS, unused),
    Fault("ones for the gradient of an unused result", ones_for_unused, GRADIENTS, unused),
    *(Fault(name, damaged(damage)) for name, damage in DAMAGES.items()),
]  # fmt: skip
