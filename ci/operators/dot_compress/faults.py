"""Correct implementations of dot_compress and wrong ones, emulated in PyTorch.

GOOD differs in the order of sums and in how a matrix unit adds, FAULTS in what no implementation may do.
Each takes (workload, x, y, grad, z or nothing) and returns {"out", "dx", "dy", "dz"} of the workload's dtype.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate import gate
from ci.gate.arithmetic import bfloat16, keep_bits
from ci.gate.damage import DAMAGES
from ci.gate.gate import Fault
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload

Rounding = Callable[[torch.Tensor], torch.Tensor]
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SLAB = 32


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def in_float64(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).float()


def slabs(a: torch.Tensor, b: torch.Tensor, depth: int) -> list[torch.Tensor]:
    """The products of `depth` terms each that add up to a b, in float64."""
    return [x @ y for x, y in zip(a.double().split(depth, -1), b.double().split(depth, -2), strict=True)]


def in_order(a, b, depth: int = SLAB, add: Rounding = lambda t: t.float(), backwards: bool = False):
    """Slab after slab onto an accumulator, each sum brought to float32 by `add`."""
    total = torch.zeros((), dtype=torch.float64)
    parts = slabs(a, b, depth)
    for part in reversed(parts) if backwards else parts:
        total = add(total + part).double()
    return total.float()


def tree(a, b):
    parts = [part.float() for part in slabs(a, b, SLAB)]
    while len(parts) > 1:
        parts = [sum(parts[k : k + 2]) for k in range(0, len(parts), 2)]
    return parts[0]


def split(a, b, count: int, product: Product = plain, used: Callable[[list], list] = lambda parts: parts):
    """Split-K: `count` ranges of the terms, each a product; `used` of them are added."""
    size = max(1, math.ceil(a.size(-1) / count))
    ranges = zip(a.split(size, -1), b.split(size, -2), strict=True)
    return functools.reduce(torch.add, used([product(x, y) for x, y in ranges]))


def permuted(a, b):
    order = torch.randperm(a.size(-1), generator=torch.Generator().manual_seed(0))
    return plain(a[..., order], b[..., order, :])


def cut(t: torch.Tensor) -> torch.Tensor:
    """To float32, toward zero: an NVIDIA matrix unit (arXiv 2511.10909)."""
    near = t.float()
    return torch.where(near.double().abs() > t.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def floored(t: torch.Tensor) -> torch.Tensor:
    """To float32, down: the accumulator of a CDNA3 matrix unit (the same)."""
    near = t.float()
    return torch.where(near.double() > t, torch.nextafter(near, torch.full_like(near, -math.inf)), near)


@dataclass(frozen=True)
class Steps:
    """dot_compress step by step, in float32 where a step is not named.

    product: of all four; carry: an intermediate as (workload, float32) -> float32; terms, last: the terms of
    dx, and every result, before they are rounded.
    """

    product: Product = plain
    carry: Callable[[DotWorkload, torch.Tensor], torch.Tensor] | None = None
    terms: Rounding = lambda t: t
    last: Callable[[DotWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    z_times: float = 1.0
    z_in_gradient: float = 1.0
    sum_rows: Callable[[torch.Tensor], torch.Tensor] = lambda t: t
    """Applied to x before the products over its rows."""

    def __call__(self, w: DotWorkload, x, y, grad, z=None) -> gate.Results:
        x, y, grad = (t.float() for t in (x, y, grad))
        z = 0.0 if z is None else z.float()
        carry = self.carry or carried
        summed = self.product(self.sum_rows(x).mT, y)
        b, db = carry(w, summed + self.z_times * z), self.product(self.sum_rows(x).mT, grad)
        dz, db = db, carry(w, db)
        b_again = carry(w, summed + self.z_in_gradient * z)
        dx = self.terms(self.product(grad, b_again.mT)) + self.terms(self.product(y, db.mT))
        found = {"out": self.product(x, b), "dx": dx, "dy": self.product(x, db), "dz": dz}
        return {name: self.last(w, t).to(w.dtype) for name, t in found.items()}


def carried(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    """An intermediate in the parts that the call asks for."""
    high = t.to(w.dtype).float()
    return high if w.parts == 1 else high + (t - high).to(w.dtype).float()


def narrow(w: DotWorkload) -> bool:
    return w.dtype != torch.float32


def in_float32(steps: Steps) -> gate.Run:
    """Where results are float32: elsewhere their last rounding hides how sums err."""
    return lambda w, *inputs: {} if narrow(w) else steps(w, *inputs)


def on_unit(depth: int, add: Rounding) -> gate.Run:
    """A matrix unit that adds in this way; float32 is fused term by term and rounded to nearest."""
    unit, fused = (
        Steps(functools.partial(in_order, **how)) for how in ({"depth": depth, "add": add}, {"depth": 1})
    )
    return lambda w, *inputs: (unit if narrow(w) else fused)(w, *inputs)


def parts_of(t: torch.Tensor, *bits: int) -> list[torch.Tensor]:
    """Numbers of so many bits whose sum stands for a float32."""
    found = []
    for count in bits:
        found.append(keep_bits(t, count))
        t = t - found[-1]
    return found


def in_tf32x3(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Three products of TF32 parts, added in float32."""
    (a, low_a), (b, low_b) = parts_of(a, 10, 10), parts_of(b, 10, 10)
    return a @ b + (a @ low_b + low_a @ b)


NVIDIA, AMD = on_unit(16, cut), on_unit(8, floored)
VENDORS = {"nvidia": NVIDIA, "amd": AMD}
BASELINE = functools.lru_cache(maxsize=1)(Steps())
"""Damaged, exchanged and compared with: computed once for the same inputs."""

GOOD: dict[str, gate.Run] = {
    "PyTorch float32": BASELINE,
    "sums in float64": Steps(in_float64),
    **{f"in order, {k} terms a step": Steps(functools.partial(in_order, depth=k)) for k in (16, 32, 128)},
    "last terms first": Steps(functools.partial(in_order, backwards=True)),
    "a tree of slabs": Steps(tree),
    "terms permuted": Steps(permuted),
    **{f"split-K {k}": Steps(functools.partial(split, count=k)) for k in (2, 4, 8)},
    "accumulator cut (NVIDIA)": NVIDIA,
    "accumulator floored (CDNA3)": AMD,
    **{
        f"accumulator rounded, {k} terms a step": in_float32(Steps(functools.partial(in_order, depth=k)))
        for k in (1, 4, 8)
    },
    "TF32 parts": in_float32(Steps(in_tf32x3)),
}


def truncated(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    """Cut to the significand of the workload's dtype, or to float32 as it is."""
    return keep_bits(t, {torch.bfloat16: 7, torch.float16: 10}[w.dtype])


def to_bfloat16(t: torch.Tensor) -> torch.Tensor:
    return bfloat16(t.float())


def without(rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def cleared(x):
        return torch.cat([x[..., :-rows, :], torch.zeros_like(x[..., -rows:, :])], -2)

    return cleared


def in_float8(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.float8_e4m3fn).float()


def changed(change: Callable[[gate.Results], gate.Results]) -> gate.Run:
    """Right results, then exchanged or damaged."""
    return lambda w, *inputs: change(BASELINE(w, *inputs))


def damaged(damage: Rounding) -> gate.Run:
    return changed(lambda found: {name: damage(t) for name, t in found.items()})


def one_term(which: int) -> gate.Run:
    def run(w, x, y, grad, z=None):
        gone = [y, grad]
        gone[which] = torch.zeros_like(gone[which])
        return BASELINE(w, x, *gone, z)

    return run


def low_part(times: float) -> gate.Run:
    def carry(w, t):
        high = t.to(w.dtype).float()
        return high + times * (t - high).to(w.dtype).float()

    return Steps(carry=carry)


def neighbour(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    return carried(w, t).roll(1, 0)


def one_line_scaled(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    t = carried(w, t).clone()
    t[..., 0, :] *= 1 + 2.0**-4
    return t


def is_bfloat16(w: DotWorkload) -> bool:
    return w.dtype == torch.bfloat16


FAULTS = [
    Fault("intermediate truncated", Steps(carry=truncated), ("out", "dx", "dy"), narrow),
    Fault("intermediate in float8", Steps(carry=in_float8), ("out", "dx", "dy")),
    Fault("the neighbour's intermediate", Steps(carry=neighbour), ("out", "dx", "dy")),
    Fault(
        "one line of the intermediate scaled by 1 + 2^-4", Steps(carry=one_line_scaled), ("out", "dx", "dy")
    ),
    Fault("x summed in float8", Steps(sum_rows=lambda t: in_float8(None, t))),
    Fault("terms of dx truncated", Steps(terms=lambda t: keep_bits(t, 7)), ("dx",), is_bfloat16),
    Fault("result truncated", Steps(last=truncated), where=narrow),
    Fault("bfloat16 accumulator, every 32 terms", Steps(functools.partial(in_order, add=to_bfloat16))),
    Fault("last row left out of the sums", Steps(sum_rows=without(1))),
    Fault("last 19 rows left out of the sums", Steps(sum_rows=without(19))),
    Fault("a split missing", Steps(functools.partial(split, count=4, used=lambda parts: parts[:-1]))),
    Fault("a split added twice", Steps(functools.partial(split, count=4, used=lambda p: [*p, p[-1]]))),
    Fault("z left out", Steps(z_times=0.0), ("out",), lambda w: w.has_z),
    Fault("z added twice", Steps(z_times=2.0), ("out",), lambda w: w.has_z),
    Fault("gradient of x without z", Steps(z_in_gradient=0.0), ("dx",), lambda w: w.has_z),
    Fault("dx without g b'", one_term(1), ("dx",)),
    Fault("dx without y db'", one_term(0), ("dx",)),
    Fault("dy from b", changed(lambda found: {"dy": found["out"]}), ("dy",)),
    Fault("dz never filled", changed(lambda found: {"dz": torch.zeros_like(found["dz"])}), ("dz",)),
    Fault("low part left out", low_part(0.0), ("out", "dx", "dy"), lambda w: w.parts == 2),
    Fault("low part added twice", low_part(2.0), ("out", "dx", "dy"), lambda w: w.parts == 2),
    *(
        Fault(
            f"float32 products with {name} cut to 16 bits",
            Steps(lambda a, b, cuts=cuts: keep_bits(a, cuts[0]) @ keep_bits(b, cuts[1])),
            where=lambda w: not narrow(w),
        )
        for name, cuts in {"the first factor": (15, 23), "the second factor": (23, 15)}.items()
    ),
    Fault(
        "accumulator cut, 4 terms a step",
        Steps(functools.partial(in_order, depth=4, add=cut)),
        where=lambda w: not narrow(w),
    ),
    Fault(
        "TF32 products",
        Steps(lambda a, b: keep_bits(a, 10) @ keep_bits(b, 10)),
        where=lambda w: not narrow(w),
    ),
    *(Fault(name, damaged(damage)) for name, damage in DAMAGES.items()),
]
