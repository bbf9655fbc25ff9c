"""Bugs of Sinkhorn and its exact gradient, each planted into a right implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import gate
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits
from ci.gate.bugs import Bug, anywhere, as_if_contiguous, at, elements_apart, later
from ci.operators.sinkhorn.faults import differentiated, dividing, in_place, named
from helion_sinkhorn.lab.sinkhorn import budget as testing
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.ops.sinkhorn import eager

BOTH = "P", "dX"


def right(w: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> gate.Results:
    """The CPU path."""
    return {"P": eager.forward(x, *w.arguments, w.dtype), "dX": eager.backward(dy, x, *w.arguments)}


def call(**change) -> gate.Run:
    """A call with other options."""
    return lambda w, x, dy: right(
        replace(w, **{k: v(w) if callable(v) else v for k, v in change.items()}), x, dy
    )


def given(x=lambda x: x, dy=lambda dy: dy) -> gate.Run:
    """A call with other inputs."""
    return lambda w, a, b: right(w, x(a), dy(b))


def written(function: Callable[[SinkhornWorkload, torch.Tensor], torch.Tensor]) -> gate.Run:
    """(P, dX) of a function of the logits in float32, by autograd."""
    return lambda w, x, dy: named(lambda *a: differentiated(lambda t: function(w, t), *a))(w, x, dy)


def iterated(change: Callable[[torch.Tensor, int, int], torch.Tensor], start=None):
    """The deepseek form or the log form as quotients, P changed by (P, iteration, axis) after each step."""

    def function(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
        eps = w.eps if w.form == "deepseek" else 0.0
        p = start(w, t) if start else t.softmax(-1) + eps
        for k in range(2 * w.n_iters - 1):
            axis = -2 if k % 2 == 0 else -1
            p = change(p / (p.sum(axis, keepdim=True) + eps), (k + 1) // 2, axis)
        return p

    return written(function)


def jacobi(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    """Both sums of the matrix before the iteration: the column sums are stale by half a step."""
    p = t.softmax(-1) + w.eps
    p = p / (p.sum(-2, keepdim=True) + w.eps)
    for _ in range(w.n_iters - 1):
        p = p / (p.sum(-1, keepdim=True) + w.eps) / (p.sum(-2, keepdim=True) + w.eps)
    return p


def eps_once(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    p = t.softmax(-1) + w.eps
    p = p / (p.sum(-2, keepdim=True) + w.eps)
    for _ in range(w.n_iters - 1):
        p = p / p.sum(-1, keepdim=True)
        p = p / p.sum(-2, keepdim=True)
    return p


def without_maximum(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    e = t.exp()
    return in_place_from(w, e / e.sum(-1, keepdim=True) + w.eps)


def maximum_of(columns: slice) -> Callable[[SinkhornWorkload, torch.Tensor], torch.Tensor]:
    def function(w, t):
        e = (t - t[..., columns].amax(-1, keepdim=True)).exp()
        return in_place_from(w, e / e.sum(-1, keepdim=True) + w.eps)

    return function


def maximum_of_matrix(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    e = (t - t.amax((-2, -1), keepdim=True)).exp()
    return in_place_from(w, e / e.sum(-1, keepdim=True) + w.eps)


def in_place_from(w: SinkhornWorkload, p: torch.Tensor) -> torch.Tensor:
    """The iterations behind the softmax."""
    for k in range(2 * w.n_iters - 1):
        p = p / (p.sum(-2 if k % 2 == 0 else -1, keepdim=True) + w.eps)
    return p


def sums_short_of(line: int) -> Callable[[SinkhornWorkload, torch.Tensor], torch.Tensor]:
    """Row sums of one row without its last entry."""

    def function(w, t):
        p = t.softmax(-1) + w.eps
        mask = torch.ones_like(p)
        mask[..., line, -1] = 0.0
        for k in range(2 * w.n_iters - 1):
            p = p / ((p.sum(-2, keepdim=True) if k % 2 == 0 else (p * mask).sum(-1, keepdim=True)) + w.eps)
        return p

    return function


def for_some(wrong: gate.Run, picked: Callable[[torch.Tensor], torch.Tensor]) -> gate.Run:
    """Wrong for the matrices at some positions of the batch."""

    def run(w, x, dy):
        where = picked(torch.arange(len(x))).view(-1, 1, 1)
        good, bad = right(w, x, dy), wrong(w, x, dy)
        return {name: torch.where(where, bad[name], good[name]) for name in good}

    return run


def other_gradient(wrong: gate.Run) -> gate.Run:
    """The right P."""
    return lambda w, x, dy: right(w, x, dy) | {"dX": wrong(w, x, dy)["dX"]}


def without_softmax_sum(w, x, dy):
    """The softmax's own projection left out of the gradient."""
    z = x.float().softmax(-1).to(x.dtype)
    found = right(w, x, dy)
    return found | {"dX": found["dX"] + 2.0**-8 * z}


def from_stored_result(w, x, dy):
    """The gradient of the last two half-steps from the rounded P that the forward stored."""
    p = right(w, x, dy)["P"].double()
    d = dy.double() * p
    d = d - p * d.sum(-2, keepdim=True)
    d = d - p * d.sum(-1, keepdim=True)
    exact = testing.exact(
        p.clamp_min(1e-30).log(), dy.double(), w.n_iters, eps=w.eps, form=w.form, first=w.first
    )
    return right(w, x, dy) | {"dX": exact[1].to(w.dtype)}


def last_step_of_bits(bits: int) -> gate.Run:
    """The last reciprocal from a table."""

    def function(w, t):
        p = in_place(t, w, Arithmetic(), steps=1)
        total = p.sum(-2 if w.first == "rows" else -1, keepdim=True) + w.eps
        return p * keep_bits(1.0 / total, bits)

    return written(function)


def floor_16(t: torch.Tensor) -> torch.Tensor:
    """Towards minus infinity, to the type of the result."""
    near = t.bfloat16()
    return torch.where(near.float() > t, torch.nextafter(near, torch.full_like(near, -torch.inf)), near)


def rounded_down(w, x, dy):
    wide = right(replace(w, dtype=torch.float32), x.float(), dy.float())
    return {name: floor_16(t) for name, t in wide.items()}


BUGS = [
    *anywhere(right, "tail_5x3", "P", 1),
    Bug("matrices taken to be adjacent", "two_matrices", as_if_contiguous(right, elements_apart), BOTH),
    Bug("eps of the default whatever the caller's", "other_eps", call(eps=1e-6), BOTH),
    Bug("eps twice", "other_eps", call(eps=lambda w: 2 * w.eps), BOTH),
    Bug("eps in the first denominator only", "other_eps", written(eps_once), BOTH),
    Bug("eps grows with the padding", "columns_first_6x3", call(eps=lambda w: w.eps * 8 / 6), BOTH),
    Bug("eps in the log form", "identity_like_4", named(dividing(eps=1e-6)), BOTH),
    Bug("first ignored", "columns_first_6x3", call(first="rows"), BOTH),
    Bug("first ignored in the gradient", "columns_first_6x3", other_gradient(call(first="rows")), ("dX",)),
    Bug("iterations in pairs: an odd one is lost", "mhc_five_iterations", call(n_iters=4), BOTH),
    Bug("no more than 16 iterations", "peaked_sharpest_4_long", call(n_iters=16), BOTH),
    Bug(
        "the gradient of one iteration fewer", "mhc_five_iterations", other_gradient(call(n_iters=4)), ("dX",)
    ),
    Bug("both sums of the matrix before the iteration", "mhc_five_iterations", written(jacobi), BOTH),
    Bug("no maximum subtracted", "beyond_exp", written(without_maximum), BOTH),
    Bug("maximum of the matrix for that of a row", "beyond_exp", written(maximum_of_matrix), BOTH),
    Bug("maximum of the first four columns", "beyond_exp", written(maximum_of(slice(4))), BOTH),
    Bug(
        "maximum of the first four columns, logits of 30 randn",
        "peaked_sharpest_16",
        written(maximum_of(slice(4))),
        BOTH,
        "any shift gives the same softmax until an exponential overflows",
    ),
    Bug("row sums of one row miss its last entry", "wide_4x8", written(sums_short_of(2)), BOTH),
    Bug(
        "one iteration fewer at odd positions",
        "mhc_five_iterations",
        for_some(call(n_iters=4), lambda k: k % 2 == 1),
        BOTH,
    ),
    Bug(
        "the last half-step missing at one position of 64",
        "mhc_one_iteration",
        for_some(written(lambda w, t: in_place(t, w, Arithmetic(), steps=1)), lambda k: k % 64 == 63),
        BOTH,
    ),
    Bug(
        "positions wrap at 16 bits of bytes: 1024 matrices",
        "mhc_fp32",
        lambda w, x, dy: right(w, x[torch.arange(len(x)) % 1024], dy[torch.arange(len(x)) % 1024]),
        BOTH,
    ),
    Bug(
        "last matrix clamped to the one before",
        "two_matrices",
        lambda w, x, dy: right(w, x[torch.arange(len(x)).clamp(max=max(len(x) - 2, 0))], dy),
        BOTH,
    ),
    Bug(
        "every matrix takes the first upstream gradient",
        "two_matrices",
        given(dy=lambda dy: dy[:1].expand_as(dy)),
        ("dX",),
    ),
    Bug(
        "upstream gradient transposed", "mhc_one_iteration", given(dy=lambda dy: dy.mT.contiguous()), ("dX",)
    ),
    Bug("upstream gradient in bfloat16", "mhc_fp32", given(dy=bfloat16), ("dX",)),
    Bug("logits in half precision", "wide_4x8", given(x=lambda x: x.half().float()), BOTH),
    Bug("log2(e) of 10 bits", "driver_8", given(x=lambda x: x * (1 + 2.0**-11)), BOTH),
    Bug("a part of the softmax's sum left in the gradient", "mhc_fp32", without_softmax_sum, ("dX",)),
    Bug("the gradient from the stored bfloat16 result", "seven_bf16", from_stored_result, ("dX",)),
    Bug("last reciprocal of 12 bits", "mhc_one_iteration", last_step_of_bits(12), ("P",)),
    Bug("rounded down at the store", "mhc_bf16", rounded_down, BOTH),
    Bug(
        "half precision through bfloat16",
        "mhc_fp16",
        lambda w, x, dy: {name: t.bfloat16().to(w.dtype) for name, t in right(w, x, dy).items()},
        BOTH,
    ),
    Bug(
        "one column of the gradient with the other sign",
        "seven_bf16",
        later(right, "dX", at((..., 5), lambda t: -t[..., 5])),
        ("dX",),
    ),
    Bug(
        "row 2 one iteration behind",
        "mhc_five_iterations",
        lambda w, x, dy: {
            name: at((slice(None), 2), lambda t, name=name: call(n_iters=4)(w, x, dy)[name][:, 2])(t)
            for name, t in right(w, x, dy).items()
        },
        BOTH,
    ),
    Bug(
        "masked entries at -30",
        "masked_8",
        given(x=lambda x: x.clamp_min(-30.0)),
        BOTH,
        "e^-30 is 1e-13: the budget of the log form has 2^-30 for what underflows",
    ),
    Bug(
        "masked entries at -10000",
        "masked_8",
        given(x=lambda x: x.clamp_min(-1e4)),
        BOTH,
        "exp(-10000) is the 0 of a mask in every float",
    ),
    Bug(
        "the vanishing column clamped at -80", "vanishing_column", given(x=lambda x: x.clamp_min(-80.0)), BOTH
    ),
    Bug("columns far apart clamped", "beyond_exp_log", given(x=lambda x: x.clamp(-88.0, 88.0)), BOTH),
]
