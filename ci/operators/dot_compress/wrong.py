"""Correct implementations of dot_compress and wrong ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate import products, wrong
from ci.gate.arithmetic import half_up, keep_bits, truncated
from ci.gate.damage import cleared
from ci.gate.products import Product, Rounding, plain
from ci.gate.wrong import Results, Run, Wrong, by_eager, everywhere, is_float32, narrow
from helion_sinkhorn.lab.dot_compress.evidence import RESULTS, run
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload


def carried(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    """An intermediate in the parts that the call requests."""
    high = t.to(w.dtype).to(t.dtype)
    return high if w.parts == 1 else high + (t - high).to(w.dtype).to(t.dtype)


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for an error."""

    product: Product = plain
    """How each of the four products is computed."""
    carry: Callable[[DotWorkload, torch.Tensor], torch.Tensor] = carried
    """Applied to an intermediate."""
    terms: Rounding = lambda t: t
    """Applied to the terms of dx."""
    last: Callable[[DotWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """Applied to every result before it is rounded."""
    sum_rows: Rounding = lambda t: t
    """Applied to x before the products over its rows."""
    dtype: torch.dtype = torch.float32

    def __call__(self, w: DotWorkload, x, y, grad, z=None) -> Results:
        x, y, grad = (t.to(self.dtype) for t in (x, y, grad))
        z = 0.0 if z is None else z.to(self.dtype)
        rows = self.sum_rows(x).mT
        summed, dz = self.product(rows, y), self.product(rows, grad)
        b, db = self.carry(w, summed + z), self.carry(w, dz)
        dx = self.terms(self.product(grad, b.mT)) + self.terms(self.product(y, db.mT))
        results = {"out": self.product(x, b), "dx": dx, "dy": self.product(x, db), "dz": dz}
        return {name: self.last(w, t).to(w.dtype) for name, t in results.items()}


EXACT = functools.lru_cache(maxsize=4)(Steps(carry=lambda w, t: t, dtype=torch.float64))
PYTORCH = functools.lru_cache(maxsize=1)(Steps())


right = by_eager(run, RESULTS)


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

TAIL, SINGLE = "dot_tail", "dot_fp32"
PRODUCTS = ("out", "dx", "dy")
"""The results that pass through an intermediate."""

given = functools.partial(wrong.given, right, ("x", "y", "grad", "z"))


def stepwise(function: Callable[..., Results]) -> Run:
    """Results of (workload, float32 x, y, grad, z)."""

    def rounded(w, *inputs):
        return {name: t.to(w.dtype) for name, t in function(w, *(t.float() for t in inputs)).items()}

    return rounded


def z_behind_the_rounding(w, x, y, grad, z):
    return {"out": x @ (carried(w, x.mT @ y) + z)}


def rounded_half_way(w, x, y, grad, z):
    half = x.size(1) // 2
    first = carried(w, x[:, :half].mT @ y[:, :half])
    return {"out": x @ carried(w, first + x[:, half:].mT @ y[:, half:] + z)}


WRONG = [
    Wrong("intermediate truncated", Steps(carry=truncated), PRODUCTS, narrow),
    Wrong("intermediate of 14 bits", Steps(carry=lambda w, t: keep_bits(t, 13)), PRODUCTS, is_float32),
    Wrong("low part left out", Steps(carry=lambda w, t: t.to(w.dtype).float()), PRODUCTS,
          lambda w: w.parts == 2),
    Wrong("sums rounded half way", stepwise(rounded_half_way), ("out",), TAIL),
    Wrong("last row left out of the sums", Steps(sum_rows=cleared(..., -1, slice(None))), RESULTS,
          everywhere),
    Wrong("bfloat16 accumulator, every 32 terms", in_order(add=products.to_bfloat16), RESULTS, everywhere),
    *(
        Wrong(f"float32 products with {name} cut to 16 bits",
              Steps(lambda a, b, cuts=cuts: keep_bits(a, cuts[0]) @ keep_bits(b, cuts[1])), RESULTS,
              is_float32)
        for name, cuts in {"the first factor": (15, 23), "the second factor": (23, 15)}.items()
    ),
    Wrong("terms of dx rounded before they are added", Steps(terms=products.to_bfloat16), ("dx",), TAIL),
    Wrong("result truncated", Steps(last=truncated), RESULTS, narrow),
    Wrong("ties away from zero at the store", Steps(last=half_up), RESULTS, "dot_wide",
          hidden="one in 2^16 float32 numbers is a tie"),
    Wrong("z left out", given(z=torch.zeros_like), ("out", "dx"), has_z),
    Wrong("z added behind the rounding of b", stepwise(z_behind_the_rounding), ("out",), TAIL,
          hidden="one rounding less: nearer to the truth than the budget asks"),
    Wrong("last channel of x left out", given(x=cleared(..., -1)), ("out", "dy"), everywhere),
    Wrong("elements of x taken to be adjacent", wrong.as_if_contiguous(right, wrong.elements_apart), RESULTS,
          TAIL),
    *wrong.damages(PYTORCH, RESULTS),
    *wrong.of_any(right, TAIL, "out", 2),
    *wrong.of_any(right, SINGLE, "dx", 2, only=("shifted", "behind the end", "lane")),
]  # fmt: skip
