"""Functions of the bits of a lane that are more than an operator."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
U32, U64 = np.uint32, np.uint64
LOW5 = U32(31)


def field(a: Array, first: Array, size: Array) -> Array:
    """v_bfe_u32."""
    mask = ((U64(1) << (size & LOW5).astype(U64)) - U64(1)).astype(U32)
    return (a >> (first & LOW5)) & mask


def signed_field(a: Array, first: Array, size: Array) -> Array:
    """v_bfe_i32: the field with its sign."""
    size = (size & LOW5).astype(np.int64)
    bits = (a.astype(np.int64) & 0xFFFF_FFFF) >> (first & LOW5).astype(np.int64)
    up = 64 - size
    return np.where(size == 0, 0, (bits << np.where(size == 0, 0, up)) >> np.where(size == 0, 0, up)).astype(
        np.int32
    )


def reversed_bits(a: Array) -> Array:
    """v_bfrev_b32."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        a = ((a >> U32(shift)) & U32(mask)) | ((a & U32(mask)) << U32(shift))
    return a


def permuted_bytes(a: Array, b: Array, select: Array) -> Array:
    """v_perm_b32: each selector byte takes one of the bytes of b (0 to 3) and a (4 to 7), or is constant."""
    both = (a.astype(U64) << U64(32)) | b
    word = U32(0)
    for k in range(4):
        which = (select >> U32(8 * k)) & U32(255)
        byte = (both >> (np.minimum(which, U32(7)).astype(U64) * U64(8))) & U64(255)
        signs = np.minimum(which - U32(8), U32(3)).astype(U64) * U64(16) + U64(15)
        sign = np.where((both >> signs) & U64(1), 255, 0)
        byte = np.where(which < 8, byte, np.where(which < 12, sign, np.where(which == 12, 0, 255)))
        word = word | (byte.astype(U32) << U32(8 * k))
    return word


def aligned_bits(a: Array, b: Array, shift: Array) -> Array:
    """v_alignbit_b32."""
    return (((a.astype(U64) << U64(32)) | b) >> (shift & LOW5).astype(U64)).astype(U32)


def high_product(a: Array, b: Array) -> Array:
    return ((a.astype(U64) * b) >> U64(32)).astype(U32)


def signed_high_product(a: Array, b: Array) -> Array:
    return ((a.astype(np.int64) * b) >> 32).astype(np.int32)


def low24(a: Array) -> Array:
    return a & U32(0xFF_FFFF)


def median(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def halves(low: Array, high: Array) -> Array:
    """Two 16-bit values as one register."""
    return low.astype(U32) | (high.astype(U32) << U32(16))


def half_bits(a: Array) -> Array:
    """float32 to float16, as its bits."""
    return a.astype(np.float16).view(np.uint16)


def shifted_with_sign(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """b shifted right by the low four bits of a, copies of its sign in front; 16 bits each."""
    return (b.view(np.int16) >> (a & np.uint16(15)).view(np.int16)).view(np.uint16)
