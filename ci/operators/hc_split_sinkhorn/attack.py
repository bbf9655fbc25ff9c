"""Bugs of hc_split_sinkhorn, each planted into a right implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import gate
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits
from ci.gate.bugs import Bug, anywhere, at, edited, later
from ci.operators.hc_split_sinkhorn.steps import (
    GRADIENTS,
    Steps,
    at_once,
    differentiated,
    in_order,
    in_place,
    on_cpu,
    rms,
    scaling,
)  # fmt: skip
from helion_sinkhorn.lab.split.budget import RESULTS

ONE, LAST, NARROW, HALF = "hc_one_iteration", "hc_outputs_last", "hc_bf16", "hc_fp16"
THREE, FIVE, SIXTEEN = "hc_three_streams", "hc_five_streams", "hc_sixteen_streams"
SPLIT, PADDED = "hc_partials", "hc_partials_padded"
FORWARD = ("pre", "post", "comb")
SUMS = ("dbase", "dscale")


right = on_cpu


def call(**change) -> gate.Run:
    """A call with other options."""
    return lambda w, *t: right(replace(w, **{k: v(w) if callable(v) else v for k, v in change.items()}), *t)


def given(**change: Callable[[torch.Tensor], torch.Tensor]) -> gate.Run:
    """Other inputs, by name."""

    def run(w, *inputs):
        names = ("mixes", "dpre", "dpost", "dcomb", "scale", "base")
        return right(w, *(change.get(name, lambda t: t)(t) for name, t in zip(names, inputs, strict=True)))

    return run


def only(run: gate.Run, *of: str) -> gate.Run:
    """Some results of a wrong implementation, the others right."""

    def some(w, *inputs):
        wrong = run(w, *inputs)
        return right(w, *inputs) | {name: wrong[name] for name in of}

    return some


def bug(name: str, run: gate.Run, *of: str, on: str = ONE, hidden: str = "") -> Bug:
    return Bug(name, on, run, of or RESULTS, hidden)


def stored(name: str, of: str, index, value, on: str = ONE, hidden: str = "") -> Bug:
    """One result changed where it is written: at an index, to a function of the whole."""
    return Bug(name, on, later(right, of, at(index, value)), (of,), hidden)


def without(tokens: slice) -> Callable[[torch.Tensor], torch.Tensor]:
    """Tokens that no program adds."""

    def total(t):
        kept = torch.ones_like(t)
        kept[:, tokens] = 0.0
        return at_once(t * kept)

    return total


def twice(tokens: slice) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: at_once(torch.cat([t, t[:, tokens]], 1))


def maximum_of_first(w, t, machine):
    """The softmax shifted by the first logit of a row."""
    e = (t - t[..., :1]).exp()
    return iterated(w, e / e.sum(-1, keepdim=True) + w.eps)


def maximum_left_out(w, t, machine):
    e = t.exp()
    return iterated(w, e / e.sum(-1, keepdim=True) + w.eps)


def iterated(w, p):
    for k in range(2 * w.n_iters - 1):
        p = p / (p.sum(-1 if k % 2 else -2, keepdim=True) + w.eps)
    return p


def eps_once(w, t, machine):
    p = t.softmax(-1) + w.eps
    p = p / (p.sum(-2, keepdim=True) + w.eps)
    for k in range(2 * w.n_iters - 2):
        p = p / p.sum(-2 if k % 2 else -1, keepdim=True)
    return p


def both_sums_at_once(w, t, machine):
    """The column sums are stale by half a step."""
    p = t.softmax(-1) + w.eps
    p = p / (p.sum(-2, keepdim=True) + w.eps)
    for _ in range(w.n_iters - 1):
        p = p / (p.sum(-1, keepdim=True) + w.eps) / (p.sum(-2, keepdim=True) + w.eps)
    return p


def padding_counted(w, t, machine):
    """A row and a column of logits 0 beside the matrix."""
    wide = torch.nn.functional.pad(t, (0, 1, 0, 1))
    return iterated(w, wide.softmax(-1) + w.eps)[..., :-1, :-1]


def padded_columns_of_eps(w, t, machine):
    """Padded columns take part with the eps that is added to everything."""
    p = t.softmax(-1) + w.eps
    for k in range(2 * w.n_iters - 1):
        extra = 0.0 if k % 2 == 0 else (4 - w.n % 4) * w.eps
        p = p / (p.sum(-1 if k % 2 else -2, keepdim=True) + w.eps + extra)
    return p


def with_comb(function) -> gate.Run:
    return Steps(comb=differentiated(function))


def forward_only(w, logits, grad, machine):
    """The gradient begins from the rows' side: the last column step left out of it."""
    p, _ = scaling(w, logits, grad, machine)
    return p, in_place(steps=1)(w, logits, grad, machine)[1]


def of_rounded_comb(w, logits, grad, machine):
    """The gradient of logits rounded to bfloat16, as another kernel left them."""
    return scaling(w, logits, grad, machine)[0], scaling(w, bfloat16(logits), grad, machine)[1]


def floored(t: torch.Tensor) -> torch.Tensor:
    """To bfloat16, down."""
    near = t.bfloat16()
    return torch.where(near.float() > t, torch.nextafter(near, torch.full_like(near, -torch.inf)), near)


def in_float32(change: Callable[[torch.Tensor], torch.Tensor]) -> gate.Run:
    """dmixes of float32, rounded in another way."""

    def run(w, *inputs):
        wide = right(replace(w, dtype=torch.float32), inputs[0].float(), *inputs[1:])
        return right(w, *inputs) | {"dmixes": change(wide["dmixes"]).to(w.dtype)}

    return run


def from_stored_dmixes(w, mixes, *rest):
    """The sums from dmixes as they were stored."""
    found, s = right(w, mixes, *rest), rest[3].repeat_interleave(torch.tensor((w.n, w.n, w.n**2)), -1)
    return found | {"dbase": at_once(found["dmixes"].float() / s[:, None])}


BUGS = [
    *anywhere(right, LAST, "comb", 3),
    *(
        b
        for b in anywhere(right, NARROW, "dmixes", 1)
        if any(word in b.name for word in ("lane", "line", "store", "corner"))
    ),
    *(b for b in anywhere(right, THREE, "dbase", 2) if "written" in b.name or "bits" in b.name),
    bug("post_mult of the default", call(post_mult=2.0), "post", "dmixes", on=LAST),
    bug("post_mult twice in the gradient", only(call(post_mult=lambda w: w.post_mult**2), "dmixes"),
        "dmixes"),
    bug("pre_eps ignored, eps taken", call(pre_eps=None), "pre", on=LAST),
    bug("post_eps ignored", call(post_eps=0.0), "post", on=LAST),
    bug("pre_eps on post", call(post_eps=lambda w: w.pre_eps), "post", on=LAST),
    bug("eps of the default", call(eps=1e-6, pre_eps=lambda w: w.pre_eps), "comb", "dmixes", on=LAST),
    bug("eps in the first denominator only", with_comb(eps_once), "comb", on=LAST),
    bug("comb_order ignored in the forward", only(call(comb_order="io"), "comb"), "comb", on=LAST),
    bug("comb_order ignored in the gradient", only(call(comb_order="io"), *GRADIENTS), *GRADIENTS, on=LAST),
    bug("iterations in pairs: an odd one is lost", call(n_iters=4), "comb", "dmixes", on=FIVE),
    bug("the gradient of one iteration fewer", only(call(n_iters=4), *GRADIENTS), *GRADIENTS, on=SIXTEEN),
    bug("the gradient without the last column step", Steps(comb=forward_only), *GRADIENTS, on=FIVE),
    bug("both sums of the matrix before the iteration", with_comb(both_sums_at_once), "comb", on=FIVE),
    bug("no maximum subtracted", with_comb(maximum_left_out), "comb", "dmixes", on="hc_peaked"),
    bug("the first logit for the maximum", with_comb(maximum_of_first), "comb", "dmixes", on="hc_peaked"),
    bug(
        "no maximum subtracted, logits of a model",
        with_comb(maximum_left_out),
        "comb",
        on=THREE,
        hidden="any shift gives the same softmax until an exponential overflows",
    ),
    bug("padding counted", with_comb(padding_counted), "comb", "dmixes", on=THREE),
    bug("padded columns add their eps", with_comb(padded_columns_of_eps), "comb", on=LAST),
    bug("logits of the gradient from bfloat16", Steps(comb=of_rounded_comb), "dmixes"),
    bug("the first token's scale for all parts", given(scale=lambda s: s[:, :1].expand_as(s)), *FORWARD),
    bug("scale of post for comb", given(scale=lambda s: s[:, [0, 1, 1]]), "comb", "dmixes"),
    bug("base of comb by columns", given(base=edited(
        lambda b: b[:, 8:].copy_(b[:, 8:].unflatten(-1, (4, 4)).mT.flatten(-2).clone()))), "comb"),
    bug("base of the last column left out", given(base=edited(lambda b: b[:, -1].zero_())), "comb"),
    bug("base one column late", given(base=lambda b: b.roll(1, -1)), *FORWARD, on=THREE),
    bug("base in half precision", given(base=lambda b: b.half().float()), *FORWARD),
    bug("scale in bfloat16", given(scale=bfloat16), *FORWARD),
    bug("mixes in half precision", given(mixes=lambda t: t.half().float()), *FORWARD),
    bug("mixes of half precision through bfloat16", given(mixes=lambda t: t.bfloat16().half()), *FORWARD,
        on=HALF),
    bug("mixes of the token before at one position", given(
        mixes=edited(lambda t: t[:, 17].copy_(t[:, 16].clone()))), *FORWARD),
    bug("tokens wrap at 32", given(mixes=lambda t: t[:, torch.arange(t.size(1)) % 32]), *FORWARD),
    bug("the last token clamped to the one before", given(
        mixes=lambda t: t[:, torch.arange(t.size(1)).clamp(max=t.size(1) - 2)]), *FORWARD, on=FIVE),
    bug("upstream gradient of comb by columns", given(dcomb=lambda g: g.mT.contiguous()), "dmixes", on=THREE),
    bug("upstream gradient of post for pre", lambda w, m, a, b, c, *rest: right(w, m, b, b, c, *rest),
        "dmixes"),
    bug("upstream gradient of comb in bfloat16", given(dcomb=bfloat16), "dmixes", "dbase"),
    bug("upstream gradient of the first token for all", given(dpre=lambda g: g[:, :1].expand_as(g)),
        "dmixes"),
    bug("upstream gradient of the last stream ignored", given(dpost=edited(lambda g: g[..., -1].zero_())),
        "dmixes", on=FIVE),
    bug("1 - sigmoid where gates are open", Steps(slope=lambda a: a.sigmoid() * (1 - a.sigmoid())), "dmixes",
        on="hc_saturated"),
    bug("gates clamped at 20", Steps(sigmoid=lambda a, machine: a.clamp(-20.0, 20.0).sigmoid()), "dmixes",
        on="hc_saturated"),
    bug("gates of a table of 12 bits", Steps(sigmoid=lambda a, machine: keep_bits(a.sigmoid(), 12)), "pre",
        "post"),
    bug("reciprocal of 14 bits", Steps(Arithmetic(multiplies=True, inverse=lambda t: keep_bits(t, 14)),
        comb=in_place()), "comb", on=LAST),
    bug("log2(e) of 12 bits", Steps(sigmoid=lambda a, machine: (a * (1 + 2.0**-13)).sigmoid()), "pre",
        "post"),
    bug("sums without a tile of tokens", Steps(total=without(slice(32, 64))), *SUMS, on=THREE),
    bug("sums without token 0", Steps(total=without(slice(1))), *SUMS),
    bug("the partial sum of the last program lost", Steps(total=without(slice(-1, None))), *SUMS,
        on="hc_model"),
    bug("sums up to a multiple of 32 tokens", Steps(total=without(slice(32, None))), *SUMS),
    bug("the partial sum of a program added twice", Steps(total=twice(slice(64, 128))), *SUMS, on="hc_model"),
    bug("masked tokens counted as the last one", Steps(total=twice(slice(-1, None))), *SUMS),
    bug("partial sums in bfloat16", Steps(total=lambda t: in_order(t, bfloat16)), *SUMS),
    bug("partial sums of half precision", Steps(total=lambda t: in_order(t, lambda x: keep_bits(x, 10))),
        *SUMS,
        on=FIVE),
    bug("dbase of the element before added", later(right, "dbase",
        edited(lambda t: t[1:].add_(t[:-1].clone()))),
        "dbase"),
    bug("dbase from the stored dmixes", from_stored_dmixes, "dbase", on=NARROW),
    stored("dscale of comb never written", "dscale", (..., 2), lambda t: torch.zeros_like(t[..., 2])),
    stored("dscale of pre and post exchanged", "dscale", (..., slice(2)), lambda t: t[..., [1, 0]]),
    stored("dscale of comb without its last column", "dscale", (..., 2), lambda t: t[..., 2] * (1 - 2.0**-6)),
    stored("pre of the last stream 0", "pre", (..., -1), lambda t: 0 * t[..., -1], on=THREE),
    stored("post of streams in reverse in a pair", "post", (..., slice(2)), lambda t: t[..., [1, 0]]),
    stored("one row of comb of the token before", "comb", (slice(None), slice(1, None), 2),
           lambda t: t[:, :-1, 2]),
    stored("a stale tile of 16 tokens", "pre", (slice(None), slice(16, 32)), lambda t: t[:, :16]),
    stored("one column of dmixes with the other sign", "dmixes", (..., 5), lambda t: -t[..., 5], on=NARROW),
    stored("post a unit low everywhere", "post", (...,), lambda t: t * (1 - 2.0**-21)),
    stored("tie of comb broken up", "comb", (...,), lambda t: torch.nextafter(t, t + 1),
        hidden="a unit in the last place is what correct arithmetic is off by too"),
    bug("one split twice in place of the next", given(mixes=edited(
        lambda t: t[:, 5].copy_(t[:, 4].clone()))), *FORWARD, on=SPLIT),
    bug("a split of the token before", given(mixes=edited(
        lambda t: t[:, 3, 1:].copy_(t[:, 3, :-1].clone()))), *FORWARD, on=SPLIT),
    bug("the first four of eight splits", given(mixes=edited(
        lambda t: t[:, 4:].zero_())), *FORWARD, on=SPLIT),
    bug("the last split in bfloat16", given(mixes=edited(
        lambda t: t[:, -1].copy_(bfloat16(t[:, -1])))), *FORWARD, on=SPLIT),
    bug("squares of the first token for all", given(mixes=edited(
        lambda t: t[..., -1].copy_(t[..., :1, -1].expand(t.shape[:-1]).clone()))), *FORWARD, on=SPLIT),
    bug("squares of the last split twice", given(mixes=edited(lambda t: t[:, -1, :, -1].mul_(2.0))), *FORWARD,
        on=PADDED),
    bug("the mean over one entry fewer", call(size=lambda w: w.size - 1), *FORWARD, on=SPLIT),
    bug("r of 12 bits", Steps(norm=lambda w, mean, machine: tuple(
        keep_bits(t, 12) for t in rms(w, mean, machine))), *FORWARD, on=SPLIT),
    bug("k as inside of the root", Steps(norm=lambda w, mean, machine: (
        rms(w, mean, machine)[0], -rms(w, mean, machine)[0] ** 2 / w.size)), "dmixes", on=PADDED),
    stored("the squares' gradient with the other sign", "dmixes", (..., -1), lambda t: -t[..., -1], on=SPLIT),
    stored("the gradient of a split never written", "dmixes", (slice(None), 2),
           lambda t: torch.zeros_like(t[:, 2]), on=PADDED),
    bug("rounded down at the store", in_float32(floored), "dmixes", on=NARROW),
    bug("half precision through bfloat16", in_float32(bfloat16), "dmixes", on=HALF),
]  # fmt: skip
