"""Floating-point arithmetic as the gfx9 ISA defines it: rounded once, to the nearest even, subnormals kept.

Where the ISA leaves room (2^x, log2 x, 1/x and the root, within a unit in the last place) a result is a
choice of VARIANTS.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
SMALLEST_NORMAL = np.float32(2.0**-126)
ONE_64 = np.uint64(1)


def fma(a: Array, b: Array, c: Array) -> Array:
    """a b + c of float32, rounded once.

    The product is exact in float64.  The sum is rounded to odd there, which carries enough of what is lost
    for the second rounding to be the only one that shows.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    c = c.astype(np.float64)
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    inexact = lost != 0
    if np.any(inexact):
        total = np.where(inexact & np.isfinite(total), to_odd(total, lost), total)
    return total.astype(np.float32)


def to_odd(total: Array, lost: Array) -> Array:
    """A rounded float64 sum moved to its odd neighbour on the side of what was lost."""
    bits = np.ascontiguousarray(total).view(np.uint64)
    even = (bits & ONE_64) == 0
    # a step away from zero where what was lost has the sign of the sum
    away = (lost > 0) == (total > 0)
    stepped = np.where(away, bits + ONE_64, bits - ONE_64)
    return np.where(even, stepped, bits).view(np.float64)


def maximum_number(a: Array, b: Array) -> Array:
    """IEEE 754-2008 maxNum: a number wins over NaN, and +0 over -0."""
    larger = np.where((a == b) & np.signbit(a), b, np.where(a >= b, a, b))
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, larger))


def minimum_number(a: Array, b: Array) -> Array:
    """Like `maximum_number` for minNum."""
    return -maximum_number(-a, -b)


def maximum(a: Array, b: Array) -> Array:
    """IEEE 754-2019 maximum: NaN wins."""
    return np.where(np.isnan(a), a, np.where(np.isnan(b), b, maximum_number(a, b)))


def minimum(a: Array, b: Array) -> Array:
    """Like `maximum` for minimum."""
    return -maximum(-a, -b)


def ldexp(a: Array, exponent: Array) -> Array:
    """a 2^exponent, rounded once."""
    return np.ldexp(a.astype(np.float64), np.clip(exponent, -1000, 1000)).astype(np.float32)


def bfloat16(a: Array) -> Array:
    """float32 rounded to bfloat16, as its 16 bits."""
    bits = np.ascontiguousarray(a).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(a), (bits >> np.uint32(16)) | np.uint32(0x40), rounded)


def from_bfloat16(bits: Array) -> Array:
    """The 16 bits of a bfloat16 as float32."""
    return np.ascontiguousarray(bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_integer(a: Array, kind: type) -> Array:
    """float32 to a 32-bit integer: toward zero, clamped to its range, NaN to 0."""
    limits = np.iinfo(kind)
    clipped = np.clip(np.trunc(np.nan_to_num(a.astype(np.float64), nan=0.0)), limits.min, limits.max)
    return clipped.astype(kind)


# ------------------------------------------------------------------------- functions within one unit


def flushed(a: Array) -> Array:
    """Subnormals as zeros of their sign."""
    return np.where(np.abs(a) < SMALLEST_NORMAL, np.copysign(np.float32(0), a), a)


def step(a: Array, units: Array) -> Array:
    """A finite float32, other than zero, moved by units in the last place away from zero."""
    bits = np.ascontiguousarray(a).view(np.int32)
    moved = (bits + units.astype(np.int32)).view(np.float32)
    return np.where(np.isfinite(a) & (a != 0) & np.isfinite(moved), moved, a)


def nearest(exact: Array) -> Array:
    return exact.astype(np.float32)


def above(exact: Array) -> Array:
    """The neighbour above, also of a value between two: within one unit."""
    near = nearest(exact)
    up = np.where(near > 0, 1, -1)
    return np.where(near.astype(np.float64) < exact, step(near, up), near)


def below(exact: Array) -> Array:
    return -above(-exact)


def scattered(exact: Array) -> Array:
    """Either neighbour, by a hash of the result: the same argument always gives the same."""
    bits = np.ascontiguousarray(nearest(exact)).view(np.uint32)
    mixed = (bits * np.uint32(2654435761)) >> np.uint32(13)
    return np.where((mixed & np.uint32(1)) == 0, above(exact), below(exact))


VARIANTS: dict[str, tuple[Callable[[Array], Array], bool]] = {
    "nearest": (nearest, False),
    "above": (above, False),
    "below": (below, True),
    "scattered": (scattered, True),
}
"""How a function rounds, and whether the reciprocal and the root flush subnormals: all that 1 ulp lets
hardware do."""


class Functions:
    """v_exp, v_log, v_rcp and v_sqrt under one of VARIANTS."""

    def __init__(self, variant: str = "nearest"):
        if variant not in VARIANTS:
            raise ValueError(f"variant {variant!r} is not one of {', '.join(VARIANTS)}")
        self.rounded, self.flushes = VARIANTS[variant]

    def exp(self, a: Array) -> Array:
        """2^a; subnormals are zero before and after."""
        return flushed(self.exactly(a, np.exp2(flushed(a).astype(np.float64))))

    def log(self, a: Array) -> Array:
        """log2 a; subnormals are zero before."""
        return self.exactly(a, np.log2(flushed(a).astype(np.float64)))

    def rcp(self, a: Array) -> Array:
        """1 / a."""
        a = flushed(a) if self.flushes else a
        inverse = self.exactly(a, 1 / a.astype(np.float64))
        return flushed(inverse) if self.flushes else inverse

    def sqrt(self, a: Array) -> Array:
        """The square root."""
        a = flushed(a) if self.flushes else a
        return self.exactly(a, np.sqrt(a.astype(np.float64)))

    def exactly(self, a: Array, exact: Array) -> Array:
        """Rounded, but a result that a float32 holds exactly is what every implementation gives: 2^k,
        1/2^k, the root of 4^k.
        """
        return np.where(np.isnan(a), a, self.rounded(exact)).astype(np.float32, copy=False)
