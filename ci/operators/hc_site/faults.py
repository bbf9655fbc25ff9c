"""Correct implementations of hc_site and wrong ones.

GOOD differs in how its parts compute and in the order of dx's terms, FAULTS in what no implementation may do.
Faults within a part are those of its own operator; these are of what lies between the parts, and of those
that a site would hide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import arithmetic, columns, gate
from ci.gate.arithmetic import bfloat16, keep_bits
from ci.gate.damage import DAMAGES
from ci.gate.gate import Fault
from ci.gate.products import in_float64, split, tree
from ci.operators.hc_mixes import wrong as of_mixes
from ci.operators.hc_mixes.steps import Steps as Projection
from ci.operators.hc_mixes.steps import norm_factor, of_parts, tf32
from ci.operators.hc_site import boundary
from ci.operators.hc_site.steps import EXACT, Steps, exactly, in_order, pytorch, the_parts
from ci.operators.hc_site.truths import NAMES
from ci.operators.hc_split_sinkhorn import steps as coefficients
from helion_sinkhorn.lab.site.budget import RESULTS
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload

Change = Callable[[torch.Tensor], torch.Tensor]
GRADIENTS = ("dx", "dfn", "dscale", "dbase")


def narrow(w: HcSiteWorkload) -> bool:
    return w.dtype != torch.float32


def wide(w: HcSiteWorkload) -> bool:
    return w.precision == "float32"


def steep(w: HcSiteWorkload) -> bool:
    """Gates near 0 and 1, where one minus the other has no digits."""
    return w.parameters == "saturated" or w.spread > 1


def unused(w: HcSiteWorkload) -> set[str]:
    """The upstream gradients of hc_site that are None."""
    return {*w.unused.split()} & {*NAMES}


def ordinary(w: HcSiteWorkload) -> bool:
    """Streams, mixes and gates of ordinary size, and products of every bit."""
    return wide(w) and not steep(w) and w.values == "normal"


def without_slopes(w: HcSiteWorkload, *inputs) -> gate.Results:
    """PyTorch, whose gates' gradients cancel where they are steep."""
    return {k: t for k, t in pytorch(w, *inputs).items() if not (steep(w) and k in GRADIENTS)}


def split_by(machine: arithmetic.Arithmetic) -> coefficients.Steps:
    return coefficients.Steps(machine, sigmoid=coefficients.by_exp_of_size, total=coefficients.tiles)


VENDORS = {
    "nvidia": Steps(of_mixes.NVIDIA, split_by(arithmetic.NVIDIA), columns=columns.tiles),
    "amd": Steps(of_mixes.AMD, split_by(arithmetic.AMD), columns=columns.tiles_one_by_one),
}


def baseline(w: HcSiteWorkload, *inputs) -> gate.Results:
    """Both functions in float32 PyTorch."""
    return pytorch(w, *inputs) | boundary.single(w, *inputs)


BASELINE = baseline
IN_FLOAT64 = of_mixes.summed(in_float64)
IN_TREES = of_mixes.summed(tree)
SPLIT_K = of_mixes.summed(functools.partial(split, count=8))
TWO_PARTS = Projection(fn_back=of_parts(2))


def asked(where: Callable[[HcSiteWorkload], bool], run: gate.Run) -> gate.Run:
    """Where it is right; elsewhere nothing."""
    return lambda w, *inputs: run(w, *inputs) if where(w) else {}


GOOD: dict[str, gate.Run] = {
    "every step in float64": EXACT,
    "PyTorch float32": without_slopes,
    "the parts in float32": the_parts,
    "the equations in float32": Steps(),
    "terms of dx in order": Steps(total=in_order),
    "sums of the projection in float64": Steps(IN_FLOAT64),
    "trees": Steps(IN_TREES, coefficients.Steps(total=coefficients.tree), columns=columns.tree),
    "split-K 8, tiles of tokens": Steps(SPLIT_K, coefficients.Steps(total=coefficients.tiles)),
    "in place, division rounded": Steps(split=coefficients.Steps(comb=coefficients.in_place())),
    "fn in two parts for a narrow dx": lambda w, *inputs: {
        name: t for name, t in Steps(TWO_PARTS)(w, *inputs).items() if name != "dx" or narrow(w)
    },
    "TF32 where asked": asked(lambda w: not wide(w), Steps(Projection(fn=tf32, fn_back=tf32, g=tf32))),
    **boundary.GOOD,
}


def given(**change: Change) -> gate.Run:
    """Right for other inputs, by name."""

    def run(w, *inputs):
        named = zip(NAMES, inputs, strict=False)
        return EXACT(w, *(change.get(name, lambda t: t)(t) for name, t in named))

    return run


def ones_for_unused(w: HcSiteWorkload, *inputs) -> gate.Results:
    return given(**dict.fromkeys(unused(w), torch.ones_like))(w, *inputs)


def call(**change) -> gate.Run:
    """Right for another call; values may be functions of the workload."""
    return lambda w, *inputs: EXACT(
        replace(w, **{name: v(w) if callable(v) else v for name, v in change.items()}), *inputs
    )


def only(run: gate.Run, *of: str) -> gate.Run:
    """Some results of a wrong implementation, the others right."""
    return lambda w, *inputs: EXACT(w, *inputs) | {name: run(w, *inputs)[name] for name in of}


def changed(change: Callable[[HcSiteWorkload, gate.Results], gate.Results]) -> gate.Run:
    """Right results, then exchanged or damaged."""

    def run(w, *inputs):
        found = EXACT(w, *inputs)
        return found | change(w, found)

    return run


def one(name: str, change: Change) -> gate.Run:
    return changed(lambda w, found: {name: change(found[name]).to(found[name].dtype)})


def damaged(damage: Change) -> gate.Run:
    return changed(lambda w, found: {name: damage(t) for name, t in found.items()})


def of_terms(change: Callable[..., tuple[torch.Tensor, ...]]) -> gate.Run:
    """dx of other terms: (dresidual, the collapse's, the projection's) -> those that are added."""
    return exactly(total=lambda terms: sum(change(*terms)))


def rounded(w: HcSiteWorkload, t: torch.Tensor) -> torch.Tensor:
    return t.to(w.dtype).to(t.dtype)


def truncated(w: HcSiteWorkload, t: torch.Tensor) -> torch.Tensor:
    """Cut to the bits of the streams' dtype."""
    return keep_bits(t.float(), 7 if w.dtype == torch.bfloat16 else 10).to(t.dtype)


def projected(**steps) -> gate.Run:
    return exactly(mixes=Projection(exactly=True, **steps))


def split_with(**steps) -> gate.Run:
    return exactly(split=coefficients.exactly(**steps))


FAULTS = [
    Fault("the residual's gradient left out", of_terms(lambda r, c, p: (c, p)), ("dx",)),
    Fault("the residual's gradient twice", of_terms(lambda r, c, p: (r, r, c, p)), ("dx",)),
    Fault("the residual's gradient of the stream before", given(dresidual=lambda t: t.roll(1, -2)), ("dx",)),
    Fault("the residual's gradient of the token before", given(dresidual=lambda t: t.roll(1, 1)), ("dx",),
          lambda w: w.tokens > 1),
    Fault("the collapse's gradient left out of dx", of_terms(lambda r, c, p: (r, p)), ("dx",)),
    Fault("the collapse's gradient twice", of_terms(lambda r, c, p: (r, c, c, p)), ("dx",)),
    Fault("the projection's gradient left out of dx", of_terms(lambda r, c, p: (r, c)), ("dx",)),
    Fault("the projection's gradient twice", of_terms(lambda r, c, p: (r, c, p, p)), ("dx",)),
    Fault("weights of post in dx", exactly(weights_back=lambda made: made["post"]), ("dx",)),
    Fault("weights of post in the collapse", exactly(weights=lambda made: made["post"]), ("y",)),
    Fault("weights of the stream before", exactly(weights=lambda made: made["pre"].roll(1, -1)), ("y",)),
    Fault("weights rounded to bfloat16", exactly(weights=lambda made: bfloat16(made["pre"])), ("y",), wide),
    Fault("the gradient of y not passed to the mixes", exactly(dpre=torch.zeros_like),
          ("dx", "dfn", "dscale", "dbase")),
    Fault("the gradient of y passed twice", exactly(dpre=lambda t: 2 * t), ("dx", "dfn", "dscale", "dbase")),
    Fault("the gradient of y rounded on its way", exactly(dpre=lambda t: t.bfloat16().double()),
          ("dfn", "dscale", "dbase"), wide),
    Fault("the gradient of y of the last column alone", exactly(columns=lambda t: t[..., -1]),
          ("dfn", "dscale", "dbase")),
    Fault("the gradient of y without its last column", exactly(columns=lambda t: t[..., :-1].sum(-1)),
          ("dfn", "dscale", "dbase")),
    Fault("the upstream gradient of y without its scale", given(dy=lambda t: t / 2), GRADIENTS),
    Fault("gradients of post and of the weights exchanged", split_with(grads=lambda a, b, c: (b, a, c)),
          GRADIENTS),
    Fault("no gradient of post", given(dpost=torch.zeros_like), ("dfn", "dscale", "dbase")),
    Fault("no gradient of comb", given(dcomb=torch.zeros_like), ("dfn",), lambda w: w.spread <= 1),
    Fault("comb's gradient transposed", given(dcomb=lambda t: t.mT.contiguous()), ("dfn",)),
    Fault("terms of dx rounded by themselves", exactly(term=rounded), ("dx",), narrow),
    Fault("dx truncated", exactly(last=truncated), ("dx", "y"), narrow),
    Fault("the norm forgotten in dx", projected(factor=lambda *a: torch.zeros(())), ("dx",),
          lambda w: wide(w) and w.c <= 100),
    Fault("the norm's term added, not subtracted", projected(factor=lambda *a: -norm_factor(*a)), ("dx",),
          lambda w: wide(w) and w.c <= 100),
    Fault("dx not scaled by the norm", projected(r_of_dx=torch.ones_like), ("dx",),
          lambda w: w.values != "normal" or w.norm_eps >= 0.01),
    Fault("dfn not scaled by the norm", projected(r_of_dfn=torch.ones_like), ("dfn",),
          lambda w: w.values != "normal" or w.norm_eps >= 0.01 or wide(w)),
    Fault("coefficients of mixes in bfloat16", exactly(of_product=lambda w, t: bfloat16(t).to(t.dtype)),
          ("post", "comb"), ordinary),
    Fault("fn rounded to bfloat16", given(fn=bfloat16), ("post", "comb", "dfn"), ordinary),
    Fault("fn in TF32", given(fn=tf32), ("post", "comb"), ordinary),
    Fault("rows of fn one further", given(fn=lambda t: t.roll(1, -2)), RESULTS),
    Fault("scale of the next part", given(scale=lambda t: t.roll(1, -1)), ("post", "comb"),
          lambda w: w.parameters == "trained"),
    Fault("base left out", given(base=torch.zeros_like), RESULTS),
    Fault("norm_eps of the default", call(norm_eps=1e-6), RESULTS, lambda w: w.norm_eps >= 0.01),
    Fault("norm_eps on the other side of the root", call(eps_outside=lambda w: not w.eps_outside), RESULTS,
          lambda w: w.norm_eps >= 0.01),
    Fault("comb_order ignored", call(comb_order="io"), ("comb", "dfn"), lambda w: w.comb_order == "oi"),
    Fault("post_mult ignored", call(post_mult=1.0), ("post", "dfn", "dbase")),
    Fault("no eps on pre", call(pre_eps=0.0), ("y",), lambda w: (w.pre_eps or w.eps) > 1e-3),
    Fault("one iteration fewer", call(n_iters=lambda w: w.n_iters - 1), ("comb",),
          lambda w: w.n_iters <= 5 and wide(w)),
    Fault("comb transposed", one("comb", lambda t: t.mT), ("comb",)),
    Fault("coefficients rounded to bfloat16", changed(lambda w, found: {
        name: bfloat16(found[name]) for name in ("post", "comb")}), ("post", "comb"), wide),
    Fault("dfn rounded to bfloat16", one("dfn", bfloat16), ("dfn",), wide),
    Fault("dfn of the streams in reverse", one("dfn", lambda t: t.flip(-1)), ("dfn",)),
    Fault("sums without the last token", given(
        dy=lambda t: t.index_fill(1, torch.tensor([t.size(1) - 1]), 0)), ("dfn", "dscale", "dbase")),
    Fault("dbase never filled", one("dbase", torch.zeros_like), ("dbase",)),
    Fault("dscale of another part", one("dscale", lambda t: t.roll(1, -1)), ("dscale",)),
    *(
        Fault(name, damaged(damage), RESULTS, lambda w, name=name: w.batch > 1 or name != "stale output")
        for name, damage in DAMAGES.items()
    ),
    Fault("no gradient where a result is unused", changed(lambda w, found: {
        name: torch.zeros_like(found[name]) for name in GRADIENTS}), GRADIENTS, lambda w: bool(w.unused)),
    Fault("ones for the gradient of an unused result", ones_for_unused, GRADIENTS, lambda w: bool(unused(w))),
    *boundary.FAULTS,
]  # fmt: skip
