"""One Sinkhorn-Knopp iteration in a Helion kernel: blocks of matrices, their sums, the start and a restart.

Every iterate is P = diag(u) A diag(v) with A fixed, so an iteration is two matvecs.  The kernels keep the
*reciprocals* p = 1/u and q = 1/v, because eps enters them linearly (docs/dev/math.md):

    p_t = rho (A v_{t-1} + eps p_{t-1}),  u_t = 1 / p_t        lead half-step
    q_t = A' u_t + (eps / rho) q_{t-1},   v_t = 1 / q_t        trail half-step

Lead is the side normalised first (rows, or columns with lead_axis = 2), trail is the other side, and
rho = |lead| / |trail| keeps u and v of a rectangular matrix from drifting.  Axis 1 of a (tile, n, m) block
counts its rows, axis 2 its columns.  With lead_axis = 1 a lead vector has one entry for each row and is a sum
over axis 2.

The functions are plain; `helion_sinkhorn.runtime.kernel.build` decorates them with a fixed config.
Helion runs the helpers as ordinary Python while it traces: their lists and loops unroll.
"""

from __future__ import annotations

from typing import TypedDict

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.in_order import sum_of_thread
from helion_sinkhorn.runtime.device_math import LOG2E, is_padded, moved, reciprocal, summed_in_order
from helion_sinkhorn.runtime.space import power_of_two


class Sums(TypedDict):
    """How lines of a matrix are summed, and how the products in them are rounded.

    It is a dictionary, since Helion 1.5 makes one of any object that it passes into a helper.
    """

    order: str
    """ "helion" leaves out padding, and is the only order without Triton.  "triton" takes the order of the
    running version, a tree from 3.8 on.  "in order" adds one entry after another, by running sums."""
    lanes: tuple[int, ...]
    """(R, C, w) of a view for `loads.read` if each thread first adds its entries of a line in order
    (`in_order.sum_of_thread`), otherwise ()."""
    rounded: str | None
    """How `product` rounds products that are added; None lets them fuse with their sum."""
    first: str | None
    """With sums in order only the first product is rounded, and this says what of it: the "product", or the
    second "factor" where the first is 1."""


# q_0 = exp(-column potential) is capped at 2^60: a column so far below the maxima of its rows adds less than
# one part in 2^60 to a row sum, and a product of two such q stays finite.
LOG2_MAX_Q0 = 60.0


def bounded(x, most, *extents):
    """x, which is at most `most` inside the matrix, kept finite outside of it.

    Helion masks what it sums, but assumes that 0 * w is 0 there for any w, so w must not be inf or NaN.
    """
    return x.clamp(max=most) if any(is_padded(k) for k in extents) else x


def zero_beyond(w, k, how):
    """w (tile, k), 0 in the padding after its k entries; reference mode pads nothing.

    The adjoint subtracts u (v * s)' from a gradient that is 0 in the padding.  Helion 1.5.0 assumes that it
    stays 0 there in a loop, and leaves out the mask of its sums, which would be wrong with any other u or v.
    """
    if how == "full" or not is_padded(k):
        return w
    return hl.inline_triton(f"tl.where(tl.arange(0, {power_of_two(k)})[None, :] < {k}, {{0}}, 0.0)", (w,), w)


def reciprocals(x, k, how, paired, rounded=None):
    """1 / x for x (tile, k); `paired` computes 1/a and 1/b from one 1/(ab), by three products.

    rounded: `Sums.rounded` of the sums that the reciprocals are used in.
    """
    if not paired or k == 1:
        return zero_beyond(reciprocal(x, how), k, how)
    tile = x.size(0)
    a, b = hl.split(x.view(tile, k // 2, 2))
    shared = reciprocal(a * b, how)
    return hl.join(product(shared, b, rounded), product(shared, a, rounded)).view(tile, k)


def spread(w, axis):
    """A vector with one entry per index of `axis`, broadcast over the (tile, n, m) block."""
    return w.unsqueeze(3 - axis)


def summation(n, m, how, ordered=False, lanes=()):
    """The `Sums` of matrices n x m; with ordered they are in order if no axis is padded.

    Triton's trees fuse every second product of a matvec, sums in order all but the first.  Where Helion sums,
    products are rounded: the compiler fuses one of two products that are added, and in a padded matrix not
    everywhere the same one.  With 3 x 3, tokens 8 to 15 of a block had another last bit than 0 to 7, and 16
    tokens had another than 17 (sm_90, Triton 3.6).
    """
    if how == "full" or is_padded(n) or is_padded(m):
        return Sums(order="helion", lanes=lanes, rounded=how, first=None)
    return Sums(order="in order" if ordered else "triton", lanes=lanes, rounded=None, first=None)


def fixed_summation(n, m, how, whole, pivoted):
    """`summation` with a fixed order and fixed fusions, so that every program has the same bits.

    LLVM fuses one of two products that are added, and from 3.8 on Triton's trees add products in pairs: a
    token had other bits in programs of one warp than in programs of two (sm_90, Triton 3.9).

    whole: each matrix lies in one thread, loaded row by row.  pivoted: `pivot` has made the first factor of
    each sum 1.  Products whose sums cross threads are all rounded.
    """
    sums = summation(n, m, how)
    if how != "ptx" or sums["order"] == "helion":
        # with sums in order a gradient of 4 x 4 would take 240 registers instead of 138 (gfx950)
        return sums
    if not whole:
        return Sums(order="triton", lanes=(), rounded=how, first=None)
    return Sums(order="in order", lanes=(), rounded=how, first="factor" if pivoted else "product")


def total(x, axis, sums):
    """The sum of x (tile, n, m) over `axis`.

    Helion would also mask the matrices beyond the batch, entry by entry, with a select for each product of a
    matvec and no fused multiply-add.  Those matrices are never stored, so their sums do not matter.

    For sums in order all entries of the axis must lie in one thread, numbered as in a blocked layout of
    Triton; otherwise they are moved to one thread first.
    """
    if sums["lanes"]:
        x = sum_of_thread(x, axis, sums["lanes"])
        if sums["lanes"][axis - 1] == 1:
            return x
    if sums["order"] == "helion":
        return x.sum(axis)
    like = hl.zeros([x.size(0), x.size(3 - axis)], dtype=torch.float32)
    if sums["order"] == "triton":
        return hl.inline_triton(f"tl.sum({{0}}, {axis})", (x,), like)
    return summed_in_order(x, axis, x.size(axis), like)


def largest(x, axis, sums):
    """The maximum of x (tile, n, m) over `axis`; a NaN may be ignored, since the sum of its line has it."""
    if sums["order"] == "helion":
        return x.amax(axis)
    like = hl.zeros([x.size(0), x.size(3 - axis)], dtype=torch.float32)
    return hl.inline_triton(f"tl.max({{0}}, {axis})", (x,), like)


def product(x, y, rounded):
    """x y elementwise; with rounded "ptx" or "gcn", by an instruction that no compiler fuses into a sum."""
    if rounded == "ptx":
        asm, registers = "mul.rn.f32 $0, $1, $2;", "=f,f,f"
    elif rounded == "gcn":
        asm, registers = "v_mul_f32 $0, $1, $2", "=v,v,v"
    else:
        return x * y
    return hl.inline_asm_elementwise(asm, registers, [x, y], dtype=torch.float32, is_pure=True, pack=1)


def products(x, y, axis, sums):
    """x y elementwise, to be added up along `axis`."""
    if sums["first"] is None:
        return product(x, y, sums["rounded"])
    # moved, since LLVM would turn the choice into a product y 1 again
    alone = product(x, y, sums["rounded"]) if sums["first"] == "product" else moved(y, sums["rounded"])
    return torch.where(spread(is_first(x.size(axis)), axis), alone, x * y)


def contract(a, w, axis, sums):
    """The matvec with one entry for each index of `axis`; w has one for each index of the other axis."""
    return total(products(a, spread(w, 3 - axis), 3 - axis, sums), 3 - axis, sums)


def constant(value, a, axis):
    """A vector with the same value for every index of `axis`."""
    return hl.full([a.size(0), a.size(axis)], value, dtype=torch.float32)


def softmax(x, n, m, axis, how):
    """exp(x - max) / sum over `axis`, (tile, n, m)."""
    sums = summation(n, m, how)
    e = torch.exp2(bounded(x - spread(largest(x, axis, sums), 3 - axis), 0.0, n, m) * LOG2E)
    e_sum = total(e, axis, sums)
    return e * bounded(reciprocal(e_sum, how), 1.0, n, m).unsqueeze(axis)


def balanced(x32, n, m, lead_axis, sums):
    """(z, top): logits less potentials, so that the largest entry of every line is exp(0) = 1.

    top are the potentials of the trail side.
    """
    z = bounded(x32 - spread(largest(x32, 3 - lead_axis, sums), lead_axis), 0.0, n, m)
    top = largest(z, lead_axis, sums)
    return bounded(z - spread(top, 3 - lead_axis), 0.0, n, m), top


def start(x32, n, m, eps, deepseek, lead_axis, how):
    """(a, p, q) before the first counted iteration."""
    sums = summation(n, m, how)
    if deepseek:
        a = softmax(x32, n, m, 3 - lead_axis, how) + eps
        return a, constant(1.0, a, lead_axis), total(a, lead_axis, sums) + eps
    z, top = balanced(x32, n, m, lead_axis, sums)
    q = torch.exp2(torch.clamp(top * -LOG2E, max=LOG2_MAX_Q0))
    a = torch.exp2(z * LOG2E)
    return a, constant(1.0, a, lead_axis), q


def raised(exponent, shift):
    """2^exponent times 4^shift; a sum of the exponents would be rounded more than `exponent` is."""
    low = exponent < -2.0 * shift
    return torch.exp2(torch.where(low, exponent + 2.0 * shift, exponent)) * torch.where(low, 1.0, 4.0**shift)


def started(x32, n, m, eps, deepseek, lead_axis, how, shift):
    """`start`, or that of the shifted log form: A times 4^shift, and p and q times 2^shift."""
    if not shift:
        return start(x32, n, m, eps, deepseek, lead_axis, how)
    z, top = balanced(x32, n, m, lead_axis, summation(n, m, how))
    q = 2.0**shift * torch.exp2(torch.clamp(top * -LOG2E, max=LOG2_MAX_Q0))
    return raised(z * LOG2E, shift), constant(2.0**shift, z, lead_axis), q


def restart(x32, n, m, log_p, log_q, lead_axis, how):
    """A of the log form with u = 2^-log_p and v = 2^-log_q absorbed: both start again from 1."""
    z, _top = balanced(x32, n, m, lead_axis, summation(n, m, how))
    exponent = z * LOG2E - spread(log_p, lead_axis) - spread(log_q, 3 - lead_axis)
    return torch.exp2(bounded(exponent, 1.0, n, m))


def is_first(k):
    """(1, k): True for the first of k lines."""
    return hl.arange(k).unsqueeze(0) == 0


def first_of(w, is_line, axis, sums):
    """The entry of w on the line along `axis` that is_line selects, by a sum; adding -0 changes no float."""
    return total(torch.where(is_line, w, -0.0), axis, sums)


def pivot(a, p, q, lead, trail, lead_axis, how, sums):
    """(a, p, q, c, r): A rescaled by c_i r_j to ones in its first row and column, and p and q to match.

    u A v, and so the iterations, do not change, and a matvec saves the products with those ones.  The adjoint
    takes c and r for constants, since no result depends on them.
    """
    first_lead, first_trail = spread(is_first(lead), lead_axis), spread(is_first(trail), 3 - lead_axis)
    c = reciprocal(first_of(a, first_trail, 3 - lead_axis, sums), how)
    line = first_of(a, first_lead, lead_axis, sums)
    corner = torch.where(is_first(trail), line, -0.0).sum(1).unsqueeze(1)
    r = torch.where(is_first(trail), 1.0, reciprocal(line, how) * corner)
    scaled = (a * spread(c, lead_axis)) * spread(r, 3 - lead_axis)
    return torch.where(first_lead | first_trail, 1.0, scaled), p * c, q * r, c, r


def lead_size(n, m, lead_axis):
    """The number of lines of the lead side; lead_size(m, n, ..) is that of the trail side."""
    return n if lead_axis == 1 else m


def iterate(a, p, q, lead, trail, eps, lead_axis, how, paired, sums):
    """(p, q) after one more iteration."""
    rho = lead / trail
    v = reciprocals(q, trail, how, paired, sums["rounded"])
    p = rho * (contract(a, v, lead_axis, sums) + eps * p)
    u = reciprocals(p, lead, how, paired, sums["rounded"])
    return p, contract(a, u, 3 - lead_axis, sums) + (eps / rho) * q
