"""Correct implementations of dot_compress and wrong ones."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ci.gate import products, wrong
from ci.gate.arithmetic import bfloat16, half_up, keep_bits, rounded_down, truncated
from ci.gate.damage import Change, at, cleared, edited
from ci.gate.products import Rounding
from ci.gate.wrong import Results, Run, Wrong, everywhere, is_float32, narrow
from ci.operators.dot_compress.steps import EXACT, PYTORCH, Steps, carried, right
from helion_sinkhorn.lab.dot_compress.evidence import RESULTS
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload


def is_bfloat16(w: DotWorkload) -> bool:
    return w.dtype == torch.bfloat16


def has_z(w: DotWorkload) -> bool:
    return w.has_z


def in_float32(steps: Steps) -> Run:
    """Where results are float32: elsewhere their last rounding hides how sums err."""
    return lambda w, *inputs: {} if narrow(w) else steps(w, *inputs)


def in_order(**how) -> Steps:
    return Steps(functools.partial(products.in_order, **how))


def split(**how) -> Steps:
    return Steps(functools.partial(products.split, **how))


def on_unit(depth: int, add: Rounding) -> Run:
    """A matrix unit that adds in this way; float32 is fused term by term and rounded to nearest."""
    unit, fused = in_order(depth=depth, add=add), in_order(depth=1)
    return lambda w, *inputs: (unit if narrow(w) else fused)(w, *inputs)


VENDORS = {"nvidia": on_unit(16, products.cut), "amd": on_unit(8, products.floored)}
BASELINE = PYTORCH
GOOD: dict[str, Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": PYTORCH,
    "the CPU path": right,
    "sums in float64": Steps(products.in_float64),
    **{f"in order, {k} terms a step": in_order(depth=k) for k in (16, 32, 128)},
    "last terms first": in_order(backwards=True),
    "a tree of slabs": Steps(products.tree),
    "terms permuted": Steps(products.permuted),
    **{f"split-K {k}": split(count=k) for k in (2, 4, 8)},
    "accumulator cut (NVIDIA)": VENDORS["nvidia"],
    "accumulator floored (CDNA3)": VENDORS["amd"],
    **{f"accumulator rounded, {k} terms a step": in_float32(in_order(depth=k)) for k in (1, 4, 8)},
    "TF32 parts": in_float32(Steps(products.in_tf32x3)),
}

TAIL, PRECISE, SINGLE = "dot_tail", "dot_precise_z", "dot_fp32"
PRODUCTS = ("out", "dx", "dy")
"""The results that pass through an intermediate."""

given = functools.partial(wrong.given, right, ("x", "y", "grad", "z"))


def in_float8(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.float8_e4m3fn).float()


def high_part(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    return t.to(w.dtype).float()


def low_part_short(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    """Three quarters of the low part."""
    high = high_part(w, t)
    return high + 0.75 * (t - high)


def made(change: Change) -> Callable[[DotWorkload, torch.Tensor], torch.Tensor]:
    """An intermediate changed after its rounding."""
    return lambda w, t: change(carried(w, t))


def stepwise(function: Callable[..., Results]) -> Run:
    """Results of (workload, float32 x, y, grad, z)."""

    def run(w, *inputs):
        return {name: t.to(w.dtype) for name, t in function(w, *(t.float() for t in inputs)).items()}

    return run


def z_behind_the_rounding(w, x, y, grad, z):
    return {"out": x @ (carried(w, x.mT @ y) + z)}


def rounded_half_way(w, x, y, grad, z):
    half = x.size(1) // 2
    first = carried(w, x[:, :half].mT @ y[:, :half])
    return {"out": x @ carried(w, first + x[:, half:].mT @ y[:, half:] + z)}


def dx_without_b(w, x, y, grad, z=None):
    return {"dx": y @ carried(w, x.mT @ grad).mT}


def db_of_narrow_x(w, x, *rest) -> Results:
    return right(w, x, *rest) | {"dz": right(w, bfloat16(x), *rest)["dz"]}


WRONG = [
    Wrong("intermediate truncated", Steps(carry=truncated), PRODUCTS, narrow),
    Wrong("intermediate of 14 bits", Steps(carry=lambda w, t: keep_bits(t, 13)), PRODUCTS, is_float32),
    Wrong("intermediate in float8", Steps(carry=in_float8), PRODUCTS, everywhere),
    Wrong("the neighbour's intermediate", Steps(carry=made(lambda t: t.roll(1, 0))), PRODUCTS, everywhere),
    Wrong("one line of the intermediate scaled by 1 + 2^-4",
          Steps(carry=made(edited(lambda t: t[..., 0, :].mul_(1 + 2.0**-4)))), PRODUCTS, everywhere),
    Wrong("low part left out", Steps(carry=high_part), PRODUCTS, lambda w: w.parts == 2),
    Wrong("three quarters of the low part", Steps(carry=low_part_short), PRODUCTS, PRECISE),
    Wrong("sums rounded half way", stepwise(rounded_half_way), ("out",), TAIL),
    Wrong("last row left out of the sums", Steps(sum_rows=cleared(..., -1, slice(None))), RESULTS,
          everywhere),
    Wrong("first tile of rows summed twice", Steps(sum_rows=edited(lambda x: x[:, :16].mul_(2.0))), RESULTS,
          TAIL),
    Wrong("a split missing", split(count=4, used=lambda parts: parts[:-1]), RESULTS, everywhere),
    Wrong("bfloat16 accumulator, every 32 terms", in_order(add=products.to_bfloat16), RESULTS, everywhere),
    *(
        Wrong(f"float32 products with {name} cut to 16 bits",
              Steps(lambda a, b, cuts=cuts: keep_bits(a, cuts[0]) @ keep_bits(b, cuts[1])), RESULTS,
              is_float32)
        for name, cuts in {"the first factor": (15, 23), "the second factor": (23, 15)}.items()
    ),
    Wrong("single-precision x in bfloat16 for db only", db_of_narrow_x, ("dz",), SINGLE),
    Wrong("terms of dx truncated", Steps(terms=lambda t: keep_bits(t, 7)), ("dx",), is_bfloat16),
    Wrong("terms of dx rounded before they are added", Steps(terms=products.to_bfloat16), ("dx",), TAIL),
    Wrong("result truncated", Steps(last=truncated), RESULTS, narrow),
    Wrong("rounded down at the store", Steps(last=rounded_down), RESULTS, TAIL),
    Wrong("ties away from zero at the store", Steps(last=half_up), RESULTS, "dot_wide",
          hidden="one in 2^16 float32 numbers is a tie"),
    Wrong("z left out", given(z=torch.zeros_like), ("out", "dx"), has_z),
    Wrong("z of the first element for all", given(z=lambda z: z[:1].expand_as(z)), ("out", "dx"), TAIL),
    Wrong("z transposed in its square part",
          given(z=edited(lambda z: z[:, :5].copy_(z[:, :5].mT.clone()))), ("out", "dx"), TAIL),
    Wrong("z added behind the rounding of b", stepwise(z_behind_the_rounding), ("out",), TAIL,
          hidden="one rounding less: nearer to the truth than the budget asks"),
    Wrong("gradient of x without z", Steps(z_in_gradient=0.0), ("dx",), has_z),
    Wrong("dx without g b'", stepwise(dx_without_b), ("dx",), everywhere),
    Wrong("dy from b", lambda w, *inputs: {"dy": PYTORCH(w, *inputs)["out"]}, ("dy",), everywhere),
    Wrong("dz never filled", lambda w, *inputs: {"dz": 0 * PYTORCH(w, *inputs)["dz"]}, ("dz",), everywhere),
    Wrong("last channel of x left out", given(x=cleared(..., -1)), ("out", "dy"), everywhere),
    Wrong("last column of y taken for padding", given(y=cleared(..., -1)), ("out", "dx"), everywhere),
    Wrong("upstream gradient ignored", given(grad=torch.ones_like), ("dx", "dy", "dz"), TAIL),
    Wrong("upstream gradient of the element before", given(grad=lambda g: g.roll(1, 0)), ("dx", "dy", "dz"),
          TAIL),
    Wrong("positions wrap at four", lambda w, *t: right(w, *(x[torch.arange(len(x)) % 4] for x in t)),
          RESULTS, TAIL),
    Wrong("every element from row 0 of the next",
          wrong.later(right, "dy", at((slice(None), 0), lambda t: t.roll(-1, 0)[:, 0])), ("dy",), TAIL),
    Wrong("elements of x taken to be adjacent", wrong.as_if_contiguous(right, wrong.elements_apart), RESULTS,
          TAIL),
    *wrong.damages(PYTORCH, RESULTS),
    *wrong.of_any(right, TAIL, "out", 2),
    *wrong.of_any(right, SINGLE, "dx", 2, only=("shifted", "behind the end", "lane")),
]  # fmt: skip
