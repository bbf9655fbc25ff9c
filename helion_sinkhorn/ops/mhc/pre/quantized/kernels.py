"""The Helion kernel body of quantize: groups of a token's columns to float8 e4m3, with a scale each.

A program takes some groups, whole, in registers.  Largest entries and powers of two are found by the bits of
float32 numbers, whose order is that of the numbers; NaN is above infinity.
"""

from __future__ import annotations

import helion.language as hl
import torch

MAGNITUDE, MANTISSA, ABOVE_448 = 0x7FFFFFFF, 0x7FFFFF, 0x600000
INFINITE, NAN = 0x7F800000, 0x7FC00000
BITS = MAGNITUDE, MANTISSA, ABOVE_448, INFINITE, NAN


def divided(a, b, interpret):
    """a / b in float32, rounded once as PyTorch does.

    Triton's own for NVIDIA is off by up to 2 ulp, and of a number Helion makes a product with its inverse.
    """
    if interpret:
        return a / b
    if isinstance(b, float):
        return hl.inline_triton(f"tl.div_rn({{0}}, {b})", (a,), a)
    return hl.inline_triton("tl.div_rn({0}, {1})", (a, b), a)


def of_bits(bits):
    """The float32 with these bits."""
    return bits.view(torch.float32)


def code_of(x, has_cast):
    """The codes of the nearest e4m3, ties to even, for |x| up to 464 or NaN; in integers without a cast."""
    if has_cast:
        code = "{0}.to(tl.float8e4nv).to(tl.uint8, bitcast=True)"
        return hl.inline_triton(code, (x,), x.to(torch.uint8))
    bits = x.view(torch.int32)
    size = bits & MAGNITUDE
    # from 2^-6 on a sum of bits rounds 20 of them away, and moves the bias of the exponent from 127 to 7
    normal = (size + (size >> 20 & 1) + (0x7FFFF - (120 << 23))) >> 20
    # below, units of 2^-9: the last bit of a float32 around 2^14
    small = (of_bits(size) + 16384.0).view(torch.int32) - (141 << 23)
    code = torch.where(size < 121 << 23, small, torch.where(size > INFINITE, 0x7F, normal))
    return (code | (bits >> 24 & 0x80)).to(torch.uint8)


def place_of(row, tokens, groups, is_power, by_column):
    """Where the scale of a group is: its number, or with tokens as neighbours, powers four to a token."""
    if not by_column:
        return row
    padded = (tokens + 3) // 4 * 4
    token, k = row // groups, row % groups
    b, t = token // tokens, token % tokens
    if is_power:
        return ((b * ((groups + 3) // 4) + k // 4) * padded + t) * 4 + k % 4
    return (b * groups + k) * padded + t


def wait(how):
    """Threads of a program see what the others have written."""
    if how != "full":
        hl.inline_triton("tl.debug_barrier()", (), None)


def round_tile(u, values, scales, tile, floor, tokens, form, bits=BITS):
    """Codes and scales of the groups of a tile; see quantize_groups."""
    groups, is_power, by_column, has_cast, interpret = form
    magnitude, mantissa, above_448, infinite, nan = bits
    # hl.load: inside a helper Helion takes indexing for an operation on the host
    x = hl.load(u, [tile, slice(None)]).to(torch.float32)
    largest = (x.view(torch.int32) & magnitude).amax(1).clamp(min=floor)
    place = [place_of(tile.index, tokens, groups, is_power, by_column)]
    if is_power:
        # 448 is 1.75 times 2^8
        exponent = (largest >> 23) - 8 + ((largest & mantissa) > above_448).to(torch.int32)
        is_finite = largest < infinite
        hl.store(scales, place, torch.where(is_finite, exponent, 255).to(torch.uint8))
        # the product is exact, as the quotient would be
        ratio = x * of_bits(torch.where(is_finite, (254 - exponent) << 23, nan)).unsqueeze(1)
    else:
        quotient = divided(of_bits(largest), 448.0, interpret)
        scale = torch.where(largest < infinite, quotient, float("nan"))
        hl.store(scales, place, scale)
        ratio = divided(x, scale.unsqueeze(1), interpret)
    hl.store(values, [tile, slice(None)], code_of(ratio, has_cast))


def quantize_groups(
    u: torch.Tensor,
    values: torch.Tensor,
    scales: torch.Tensor,
    floor: int,
    tokens: int,
    facts: hl.constexpr,
):
    """Codes of values (R, G) for groups u (R, G), and a scale each: float32, or a byte with its exponent.

    floor has the bits of a float32; tokens, neighbours where scales lie by columns, are not read else.
    """
    hl.specialize((u.size(1), u.stride(), values.stride()))
    for tile in hl.tile(u.size(0)):
        # Helion makes arguments of a body's globals, and constants of a helper's: stored configs were timed
        # with arguments
        bits = MAGNITUDE, MANTISSA, ABOVE_448, INFINITE, NAN
        round_tile(u, values, scales, tile, floor, tokens, facts, bits)
