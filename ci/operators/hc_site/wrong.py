"""Correct implementations of hc_site and wrong ones.

What is wrong within a part is found with its own operator; here is what lies between the parts, and what a
site would hide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ci.gate import arithmetic, columns, wrong
from ci.gate.arithmetic import bfloat16, truncated
from ci.gate.damage import edited
from ci.gate.products import in_float64, split, tree
from ci.gate.wrong import Results, Run, Wrong, everywhere, narrow
from ci.operators.hc_mixes import wrong as of_mixes
from ci.operators.hc_mixes.steps import Steps as Projection
from ci.operators.hc_mixes.steps import of_parts, reciprocal_norm
from ci.operators.hc_site import boundary
from ci.operators.hc_site.steps import EXACT, Steps, exactly, in_order, pytorch, right
from ci.operators.hc_split_sinkhorn import steps as coefficients
from helion_sinkhorn.lab.rounding import tf32
from helion_sinkhorn.lab.site.budget import RESULTS
from helion_sinkhorn.lab.site.evidence import NAMES
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload

SINGLE, ODD, SATURATED, CONSTANTS = (
    f"hc_site_{name}" for name in ("fp32", "odd_fp32", "saturated", "constants")
)
VALUES = ("y", "post", "comb")
GRADIENTS = ("dx", "dfn", "dscale", "dbase")


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


def without_slopes(w: HcSiteWorkload, *inputs) -> Results:
    """PyTorch, whose gates' gradients cancel where they are steep."""
    return {k: t for k, t in pytorch(w, *inputs).items() if not (steep(w) and k in GRADIENTS)}


def split_by(machine: arithmetic.Arithmetic) -> coefficients.Steps:
    return coefficients.Steps(machine, sigmoid=coefficients.by_exp_of_size, total=coefficients.tiles)


VENDORS = {
    "nvidia": Steps(of_mixes.NVIDIA, split_by(arithmetic.NVIDIA), columns=columns.tiles),
    "amd": Steps(of_mixes.AMD, split_by(arithmetic.AMD), columns=columns.tiles_one_by_one),
}


def baseline(w: HcSiteWorkload, *inputs) -> Results:
    """Both functions in float32 PyTorch."""
    return pytorch(w, *inputs) | boundary.single(w, *inputs)


BASELINE = baseline
IN_FLOAT64 = of_mixes.summed(in_float64)
IN_TREES = of_mixes.summed(tree)
SPLIT_K = of_mixes.summed(functools.partial(split, count=8))
TWO_PARTS = Projection(fn_back=of_parts(2))


GOOD: dict[str, Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": without_slopes,
    "the parts in float32": right,
    "the equations in float32": Steps(),
    "terms of dx in order": Steps(total=in_order),
    "sums of the projection in float64": Steps(IN_FLOAT64),
    "trees": Steps(IN_TREES, coefficients.Steps(total=coefficients.tree), columns=columns.tree),
    "split-K 8, tiles of tokens": Steps(SPLIT_K, coefficients.Steps(total=coefficients.tiles)),
    "in place, division rounded": Steps(split=coefficients.Steps(comb=coefficients.in_place())),
    "fn in two parts for a narrow dx": lambda w, *inputs: {
        name: t for name, t in Steps(TWO_PARTS)(w, *inputs).items() if name != "dx" or narrow(w)
    },
    "TF32 where asked": wrong.where(lambda w: not wide(w), Steps(Projection(fn=tf32, fn_back=tf32, g=tf32))),
    **boundary.GOOD,
}


given = functools.partial(wrong.given, EXACT, NAMES)
one = functools.partial(wrong.one, EXACT)
exchanged = functools.partial(wrong.exchanged, EXACT)
call = functools.partial(wrong.called, EXACT)


def ones_for_unused(w: HcSiteWorkload, *inputs) -> Results:
    return given(**dict.fromkeys(unused(w), torch.ones_like))(w, *inputs)


def of_terms(change: Callable[..., tuple[torch.Tensor, ...]]) -> Run:
    """dx of other terms: (dresidual, the collapse's, the projection's) -> those that are added."""
    return exactly(total=lambda terms: sum(change(*terms)))


def rounded(w: HcSiteWorkload, t: torch.Tensor) -> torch.Tensor:
    return t.to(w.dtype).to(t.dtype)


def projected(**steps) -> Run:
    return exactly(mixes=Projection(exactly=True, **steps))


def split_with(**steps) -> Run:
    return exactly(split=coefficients.exactly(**steps))


WRONG = [
    Wrong("the residual's gradient left out", of_terms(lambda r, c, p: (c, p)), ("dx",), everywhere),
    Wrong("the residual's gradient of the token before", given(dresidual=lambda t: t.roll(1, 1)), ("dx",),
          lambda w: w.tokens > 1),
    Wrong("the collapse's gradient left out of dx", of_terms(lambda r, c, p: (r, p)), ("dx",), everywhere),
    Wrong("the projection's gradient left out of dx", of_terms(lambda r, c, p: (r, c)), ("dx",), everywhere),
    Wrong("weights of post in the collapse", exactly(weights=lambda made: made["post"]), ("y",), everywhere),
    Wrong("weights rounded to bfloat16", exactly(weights=lambda made: bfloat16(made["pre"])), ("y",), wide),
    Wrong("the gradient of y not passed to the mixes", exactly(dpre=torch.zeros_like),
          ("dx", "dfn", "dscale", "dbase"), everywhere),
    Wrong("the gradient of y rounded on its way", exactly(dpre=lambda t: t.bfloat16().double()),
          ("dfn", "dscale", "dbase"), wide),
    Wrong("the gradient of y without its last column", exactly(columns=lambda t: t[..., :-1].sum(-1)),
          ("dfn", "dscale", "dbase"), everywhere),
    Wrong("gradients of post and of the weights exchanged", split_with(grads=lambda a, b, c: (b, a, c)),
          GRADIENTS, everywhere),
    Wrong("no gradient of post", given(dpost=torch.zeros_like), ("dfn", "dscale", "dbase"), everywhere),
    Wrong("no gradient of comb", given(dcomb=torch.zeros_like), ("dfn",), lambda w: w.spread <= 1),
    Wrong("comb's gradient transposed", given(dcomb=lambda t: t.mT.contiguous()), ("dfn",), everywhere),
    Wrong("terms of dx rounded by themselves", exactly(term=rounded), ("dx",), narrow),
    Wrong("dx truncated", exactly(last=lambda w, t: truncated(w, t.float()).to(t.dtype)), ("dx", "y"),
          narrow),
    Wrong("the norm forgotten in dx", projected(factor=lambda *a: torch.zeros(())), ("dx",),
          lambda w: wide(w) and w.c <= 100),
    Wrong("dx not scaled by the norm", projected(r_of_dx=torch.ones_like), ("dx",),
          lambda w: w.values != "normal" or w.norm_eps >= 0.01),
    Wrong("dfn not scaled by the norm", projected(r_of_dfn=torch.ones_like), ("dfn",),
          lambda w: w.values != "normal" or w.norm_eps >= 0.01 or wide(w)),
    Wrong("coefficients of mixes in bfloat16", exactly(of_product=lambda w, t: bfloat16(t).to(t.dtype)),
          ("post", "comb"), ordinary),
    Wrong("fn rounded to bfloat16", given(fn=bfloat16), ("post", "comb", "dfn"), ordinary),
    Wrong("fn in TF32", given(fn=tf32), ("post", "comb"), ordinary),
    Wrong("rows of fn one further", given(fn=lambda t: t.roll(1, -2)), RESULTS, everywhere),
    Wrong("scale of the next part", given(scale=lambda t: t.roll(1, -1)), ("post", "comb"),
          lambda w: w.parameters == "trained"),
    Wrong("norm_eps of the default", call(norm_eps=1e-6), RESULTS, lambda w: w.norm_eps >= 0.01),
    Wrong("comb_order ignored", call(comb_order="io"), ("comb", "dfn"), lambda w: w.comb_order == "oi"),
    Wrong("post_mult ignored", call(post_mult=1.0), ("post", "dfn", "dbase"), everywhere),
    Wrong("no eps on pre", call(pre_eps=0.0), ("y",), lambda w: (w.pre_eps or w.eps) > 1e-3),
    Wrong("one iteration fewer", call(n_iters=lambda w: w.n_iters - 1), ("comb",),
          lambda w: w.n_iters <= 5 and wide(w)),
    Wrong("comb transposed", one("comb", lambda t: t.mT), ("comb",), everywhere),
    Wrong("coefficients rounded to bfloat16", exchanged(lambda w, results: {
        name: bfloat16(results[name]) for name in ("post", "comb")}), ("post", "comb"), wide),
    Wrong("dfn of the streams in reverse", one("dfn", lambda t: t.flip(-1)), ("dfn",), everywhere),
    Wrong("dbase never filled", one("dbase", torch.zeros_like), ("dbase",), everywhere),
    Wrong("dscale of another part", one("dscale", lambda t: t.roll(1, -1)), ("dscale",), everywhere),
    Wrong("no gradient where a result is unused", exchanged(lambda w, results: {
        name: torch.zeros_like(results[name]) for name in GRADIENTS}), GRADIENTS, lambda w: bool(w.unused)),
    Wrong("ones for the gradient of an unused result", ones_for_unused, GRADIENTS, lambda w: bool(unused(w))),
    *wrong.damages(EXACT, RESULTS),
    *boundary.WRONG,
    Wrong("weights without eps in dx", exactly(weights_back=lambda made: made["pre"] - 1e-2), ("dx",),
          CONSTANTS),
    Wrong("the gradient of the weights with the other sign", exactly(dpre=torch.neg), GRADIENTS, SINGLE),
    Wrong("the gradient of the weights of whole tiles", exactly(
        columns=lambda t: t[..., : t.size(-1) // 64 * 64].sum(-1)), GRADIENTS[1:], SINGLE),
    Wrong("the norm of the next token", projected(norm=lambda w, q: reciprocal_norm(w, q.roll(-1, 1))),
          VALUES, SINGLE),
    Wrong("1 - sigmoid in the gates' gradient", exactly(split=coefficients.Steps(
        slope=lambda a: a.sigmoid() * (1 - a.sigmoid()))), ("dfn", "dbase"), SATURATED),
    Wrong("streams in reverse", given(x=lambda t: t.flip(2)), ("y", "post"), SINGLE),
    Wrong("dfn of the element before added", one("dfn", edited(lambda t: t[1:].add_(t[:-1].clone()))),
          ("dfn",), SINGLE),
    # runs are repeated for a quarter of a second: too few of a whole site on a CPU for one in eight
    *(w for w in wrong.of_any(right, SINGLE, "dx", 1) if "in one run" not in w.name),
    *wrong.of_any(right, ODD, "dfn", 1, only=("written", "bits where")),
]  # fmt: skip
