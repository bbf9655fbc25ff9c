"""Correct implementations of hc_mixes and wrong ones.

GOOD differs in the order of sums and in how a matrix unit makes products, FAULTS in what none may do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import gate
from ci.gate.arithmetic import bfloat16, keep_bits, truncated
from ci.gate.damage import DAMAGES
from ci.gate.gate import Fault
from ci.gate.products import (
    in_float64,
    in_order,
    permuted,
    plain,
    split,
    to_bfloat16,
    tree,
)
from ci.operators.hc_mixes.steps import (
    EXACT,
    TILE,
    Change,
    Product,
    Steps,
    in_three_parts,
    mean_square,
    norm_factor,
    of_parts,
    reciprocal_norm,
    tf32,
    tf32_cut,
)
from ci.operators.hc_mixes.truths import on_cpu
from helion_sinkhorn import reference
from helion_sinkhorn.lab.mixes.budget import RESULTS
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload

Where = Callable[[MixesWorkload], bool]


def everywhere(product: Product) -> Steps:
    """One way to sum for all three products."""
    return Steps(z=product, product=product, tokens=product)


def pytorch(w: MixesWorkload, x, dmixes, fn) -> gate.Results:
    """Float32 autograd of the specification."""
    leaf, rows = x.detach().float().requires_grad_(), fn[0].detach().float().requires_grad_()
    found = []
    for k in range(len(x)):
        mixes = reference.hc_mixes(leaf[k], rows, w.norm_eps, eps_outside=w.eps_outside)
        dx, dfn = torch.autograd.grad(mixes, (leaf, rows), dmixes[k])
        found.append((mixes.detach(), dx[k].flatten(1).to(w.dtype), dfn))
    return dict(zip(RESULTS, map(torch.stack, zip(*found, strict=True)), strict=True))


def cpu_path(w: MixesWorkload, *inputs) -> gate.Results:
    return {name: on_cpu(w, name, *inputs) for name in RESULTS}


def wide(w: MixesWorkload) -> bool:
    return w.precision == "float32"


def narrow(w: MixesWorkload) -> bool:
    return w.dtype != torch.float32


def single(w: MixesWorkload) -> bool:
    return w.dtype == torch.float32


def asked(where: Where, run: gate.Run) -> gate.Run:
    """Where it is right; elsewhere nothing."""
    return lambda w, *inputs: run(w, *inputs) if where(w) else {}


def in_tf32(change: Change) -> gate.Run:
    """One TF32 product for each, of x only where it is float32."""
    of_single = Steps(fn=change, fn_back=change, g=change, x=change)
    of_narrow = replace(of_single, x=lambda t: t)
    return asked(lambda w: not wide(w), lambda w, *t: (of_single if single(w) else of_narrow)(w, *t))


NVIDIA = everywhere(in_three_parts)
AMD = everywhere(functools.partial(split, count=8, product=functools.partial(in_order, depth=8)))
VENDORS = {"nvidia": NVIDIA, "amd": AMD}
BASELINE = Steps()

GOOD: dict[str, gate.Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": pytorch,
    "the CPU path": cpu_path,
    "the equations in float32": BASELINE,
    "sums in float64": everywhere(in_float64),
    **{f"in order, {k} terms a step": everywhere(functools.partial(in_order, depth=k)) for k in (32, 128)},
    "last terms first": everywhere(functools.partial(in_order, backwards=True)),
    "a tree of slabs": everywhere(tree),
    "terms permuted": everywhere(permuted),
    **{f"split-K {k}": everywhere(functools.partial(split, count=k)) for k in (2, 16)},
    "three bfloat16 parts, cut (NVIDIA)": NVIDIA,
    "fused multiply-adds in order, split-K 8 (AMD)": AMD,
    "fn in two parts for a narrow dx": lambda w, *inputs: {
        name: t for name, t in Steps(fn_back=of_parts(2))(w, *inputs).items() if name != "dx" or narrow(w)
    },
    "TF32, rounded": in_tf32(tf32),
    "TF32, cut": in_tf32(tf32_cut),
}


def exactly(**steps) -> Steps:
    """Right to the last rounding but for these steps."""
    return Steps(exactly=True, **steps)


def call(**change) -> gate.Run:
    """Right for another call; values may be functions of the workload."""

    def run(w, *inputs):
        return EXACT(replace(w, **{n: v(w) if callable(v) else v for n, v in change.items()}), *inputs)

    return run


def given(**change: Change) -> gate.Run:
    """Right for other inputs, by name."""

    def run(w, *inputs):
        names = ("x", "dmixes", "fn")
        return EXACT(w, *(change.get(n, lambda t: t)(t) for n, t in zip(names, inputs, strict=True)))

    return run


def damaged(damage: Change) -> gate.Run:
    return lambda w, *inputs: {name: damage(t) for name, t in EXACT(w, *inputs).items()}


def of_streams(w: MixesWorkload, x: torch.Tensor) -> torch.Tensor:
    """The mean square of each stream, for its own entries."""
    q = x.unflatten(-1, (w.n, w.c)).square().mean(-1, keepdim=True)
    return q.expand(*q.shape[:-1], w.c).flatten(-2)


def normed_by_stream(w: MixesWorkload, x, dmixes, fn) -> gate.Results:
    """A norm for each stream by itself, before the product."""
    leaf = x.flatten(2).double().requires_grad_()
    rows = fn.double().requires_grad_()
    mixes = (leaf * reciprocal_norm(w, of_streams(w, leaf))) @ rows.mT
    dx, dfn = torch.autograd.grad(mixes, (leaf, rows), dmixes.double())
    return {"mixes": mixes.detach().float(), "dx": dx.to(w.dtype), "dfn": dfn.float()}


def without(count: int) -> Product:
    """The last terms left out."""
    return lambda a, b: plain(a[..., :-count], b[..., :-count, :])


def whole_tiles(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Terms up to a multiple of a tile."""
    end = a.size(-1) // TILE * TILE
    return plain(a[..., :end], b[..., :end, :])


def padded_to(tile: int) -> Callable[[MixesWorkload, torch.Tensor], torch.Tensor]:
    """The mean over columns that are not there."""
    return lambda w, x: x.square().sum(-1, keepdim=True) / (-(-x.size(-1) // tile) * tile)


def streams_last(w: MixesWorkload, x, dmixes, fn) -> gate.Results:
    """fn read as if the streams were the last dimension."""
    turned = fn.unflatten(-1, (w.n, w.c)).mT.flatten(-2)
    found = EXACT(w, x, dmixes, turned)
    return found | {"dfn": found["dfn"].unflatten(-1, (w.c, w.n)).mT.flatten(-2)}


def in_float8(t: torch.Tensor) -> torch.Tensor:
    return t.float().to(torch.float8_e4m3fn).to(t.dtype)


def tail(w: MixesWorkload) -> bool:
    return w.columns % TILE != 0


def several_tokens(w: MixesWorkload) -> bool:
    return w.tokens > 1


def several_streams(w: MixesWorkload) -> bool:
    return w.n > 1


def eps_matters(w: MixesWorkload) -> bool:
    return w.norm_eps >= 0.01 or w.name == "mixes_tiny"


def scaled(w: MixesWorkload) -> bool:
    """r is far from 1."""
    return eps_matters(w) or w.spread != 1 or w.values == "massive"


def few_columns(w: MixesWorkload) -> bool:
    """The norm's share of dx, about the root of 1 / K, is above the rounding of dx."""
    return single(w) or w.columns < 2000


FAULTS = [
    Fault("fn in bfloat16", exactly(fn=of_parts(1)), ("mixes",)),
    Fault("fn in two bfloat16 parts", exactly(fn=of_parts(2)), ("mixes",), wide),
    Fault("fn in TF32, float32 asked", exactly(fn=tf32), ("mixes",), wide),
    Fault("fn in float8, TF32 asked", exactly(fn=in_float8), ("mixes",), lambda w: not wide(w)),
    Fault("fn in bfloat16 for dx", exactly(fn_back=of_parts(1)), ("dx",)),
    Fault("fn in two bfloat16 parts for a float32 dx", exactly(fn_back=of_parts(2)), ("dx",),
          lambda w: wide(w) and single(w)),
    Fault("fn in TF32 for dx, float32 asked", exactly(fn_back=tf32), ("dx",), wide),
    Fault("upstream gradient in bfloat16", exactly(g=of_parts(1)), ("dx", "dfn")),
    Fault("upstream gradient in two bfloat16 parts", exactly(g=of_parts(2)), ("dfn",), wide),
    Fault("upstream gradient in TF32, float32 asked", exactly(g=tf32), ("dx", "dfn"), wide),
    Fault("x in bfloat16", exactly(x=of_parts(1)), ("mixes", "dfn"), lambda w: w.dtype != torch.bfloat16),
    Fault("x in two bfloat16 parts", exactly(x=of_parts(2)), ("mixes", "dfn"),
          lambda w: wide(w) and single(w)),
    Fault("x in TF32, float32 asked", exactly(x=tf32), ("mixes", "dfn"), lambda w: wide(w) and single(w)),
    Fault("the norm of x in bfloat16", exactly(mean=lambda w, x: mean_square(w, bfloat16(x.float()))),
          ("mixes",), lambda w: wide(w) and w.dtype != torch.bfloat16),
    Fault("bfloat16 accumulator, every 32 terms",
          Steps(z=functools.partial(in_order, add=to_bfloat16)), ("mixes",)),
    Fault("accumulator of 16 bits", Steps(z=functools.partial(in_order, depth=16,
          add=lambda t: keep_bits(t.float(), 15))), ("mixes",), lambda w: wide(w) and w.columns > 32),
    Fault("partial sums of dfn in bfloat16", Steps(tokens=functools.partial(in_order, depth=8,
          add=to_bfloat16)), ("dfn",), several_tokens),
    Fault("a reciprocal root of 12 bits", exactly(norm=lambda w, q: keep_bits(
          reciprocal_norm(w, q).float(), 12).double()), RESULTS, wide),
    Fault("eps on the other side of the root", call(eps_outside=lambda w: not w.eps_outside), RESULTS,
          eps_matters),
    Fault("eps of the default", call(norm_eps=1e-6), RESULTS, eps_matters),
    Fault("no eps", call(norm_eps=0.0), RESULTS, lambda w: eps_matters(w) or w.values == "zero token"),
    Fault("mean over one stream's count", exactly(mean=lambda w, x: w.n * mean_square(w, x)), RESULTS,
          several_streams),
    Fault("mean over the padded count", exactly(mean=padded_to(TILE)), RESULTS, tail),
    Fault("mean over one column fewer", exactly(
          mean=lambda w, x: mean_square(w, x) * x.size(-1) / (x.size(-1) - 1)), ("mixes",), wide),
    Fault("the norm's last columns left out", exactly(mean=lambda w, x: mean_square(w, torch.cat(
          [x[..., :-1], torch.zeros_like(x[..., -1:])], -1))), ("mixes",),
          lambda w: wide(w) and w.values != "massive"),
    Fault("a norm for each stream", normed_by_stream, RESULTS, several_streams),
    Fault("no norm", exactly(norm=lambda w, q: torch.ones_like(q)), RESULTS),
    Fault("the norm forgotten in dx", exactly(factor=lambda *a: torch.zeros(())), ("dx",), few_columns),
    Fault("the norm's factor 2 kept in dx", exactly(factor=lambda *a: 2 * norm_factor(*a)), ("dx",),
          few_columns),
    Fault("the norm's factor halved in dx", exactly(factor=lambda *a: norm_factor(*a) / 2), ("dx",),
          few_columns),
    Fault("the norm's term added, not subtracted", exactly(factor=lambda *a: -norm_factor(*a)), ("dx",),
          few_columns),
    Fault("the norm's term with r for its square", exactly(
          factor=lambda w, q, r, size: norm_factor(w, q, r, size) / r), ("dx",), scaled),
    Fault("the norm's term with products for mixes", exactly(
          along=lambda dmixes, mixes, z: (dmixes * z).sum(-1, keepdim=True)), ("dx",), scaled),
    Fault("the norm's term of eps inside", exactly(factor=lambda w, q, r, size: -r.square() / size), ("dx",),
          lambda w: w.eps_outside),
    Fault("dx not scaled by r", exactly(r_of_dx=torch.ones_like), ("dx",)),
    Fault("dfn not scaled by r", exactly(r_of_dfn=torch.ones_like), ("dfn",)),
    Fault("dfn scaled by r twice", exactly(r_of_dfn=torch.square), ("dfn",)),
    Fault("terms of dx rounded by themselves", exactly(term=lambda w, t: bfloat16(t.float()).double()),
          ("dx",), single),
    Fault("dx truncated", exactly(last=lambda w, t: truncated(w, t.float())), ("dx",), narrow),
    Fault("streams last", streams_last, ("mixes", "dx", "dfn"), lambda w: several_streams(w) and w.c > 1),
    Fault("rows of fn one further", given(fn=lambda t: t.roll(1, -2)), ("mixes", "dx"), lambda w: w.m > 1),
    Fault("the last column dropped", exactly(z=without(1)), ("mixes",)),
    Fault("the tail of the columns dropped", exactly(z=whole_tiles), ("mixes",), tail),
    Fault("a split missing", exactly(z=functools.partial(split, count=4, used=lambda p: p[:-1])),
          ("mixes",)),
    Fault("a split counted twice", exactly(z=functools.partial(split, count=4, used=lambda p: [*p, p[-1]])),
          ("mixes",)),
    Fault("the last row dropped from dx", exactly(product=without(1)), ("dx",), lambda w: w.m > 1),
    Fault("the last token dropped", exactly(tokens=without(1)), ("dfn",), several_tokens),
    Fault("the last partial sum of tokens counted twice", exactly(tokens=functools.partial(
          split, count=4, used=lambda p: [*p, p[-1]])), ("dfn",)),
    *(Fault(name, damaged(damage)) for name, damage in DAMAGES.items()),
]  # fmt: skip
