"""What results of recurrent linear attention may be off by, from where they are rounded.

The recurrence is linear in the state, so its rounding errors obey it too: `bounds` walks the errors beside
the values, in float64, each rounding at its bound and none against another (docs/linear_attention.md).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.testing import UNIT, half_ulp, worst
from helion_sinkhorn.workloads import AttentionWorkload

TERMS = 40
"""Roundings that a term of a sum over Dk or Dv meets: product, 32 terms of a thread, 5 exchanges, scale."""
TOTAL_TERMS = 64
"""The same of a sum over all tokens, which is a tree."""
DECAY, DECAY_SLOPE = 6, 4
"""Relative error of a decayed entry in UNITs, of them 4 the exponential's, and for each unit of log decay."""


@dataclass(frozen=True)
class Bounded:
    """A tensor and the largest error of each entry, both float64."""

    value: torch.Tensor
    error: torch.Tensor

    @classmethod
    def exact(cls, x: torch.Tensor) -> Bounded:
        return cls(x, torch.zeros_like(x))

    def summed(self, w: torch.Tensor, axis: int, terms: int = TERMS) -> Bounded:
        """The sum of w x over an axis."""
        error = (w.abs() * (self.error + terms * UNIT * self.value.abs())).sum(axis)
        return Bounded((w * self.value).sum(axis), error)

    def times(self, scale: float) -> Bounded:
        return Bounded(self.value * scale, self.error * abs(scale))

    def __add__(self, other: Bounded) -> Bounded:
        total = self.value + other.value
        return Bounded(total, self.error + other.error + UNIT * total.abs())


def decays(q, g=None, g_gamma=None, gk=None, gv=None) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors (B, T, H, Dk or 1, Dv or 1) of a state, and the relative error of an entry multiplied."""
    total = q.new_zeros(*q.shape[:3], 1, 1)
    error = total
    sides = (
        (g if g is None else g[..., None, None], g_gamma if g_gamma is None else g_gamma[:, None, None],
         gk if gk is None else gk.unsqueeze(-1)),
        (gv if gv is None else gv.unsqueeze(-2),),
    )  # fmt: skip
    for side in sides:
        logs = [x for x in side if x is not None]
        if logs:
            total = total + sum(logs)
            error = error + UNIT * (DECAY + DECAY_SLOPE * sum(x.abs() for x in logs))
    return total.exp(), error


def outer(k: torch.Tensor, v: torch.Tensor) -> Bounded:
    value = k.unsqueeze(-1) * v.unsqueeze(-2)
    return Bounded(value, 3 * UNIT * value.abs())


def span_bounds(tensors, do, dend, scale, start, reverse) -> dict[str, Bounded]:
    """Of one sequence, or several as long: o, the last state, and every gradient."""
    q, k, v = (tensors[name] for name in "qkv")
    factor, relative = decays(q, *[tensors.get(name) for name in ("g", "g_gamma", "gk", "gv")])
    zeros = q.new_zeros(q.size(0), *q.shape[2:], v.size(-1))

    def decayed(h: Bounded, t: int) -> Bounded:
        value = h.value * factor[:, t]
        return Bounded(value, h.error * factor[:, t] + relative[:, t] * value.abs())

    order = range(q.size(1))[::-1] if reverse else range(q.size(1))
    found: dict[str, dict[int, Bounded]] = {name: {} for name in ("o", "dq", "dk", "dv", "dgk", "dgv")}
    h = Bounded.exact(zeros if start is None else start)
    for t in order:
        h = decayed(h, t) + outer(k[:, t], v[:, t])
        found["o"][t] = h.summed(q[:, t].unsqueeze(-1), -2).times(scale)
        found["dq"][t] = h.summed(do[:, t].unsqueeze(-2), -1).times(scale)
    dend = zeros if dend is None else dend
    dh, rows, columns = Bounded.exact(dend), h.summed(dend, -1), h.summed(dend, -2)
    for t in reversed(order):
        dh = dh + outer(q[:, t], do[:, t] * scale)
        dk = found["dk"][t] = dh.summed(v[:, t].unsqueeze(-2), -1)
        dv = found["dv"][t] = dh.summed(k[:, t].unsqueeze(-1), -2)
        rows = rows + difference(q[:, t], found["dq"][t], k[:, t], dk)
        columns = columns + difference(do[:, t], found["o"][t], v[:, t], dv)
        found["dgk"][t], found["dgv"][t] = rows, columns
        dh = decayed(dh, t)
    whole = {name: stacked([of[t] for t in range(q.size(1))]) for name, of in found.items() if of}
    return {**whole, "end": h, "dstart": dh}


def difference(x: torch.Tensor, dx: Bounded, z: torch.Tensor, dz: Bounded) -> Bounded:
    """x dx - z dz, two products and their difference rounded."""
    one, other = x * dx.value, z * dz.value
    error = x.abs() * dx.error + z.abs() * dz.error + 2 * UNIT * (one.abs() + other.abs())
    return Bounded(one - other, error)


def stacked(parts: list[Bounded], axis: int = 1) -> Bounded:
    return Bounded(torch.stack([p.value for p in parts], axis), torch.stack([p.error for p in parts], axis))


def joined(parts: list[Bounded], axis: int) -> Bounded:
    return Bounded(torch.cat([p.value for p in parts], axis), torch.cat([p.error for p in parts], axis))


def spans(workload: AttentionWorkload) -> Iterator[tuple[slice, slice]]:
    """(steps, states) of what is walked together."""
    begin = 0
    for n, length in enumerate(workload.lengths):
        yield slice(begin, begin + length), slice(n, n + 1)
        begin += length
    if not workload.lengths:
        yield slice(None), slice(None)


def bounds(workload: AttentionWorkload, seed: int = 0) -> dict[str, Bounded]:
    """Every result by name, before its own last rounding."""
    tensors, do, dend = wide(workload, seed)
    start, scale = tensors.get("initial_state"), workload.dk**-0.5
    parts: dict[str, list[Bounded]] = {}
    for steps, states in spans(workload):
        own = {
            name: x if x.dim() == 1 else x[:, steps] for name, x in tensors.items() if name != "initial_state"
        }
        for name, part in span_bounds(
            own, do[:, steps], None if dend is None else dend[states], scale,
            None if start is None else start[states], workload.reverse,
        ).items():  # fmt: skip
            parts.setdefault(name, []).append(part)
    found = {name: joined(of, 0 if name in ("end", "dstart") else 1) for name, of in parts.items()}
    ones = torch.ones(workload.dk, dtype=torch.float64)
    found["dg"] = found["dgk"].summed(ones, -1)
    total = found["dg"]
    found["dg_gamma"] = total.summed(torch.ones_like(total.value), 0, TOTAL_TERMS).summed(
        torch.ones_like(total.value[0]), 0, 0
    )
    return found


def wide(workload: AttentionWorkload, seed: int):
    """The inputs in float64."""
    tensors, do, dend = workload.make_inputs(seed)
    tensors = {name: x.double() for name, x in tensors.items() if x.is_floating_point()}
    return tensors, do.double(), None if dend is None else dend.double()


@functools.lru_cache(maxsize=64)
def truth(workload: AttentionWorkload, seed: int = 0) -> dict[str, torch.Tensor]:
    """The specification in float64: o, end, and by autograd d<argument> of every tensor."""
    tensors, do, dend = wide(workload, seed)
    offsets = workload.make_inputs(seed)[0].get("cu_seqlens")
    leaves = {name: tensors[name].requires_grad_() for name in TENSORS if name in tensors}
    o, end = reference.recurrent_linear_attention(
        **leaves, output_final_state=True, reverse=workload.reverse, cu_seqlens=offsets
    )
    loss = (o * do).sum() + (0 if dend is None else (end * dend).sum())
    gradients = torch.autograd.grad(loss, tuple(leaves.values()))
    return {"o": o.detach(), "end": end.detach(), **named(gradients, leaves)}


@functools.lru_cache(maxsize=64)
def budgets(workload: AttentionWorkload, seed: int = 0) -> dict[str, torch.Tensor]:
    """The largest error of each result, rounded to the dtype that it has."""
    exact, found = truth(workload, seed), bounds(workload, seed)
    wide_results = ("end", "dstart")
    return {
        name: found[name].error + half_ulp(x, torch.float32 if name in wide_results else workload.dtype)
        for name, x in exact.items()
    }


def judge(workload: AttentionWorkload, results: dict[str, torch.Tensor], seed: int = 0) -> dict[str, float]:
    """The worst error of each result in units of its budget; 1 is the limit."""
    exact, allowed = truth(workload, seed), budgets(workload, seed)
    return {name: worst(x, exact[name], allowed[name]) for name, x in results.items()}


NAMES = {"initial_state": "dstart"}
TENSORS = ("q", "k", "v", "g", "g_gamma", "gk", "gv", "initial_state")


def named(gradients: list[torch.Tensor], tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients of those of TENSORS that are there, by name."""
    there = [name for name in TENSORS if name in tensors]
    return {NAMES.get(name, f"d{name}"): x for name, x in zip(there, gradients, strict=True)}


def run(function, workload: AttentionWorkload, device: str = "cpu", seed: int = 0) -> dict[str, torch.Tensor]:
    """The results of a function with the signature of recurrent_linear_attention, through autograd."""
    tensors, do, dend = workload.make_inputs(seed, device)
    leaves = {name: tensors[name].requires_grad_() for name in TENSORS if name in tensors}
    o, end = function(
        **leaves, output_final_state=True, reverse=workload.reverse, cu_seqlens=tensors.get("cu_seqlens")
    )
    outputs, upstream = ((o,), (do,)) if dend is None else ((o, end), (do, dend))
    gradients = torch.autograd.grad(outputs, tuple(leaves.values()), upstream)
    return {"o": o.detach(), "end": end.detach(), **named(gradients, leaves)}


def run_module(module, workload: AttentionWorkload, device: str = "cpu", seed: int = 0):
    """The same of a module with `forward` and `backward`, as the operators call it."""
    tensors, do, dend = workload.make_inputs(seed, device)
    *vectors, start = [tensors.get(name) for name in TENSORS]
    arguments = *vectors, workload.dk**-0.5, start, workload.reverse, tensors.get("cu_seqlens")
    o, end = module.forward(*arguments)
    return {"o": o, "end": end, **named(module.backward(do, dend, *arguments), tensors)}
