"""Correct implementations of quantize and wrong ones.

Each bit of a result is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate import wrong
from ci.gate.columns import Change, same
from ci.gate.damage import cleared
from ci.gate.wrong import Results, Run, Wrong, by_eager, everywhere
from helion_sinkhorn.lab.pre.quantized.evidence import RESULTS, nearest, run, scale_of, unit_of
from helion_sinkhorn.lab.pre.quantized.workloads import QuantizeWorkload


def magnitudes(parts: torch.Tensor) -> torch.Tensor:
    return parts.abs().amax(-1)


def quotient(parts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rounded to float32 once."""
    return (parts / scale).float()


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for a fault."""

    largest: Change = magnitudes
    """The largest entries of groups, which have their entries last."""
    scale: Callable[[QuantizeWorkload, torch.Tensor], torch.Tensor] = scale_of
    taken: Change = same
    """Applied to the scales where values are divided by them."""
    ratio: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = quotient
    value: Change = nearest
    """A float32 to the e4m3 that stands for it."""

    def __call__(self, w: QuantizeWorkload, u: torch.Tensor) -> Results:
        parts = u.double().unflatten(-1, (-1, w.group))
        scale = self.scale(w, self.largest(parts))
        values = self.value(self.ratio(parts, self.taken(scale).unsqueeze(-1))).flatten(-2)
        return {"values": values.float(), "scales": scale.float()}


right = by_eager(run, RESULTS)


def cast(q: torch.Tensor) -> torch.Tensor:
    """By torch's conversion."""
    return q.to(torch.float8_e4m3fn)


def by_inverse(parts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A product with 1 / s, exact for a power of two."""
    return (parts.float() * (1 / scale.float())).float()


def inverse_of_powers(w: QuantizeWorkload, u: torch.Tensor) -> dict[str, torch.Tensor]:
    return Steps(ratio=by_inverse, value=cast)(w, u) if powers(w) else right(w, u)


def in_integers(q: torch.Tensor) -> torch.Tensor:
    """Twenty bits rounded away by a sum; below 2^-6 by what float32 keeps beside 2^14."""
    size = q.abs().view(torch.int32)
    kept = (size + (size >> 20 & 1) + 0x7FFFF) >> 20 << 20
    small = q.abs() + 16384 - 16384
    return torch.where(q.abs() < 2.0**-6, small, kept.view(torch.float32)).copysign(q)


def from_a_table(q: torch.Tensor) -> torch.Tensor:
    """The nearest of all 127 sizes; of two the one with the even code."""
    table = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    size = q.abs().double()
    above = torch.searchsorted(table, size).clamp(1, 126)
    low, high = table[above - 1], table[above]
    up = (size - low > high - size) | ((size - low == high - size) & (above % 2 == 0))
    return torch.where(size.isnan(), size, torch.where(up, high, low)).copysign(q.double())


def of_halves(parts: torch.Tensor) -> torch.Tensor:
    return torch.maximum(magnitudes(parts[..., ::2]), magnitudes(parts[..., 1::2]))


def by_bits(parts: torch.Tensor) -> torch.Tensor:
    return parts.float().abs().view(torch.int32).amax(-1).view(torch.float32).double()


def in_float32(w: QuantizeWorkload, largest: torch.Tensor) -> torch.Tensor:
    """A quotient of float32 numbers, where it is one."""
    if powers(w):
        return scale_of(w, largest)
    return torch.where(largest.isfinite(), largest.float().clamp(min=w.floor) / 448, torch.nan).double()


VENDORS = {"nvidia": Steps(value=cast), "amd": Steps()}
BASELINE = right
GOOD: dict[str, Run] = {
    "rounded once from float64": Steps(),
    "torch's conversion": Steps(value=cast),
    "saturated before it": Steps(value=lambda q: cast(q.clamp(-448, 448))),
    "in integers": Steps(value=in_integers),
    "values from a table": Steps(value=from_a_table),
    "largest entries of halves": Steps(largest=of_halves),
    "largest entries by their bits": Steps(largest=by_bits),
    "scales in float32": Steps(scale=in_float32),
    "products with inverses of powers": inverse_of_powers,
    "the CPU path": right,
}
MODEL, MX, COLUMNS, FP32, SHORT, SMALL, SMALL_MX, EDGES = (
    f"quantize_{name}" for name in ("model", "mx", "columns", "fp32", "short", "small", "small_mx", "edges")
)


def powers(w: QuantizeWorkload) -> bool:
    """The scales are powers of two."""
    return w.scales == "e8m0"


def quotients(w: QuantizeWorkload) -> bool:
    """The scales are quotients, and no tie is certain."""
    return not powers(w) and w.values != "ties"


def has_ties(w: QuantizeWorkload) -> bool:
    return w.values == "ties"


def differ(w: QuantizeWorkload) -> bool:
    """Not all groups have one scale."""
    return not has_ties(w)


def groups(w: QuantizeWorkload) -> bool:
    """Several groups a token."""
    return w.c > w.group and differ(w)


def scaled(change: Callable[[torch.Tensor], torch.Tensor]) -> Steps:
    """Another scale of every group, used and stored."""
    return Steps(scale=lambda w, largest: change(scale_of(w, largest)))


def to_odd_ties(turn: Callable[[torch.Tensor], torch.Tensor]) -> Steps:
    """Another way to round a number of units that lies in the middle, its size given."""
    return Steps(value=lambda q: (turn(q.abs().double() / unit_of(q)) * unit_of(q)).copysign(q.double()))


def of_ocp(w: QuantizeWorkload, largest: torch.Tensor) -> torch.Tensor:
    """The largest power of two not above the largest entry, over 256: MX's own."""
    return torch.exp2(torch.frexp(largest.clamp(min=w.floor)).exponent.double() - 9)


def backwards(w: QuantizeWorkload, u: torch.Tensor) -> dict[str, torch.Tensor]:
    """Four bytes of an int32 from its highest on."""
    results = Steps()(w, u)
    whole = results["scales"].size(-1) // 4 * 4
    first = results["scales"][..., :whole].unflatten(-1, (-1, 4)).flip(-1).flatten(-2)
    return results | {"scales": torch.cat([first, results["scales"][..., whole:]], -1)}


def by_rows(w: QuantizeWorkload, u: torch.Tensor) -> dict[str, torch.Tensor]:
    """Scales stored token by token and read group by group."""
    results = Steps()(w, u)
    stored = results["scales"]
    return results | {"scales": stored.flatten(1).unflatten(1, stored.shape[:0:-1]).mT.contiguous()}


WRONG = [
    Wrong("a product with the rounded inverse", Steps(ratio=by_inverse), ("values",), MODEL),
    Wrong("a scale one unit too large", scaled(lambda s: (s * (1 + 2.0**-23)).float().double()), ("scales",),
          quotients),
    Wrong("the quotient in bfloat16", Steps(ratio=lambda parts, s: (parts / s).bfloat16().float()),
          ("values",), quotients),
    Wrong("the power of two above", scaled(lambda s: s * 2), RESULTS, powers),
    Wrong("the power of two of OCP's MX", Steps(scale=of_ocp), RESULTS, lambda w: powers(w) and differ(w)),
    Wrong("448 times a power of two takes the next", Steps(
        scale=lambda w, t: scale_of(w, t * (1 + 2.0**-30))),
          RESULTS, EDGES),
    Wrong("values truncated", Steps(value=lambda q: nearest(torch.trunc(
        q.double() / unit_of(q)) * unit_of(q))), ("values",), everywhere),
    Wrong("ties away from zero", to_odd_ties(lambda k: (k + 0.5).floor()), ("values",), has_ties),
    Wrong("ties to odd", to_odd_ties(lambda k: torch.where(k % 1 == 0.5, 2 * (k / 2).floor() + 1, k.round())),
          ("values",), has_ties),
    Wrong("subnormals lost", Steps(value=lambda q: nearest(torch.where(q.abs() < 2.0**-6, 0.0, q))),
          ("values",), has_ties),
    Wrong("subnormals in units of 2^-10", Steps(value=lambda q: torch.where(
        q.abs() < 2.0**-6, nearest(2 * q) / 2, nearest(q))), ("values",), SMALL),
    Wrong("values of magnitudes", Steps(value=lambda q: nearest(q).abs()), ("values",), everywhere),
    Wrong("the largest entry without its sign", Steps(largest=lambda t: t.amax(-1)), RESULTS, differ),
    Wrong("the last column of a group not looked at", Steps(largest=lambda t: magnitudes(t[..., :-1])),
          ("scales",), SHORT),
    Wrong("one scale a token", Steps(largest=lambda t: magnitudes(t).amax(-1, True).expand(t.shape[:-1])),
          RESULTS, groups),
    Wrong("the scale of the group before", Steps(taken=lambda s: s.roll(1, -1)), ("values",), groups),
    Wrong("no floor", wrong.called(Steps(), floor=2.0**-120), RESULTS, SMALL),
    Wrong("a floor of 1e-10 whatever is asked", wrong.called(Steps(), floor=1e-10), RESULTS, SMALL_MX),
    Wrong("bytes of an int32 the other way round", backwards, ("scales",), MX),
    Wrong("scales by rows where columns are asked", by_rows, ("scales",), COLUMNS),
    Wrong("the last column never computed", wrong.one(Steps(), "values", cleared(..., -1)), ("values",),
          everywhere),
    *wrong.damages(Steps(), RESULTS),
    *wrong.of_any(right, MODEL, "values"),
    *wrong.of_any(right, FP32, "scales", only=("written", "behind the end", "run")),
]  # fmt: skip
