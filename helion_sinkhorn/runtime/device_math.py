"""Arithmetic that kernel bodies of several operators share."""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.configs.store import triton_version

LOG2E = 1.4426950408889634


def reciprocal(x, how):
    """1 / x elementwise: "ptx" and "gcn" are one instruction of 1 ulp, "full" is the backend's division."""
    if how == "ptx":
        asm, registers = "rcp.approx.ftz.f32 $0, $1;", "=f,f"
    elif how == "gcn":
        asm, registers = "v_rcp_f32 $0, $1", "=v,v"
    else:
        return 1.0 / x
    return hl.inline_asm_elementwise(asm, registers, [x], dtype=torch.float32, is_pure=True, pack=1)


def is_padded(k):
    """Whether Triton pads an axis of k entries: its extents are powers of two."""
    return (k & (k - 1)) != 0


def joined(parts):
    """2^k tensors as one with k more axes of 2, the last of which is the lowest bit of the tensor's number;
    each thread keeps its entries.
    """
    return parts[0] if len(parts) == 1 else hl.join(joined(parts[0::2]), joined(parts[1::2]))


def multiply_add(a, b, c, how):
    """a b + c elementwise, rounded once; c has the shape of the result.

    A compiler may fuse at some places of a block and not at others, so that a token's bits depend on its
    place.  On AMD the instruction is LLVM's own: the result of a matrix instruction may be read only after up
    to 20 wait states, and LLVM puts none before inline assembly.
    """
    if how == "ptx":
        asm, registers = "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f"
        return hl.inline_asm_elementwise(asm, registers, [a, b, c], dtype=torch.float32, is_pure=True, pack=1)
    if how == "gcn":
        return hl.inline_triton("tl.fma({0}, {1}, {2})", (a, b, c), c)
    return a * b + c


def computed_once(x, how):
    """x in float32, moved by an instruction that no compiler repeats.

    Triton computes an operand of a matrix product, and all that the operand depends on, in the product's own
    layout: once for every warp that shares a row.  With this move it exchanges the result instead.
    """
    return moved(x, how, is_pure=False)


def moved(x, how, is_pure=True):
    """x in float32, moved so that compilers do not know its value, such as 1, or that it is a product."""
    if how == "ptx":
        asm, registers = "mov.b32 $0, $1;", "=f,f"
    elif how == "gcn":
        asm, registers = "v_mov_b32 $0, $1", "=v,v"
    else:
        return x
    return hl.inline_asm_elementwise(asm, registers, [x], dtype=torch.float32, is_pure=is_pure, pack=1)


def negative_zero():
    """-0, which Triton up to 3.8 does not make of the literal -0.0; compilers keep an addition of +0."""
    return "-0.0" if triton_version() >= (3, 9) else "-tl.full([], 0.0, tl.float32)"


def summed_in_order(x, axis, k, like):
    """The sum of x over an axis of k entries, added one after the other, as a tensor like `like`.

    All entries of the axis must lie in one thread.  Triton up to 3.7 adds them in order.  From 3.8 on the
    result is the last of the running sums, which a thread computes in order; compilers drop the additions of
    -0.
    """
    if triton_version() < (3, 8):
        return hl.inline_triton(f"tl.sum({{0}}, {axis})", (x,), like)
    place = f"tl.arange(0, {k})[{', '.join(':' if i == axis else 'None' for i in range(x.dim()))}]"
    last = f"tl.where({place} == {k - 1}, tl.cumsum({{0}}, {axis}), {negative_zero()})"
    return hl.inline_triton(f"tl.sum({last}, {axis})", (x,), like)
