"""Bugs of hc_site, each planted into a right implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import gate
from ci.gate.arithmetic import bfloat16
from ci.gate.bugs import Bug, anywhere, at, edited, later
from ci.operators.hc_mixes.steps import Steps as Projection
from ci.operators.hc_mixes.steps import norm_factor, of_parts, reciprocal_norm, tf32
from ci.operators.hc_site.steps import Steps, the_parts
from ci.operators.hc_site.truths import NAMES
from ci.operators.hc_split_sinkhorn import steps as coefficients
from helion_sinkhorn.lab.site.budget import RESULTS

Change = Callable[[torch.Tensor], torch.Tensor]
SINGLE, ODD, LONG, SATURATED, CONSTANTS, OUTSIDE = (
    f"hc_site_{name}" for name in ("fp32", "odd_fp32", "long", "saturated", "constants", "eps_outside")
)
GRADIENTS = ("dx", "dfn", "dscale", "dbase")
SUMS = GRADIENTS[1:]

right = the_parts


def call(**change) -> gate.Run:
    """A call with other options."""
    return lambda w, *t: right(replace(w, **change), *t)


def given(**change: Change) -> gate.Run:
    """Other inputs, by name."""

    def run(w, *inputs):
        return right(w, *(change.get(n, lambda t: t)(t) for n, t in zip(NAMES, inputs, strict=False)))

    return run


def bug(name: str, run: gate.Run, *of: str, on: str = SINGLE) -> Bug:
    return Bug(name, on, run, of or RESULTS)


def stored(name: str, of: str, index, value: Change, on: str = SINGLE) -> Bug:
    """One result changed where it is written: at an index, to a function of the whole."""
    return Bug(name, on, later(right, of, at(index, value)), (of,))


BUGS = [
    # runs are repeated for a quarter of a second: too few of a whole site on a CPU for one bug in eight runs
    *(b for b in anywhere(right, SINGLE, "dx", 1) if "in one run" not in b.name),
    *(b for b in anywhere(right, ODD, "dfn", 1) if "written" in b.name or "bits where" in b.name),
    bug("dresidual of bfloat16 through a buffer of the wrong row", given(
        dresidual=lambda t: t.roll(1, -1)), "dx"),
    bug("dresidual read as if it were contiguous", given(
        dresidual=lambda t: t.mT.contiguous().reshape(t.shape)), "dx"),
    bug("dresidual of the last stream never added", given(
        dresidual=edited(lambda t: t[..., -1, :].zero_())), "dx"),
    bug("dresidual of the last token never added", given(dresidual=edited(lambda t: t[:, -1].zero_())), "dx"),
    bug("dresidual in bfloat16", given(dresidual=bfloat16), "dx"),
    bug("dy in bfloat16 for dx alone", given(dy=bfloat16), "dx"),
    bug("dy of the token before", given(dy=lambda t: t.roll(1, 1)), *GRADIENTS),
    bug("weights of the first stream for all", Steps(
        weights_back=lambda made: made["pre"][..., :1].expand_as(made["pre"])), "dx"),
    bug("weights before they are normalised, the mixes, in dx", Steps(
        weights_back=lambda made: made["dmixes"][..., : made["pre"].size(-1)]), "dx"),
    bug("weights without eps in dx", Steps(weights_back=lambda made: made["pre"] - 1e-2), "dx", on=CONSTANTS),
    bug("the gradient of the weights in bfloat16", Steps(dpre=bfloat16), *SUMS),
    bug("the gradient of the weights with the other sign", Steps(dpre=torch.neg), *GRADIENTS),
    bug("the gradient of the weights over C", Steps(columns=lambda t: t.mean(-1)), *GRADIENTS),
    bug("the gradient of the weights of whole tiles", Steps(
        columns=lambda t: t[..., : t.size(-1) // 64 * 64].sum(-1)), *SUMS),
    bug("the norm's term twice, by the kernel and by the parts", Steps(
        Projection(factor=lambda *a: 2 * norm_factor(*a))), "dx"),
    bug("dx made of one part of fn", Steps(Projection(fn_back=of_parts(1))), "dx"),
    bug("a float32 dx made of two parts, and g of two", Steps(Projection(fn_back=of_parts(2), g=of_parts(2))),
        "dfn", on=LONG),
    bug("products of fn in TF32", Steps(Projection(fn=tf32)), "post", "comb"),
    bug("the norm of the next token", Steps(Projection(norm=lambda w, q: reciprocal_norm(w, q.roll(-1, 1)))),
        "post", "comb", "y"),
    bug("eps_outside ignored", call(eps_outside=False), on=OUTSIDE),
    bug("precision of another call", Steps(Projection(fn=tf32, fn_back=tf32, g=tf32, x=tf32)), *SUMS),
    bug("1 - sigmoid in the gates' gradient", Steps(split=coefficients.Steps(
        slope=lambda a: a.sigmoid() * (1 - a.sigmoid()))), "dfn", "dbase", on=SATURATED),
    bug("comb by input stream for a call by output stream", call(comb_order="io"), "comb", "dfn",
        on=CONSTANTS),
    bug("the constants of a default call", call(post_mult=2.0, post_eps=0.0), "post", on=CONSTANTS),
    bug("upstream gradients of post and comb ignored", given(
        dpost=torch.zeros_like, dcomb=torch.zeros_like), *SUMS),
    bug("streams in reverse", given(x=lambda t: t.flip(2)), "y", "post"),
    bug("one stream of the token before", given(x=edited(
        lambda t: t[:, 1:, 1].copy_(t[:, :-1, 1].clone()))), "y"),
    bug("scale and base of the element before", given(base=lambda t: t.roll(1, -1)), "post", "comb"),
    bug("dfn of the element before added", later(right, "dfn", edited(
        lambda t: t[1:].add_(t[:-1].clone()))), "dfn"),
    bug("dscale where dbase is", later(right, "dbase", edited(lambda t: t[..., :3].zero_())), "dbase"),
    stored("dx of a stream with the other sign", "dx", (..., slice(96, 192)), lambda t: -t[..., 96:192]),
    stored("a stale tile of dx", "dx", (slice(None), slice(16, 32)), lambda t: t[:, :16]),
    stored("y of the last column 0", "y", (..., -1), lambda t: 0 * t[..., -1], on=ODD),
    stored("dfn of the last stream 0", "dfn", (..., slice(-77, None)), lambda t: 0 * t[..., -77:], on=ODD),
    stored("comb of the last token 0", "comb", (slice(None), -1), lambda t: 0 * t[:, -1]),
    bug("y low by 2^-16 everywhere", later(right, "y", lambda t: t * (1 - 2.0**-16)), "y"),
    bug("dx added to what a stale buffer holds", later(right, "dx", lambda t: t + t.roll(1, 0)), "dx"),
]  # fmt: skip
