"""Correct implementations of hc_pre and wrong ones.

GOOD differs in the order of sums and in what is fused, FAULTS in what no implementation may do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ci.gate import columns, gate
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits
from ci.gate.columns import Change, same
from ci.gate.damage import DAMAGES
from ci.gate.gate import Fault
from ci.operators.hc_pre.steps import EXACT, Steps, pytorch, the_cpu_path
from helion_sinkhorn.lab.pre.budget import RESULTS
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload

VENDORS = {
    "nvidia": Steps(Arithmetic(fused=True), columns.tiles),
    "amd": Steps(Arithmetic(fused=True, sums="tree"), columns.tiles_one_by_one),
}
BASELINE = pytorch

GOOD: dict[str, gate.Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": pytorch,
    "the CPU path": the_cpu_path,
    "streams in order": Steps(),
    "streams in order, fused": Steps(Arithmetic(fused=True)),
    "last stream first": Steps(Arithmetic(sums="backwards")),
    "a tree of streams": Steps(Arithmetic(sums="tree")),
    **{name: Steps(columns=total) for name, total in columns.SUMS.items()},
}


def narrow(w: HcPreWorkload) -> bool:
    return w.dtype != torch.float32


def several(w: HcPreWorkload) -> bool:
    """Several streams."""
    return w.n > 1


def added(w: HcPreWorkload) -> bool:
    """Sums of several streams that round."""
    return w.n > 1 and w.values != "one stream"


def weighted(w: HcPreWorkload) -> bool:
    """Weights that are no powers of two, and wider than bfloat16."""
    return w.values != "one stream" and w.coefficients == torch.float32


def given(**change: Change) -> gate.Run:
    """Right for other inputs, by name."""

    def run(w, *inputs):
        return EXACT(
            w, *(change.get(name, same)(t) for name, t in zip(("x", "pre", "dy"), inputs, strict=True))
        )

    return run


def changed(change: Callable[[HcPreWorkload, gate.Results], gate.Results]) -> gate.Run:
    """Right results, then exchanged or damaged."""

    def run(w, *inputs):
        found = EXACT(w, *inputs)
        return found | change(w, found)

    return run


def damaged(damage: Change) -> gate.Run:
    return changed(lambda w, found: {name: damage(t) for name, t in found.items()})


def one(name: str, change: Change) -> gate.Run:
    return changed(lambda w, found: {name: change(found[name]).to(found[name].dtype)})


def summed(total: Change) -> gate.Run:
    """dpre from another sum over columns, in float64."""
    return Steps(columns=total, dtype=torch.float64)


def stream_left_out(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[..., :-1, :], torch.zeros_like(x[..., -1:, :])], -2)


def last_column_lost(t: torch.Tensor) -> torch.Tensor:
    return torch.cat([t[..., :-1], torch.zeros_like(t[..., -1:])], -1)


def truncated(w: HcPreWorkload, t: torch.Tensor) -> torch.Tensor:
    """Cut to the significand of the workload's dtype."""
    return keep_bits(t, {torch.bfloat16: 7, torch.float16: 10}[w.dtype])


def rounded(w: HcPreWorkload, *inputs) -> gate.Results:
    """Products rounded to the dtype of x before they are added."""
    return Steps(product=lambda t: t.to(w.dtype).float())(w, *inputs)


def accumulated(w: HcPreWorkload, *inputs) -> gate.Results:
    """An accumulator of the dtype of x."""
    return Steps(Arithmetic(partial=lambda t: t.to(w.dtype).float()))(w, *inputs)


def dpre_of_weighted(w, x, pre, dy) -> gate.Results:
    return {"dpre": EXACT(w, x.double() * pre.unsqueeze(-1).double(), pre, dy)["dpre"]}


FAULTS = [
    Fault("weights of the stream before", given(pre=lambda t: t.roll(1, -1)), ("y", "dx"), several),
    Fault("weights of the token before", given(pre=lambda t: t.roll(1, 1)), ("y", "dx"),
          lambda w: w.tokens > 1),
    Fault("weights left out", given(pre=torch.ones_like), ("y", "dx")),
    Fault("the mean of the streams", given(pre=lambda t: torch.full_like(t, 1 / t.size(-1))), ("y",)),
    Fault("the last stream left out", given(x=stream_left_out), ("y", "dpre")),
    Fault("weights rounded to bfloat16", given(pre=bfloat16), ("y", "dx"), weighted),
    Fault("weights of TF32", given(pre=lambda t: keep_bits(t, 10)), ("y", "dx"),
          lambda w: weighted(w) and not narrow(w)),
    Fault("streams of TF32", given(x=lambda t: keep_bits(t, 10)), ("y", "dpre"), lambda w: not narrow(w)),
    Fault("streams rounded to bfloat16", given(x=lambda t: t.bfloat16().to(t.dtype)), ("y", "dpre"),
          lambda w: w.dtype != torch.bfloat16),
    Fault("upstream gradient rounded to bfloat16", given(dy=lambda t: t.bfloat16().to(t.dtype)),
          ("dx", "dpre"), lambda w: w.dtype != torch.bfloat16),
    Fault("products rounded before they are added", rounded, ("y",), lambda w: narrow(w) and added(w)),
    Fault("a narrow accumulator", accumulated, ("y",), lambda w: narrow(w) and added(w) and w.n > 2),
    Fault("results truncated", Steps(last=truncated), ("y", "dx"),
          lambda w: narrow(w) and w.values != "one stream"),
    Fault("dpre of products rounded to bfloat16", Steps(product=bfloat16), ("dpre",),
          lambda w: w.coefficients == torch.float32),
    Fault("dpre in a bfloat16 accumulator", Steps(columns=functools.partial(columns.tiles, partial=bfloat16)),
          ("dpre",), lambda w: w.c > columns.TILE and w.coefficients == torch.float32),
    Fault("dpre of 15 bits", one("dpre", lambda t: keep_bits(t.float(), 14)), ("dpre",),
          lambda w: w.coefficients == torch.float32),
    Fault("dpre without the last column", summed(lambda t: t[..., :-1].sum(-1)), ("dpre",)),
    Fault("dpre up to whole tiles", summed(lambda t: t[..., : t.size(-1) // 64 * 64].sum(-1)), ("dpre",),
          lambda w: w.c % 64),
    Fault("dpre with the last column twice", summed(lambda t: t.sum(-1) + t[..., -1]), ("dpre",)),
    Fault("dpre of the first tile", summed(lambda t: t[..., :64].sum(-1)), ("dpre",), lambda w: w.c > 64),
    Fault("dpre of weighted streams", dpre_of_weighted, ("dpre",)),
    Fault("dpre of the stream before", one("dpre", lambda t: t.roll(1, -1)), ("dpre",), several),
    Fault("dpre never filled", one("dpre", torch.zeros_like), ("dpre",)),
    Fault("dx of the first weight for all streams", given(pre=lambda t: t[..., :1].expand_as(t)), ("dx",),
          several),
    Fault("dx shared among the streams", changed(lambda w, found: {"dx": found["dx"] / w.n}), ("dx",),
          several),
    Fault("the last column never computed", one("y", last_column_lost), ("y",)),
    Fault("the last column of dx never computed", one("dx", last_column_lost), ("dx",)),
    Fault("a part of the column before", one("y", lambda t: t + 2.0**-5 * t.roll(1, -1)), ("y",)),
    *(
        Fault(name, damaged(damage), RESULTS, lambda w, name=name: w.batch > 1 or name != "stale output")
        for name, damage in DAMAGES.items()
    ),
]  # fmt: skip
