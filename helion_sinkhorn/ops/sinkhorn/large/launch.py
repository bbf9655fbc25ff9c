"""From tensors to launches of the kernels of large matrices, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from helion_sinkhorn.ops.sinkhorn.large import narrow_launch, sides, wide_launch
from helion_sinkhorn.ops.sinkhorn.large.calls import (
    KERNELS,
    Calls,
    State,
    call_for,
    for_kernel,
    form_of,
    place,
)
from helion_sinkhorn.ops.sinkhorn.large.ranks import ALONE, Ranks
from helion_sinkhorn.ops.sinkhorn.large.sides import (
    LONGEST,
    Matrices,
    empty_gradients,
    empty_results,
    kept_entries,
    kept_vectors,
    lead_first,
    of_order_one,
)
from helion_sinkhorn.ops.sinkhorn.large.terms import of_segments
from helion_sinkhorn.ops.sinkhorn.scaling import may_overflow
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, chosen_for, device_of
from helion_sinkhorn.runtime.views import INT32_ELEMENTS, VECTOR_BYTES, matrices_of, placed

GROUP_BYTES = 34 << 20
"""Bytes of the logits that run all iterations together and stay in L2: room for 8 of 1025 x 1025."""
SCRATCH_BYTES = 128 << 20
"""Bytes of float32 that a gradient of 16 bits takes besides: some hundred rows of 98304."""
ALIGNED = 8
"""Rows that take a multiple of 16 bytes at any length, of entries of 16 bits too."""


def marginals_of(
    x: torch.Tensor, log_r: torch.Tensor | None, log_c: torch.Tensor | None, ranks: Ranks = ALONE
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(log r - log mass (B, n), log c - log mass (B, m), log mass (B, 1)) of both marginals.

    Without marginals r is m / n, c is 1, and log mass is None.  log mass is a whole number, so that marginals
    with a sum near one keep their bits.
    """
    batch, n, m = x.shape
    if log_r is None or log_c is None:
        whole_n, whole_m = ranks.size(x)
        log_r, log_c = (
            x.new_full((k,), value, dtype=torch.float32).expand(batch, k)
            for k, value in ((n, math.log(whole_m / whole_n)), (m, 0.0))
        )
        return log_r, log_c, None
    log_r, log_c = log_r.float(), log_c.float()
    log_mass = log_c.logsumexp(-1, keepdim=True).round_()
    log_mass.masked_fill_(log_mass == -torch.inf, 0.0)
    return (log_r - log_mass).contiguous(), (log_c - log_mass).contiguous(), log_mass


def times(f: torch.Tensor, log_mass: torch.Tensor | None) -> torch.Tensor:
    """The logarithms f (B, n), with the logarithm of the mass added."""
    return f if log_mass is None else f + log_mass


def placed_of(given: Matrices) -> Matrices:
    """The same with logits placed for vector loads."""
    return given._replace(logits=placed(given.logits))


def forward(
    given: Matrices, n_iters: int, keep: bool, out_dtype: torch.dtype, choices: Choices = NO_CHOICES,
    longest: int = LONGEST,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """P, f, g, and the vectors of every iteration, f above base, base, g and rest, or u, v and one base.

    Lead lines beyond `longest` take two reads for an iteration, and so do ranks that share the rows, without
    marginals.
    """
    eps, ranks = given.eps, given.ranks
    results = empty_results(given.logits, n_iters, eps, keep, "helion", out_dtype)
    if not given.logits.numel():
        return results
    x, p, potentials, vectors, marginals = sides.forward(placed_of(given), results)
    batch, n, m = x.shape
    log_r, log_c, log_mass = marginals_of(x, *marginals, ranks)
    if not keep:
        # room for the first vectors, and for two more, one to read and one to write
        count = kept_vectors(min(3, n_iters), eps, "helion")
        vectors = (x.new_empty(count, batch, kept_entries(k), dtype=torch.float32) for k in (n, m))
    of = state(given, vectors, log_r, log_c)
    iterations = (wide_launch if m > longest or ranks.groups else narrow_launch).iterations
    for part in together(x, ranks):
        iterations(Calls(x[part], choices), of.of(part), n_iters)
    last, calls = place(n_iters - 1, len(of.fs)), Calls(x, choices)
    f, g = of.fs[last], of.gs[last]
    if eps:
        calls.launch("sinkhorn_large_eps_write", x, of.base, of.fs[0], f, g, p, values=(eps,))
        return results
    f, base = times(f, log_mass), of.bases[last]
    calls.launch("sinkhorn_large_write", x, of.scale, base, f, g, of.rests[last], p)
    for into, t in zip(potentials, (f - base, g), strict=True):
        into.copy_(t)
    return results


def state(
    given: Matrices, vectors: Iterable[torch.Tensor], log_r: torch.Tensor, log_c: torch.Tensor
) -> State:
    """The State of iterations, from vectors of rows and of columns as they are kept."""
    rows, columns = (t[..., : k.size(-1)] for t, k in zip(vectors, (log_r, log_c), strict=True))
    count = len(rows) - 1 if given.eps else len(rows) // 2
    return State(
        log_r.new_full((1,), 1 / given.temperature), log_r, log_c, rows[count:], rows[:count],
        columns[:count], columns[count:], given.eps, given.ranks,
    )  # fmt: skip


def together(x: torch.Tensor, ranks: Ranks = ALONE) -> list[slice]:
    """Slices of (B, n, m) that fit into L2; each runs all its iterations before the next one begins.

    Each begins at a multiple of 16 bytes, also in vectors (B, n) and (B, m) of float32, though up to eight
    matrices be more than fit: elsewhere code has no vector loads and may sum in another order, and no launch
    is kept.  Ranks that share the matrices have one slice, the same on all of them.
    """
    (batch, n, m), size = x.shape, x.element_size()
    if ranks.groups:
        return [slice(batch)]
    several = max(VECTOR_BYTES // math.gcd(VECTOR_BYTES, k) for k in (size * n * m, 4 * n, 4 * m))
    fit = GROUP_BYTES // (size * n * m)
    step = max(several, fit // several * several)
    return [slice(k, k + step) for k in range(0, batch, step)]


def pieces(x: torch.Tensor, rounds: bool) -> list[tuple[slice, slice]]:
    """(matrices, rows) whose gradient is finished together.

    Results of 16 bits are in float32 before they are rounded, in about SCRATCH_BYTES: of a larger matrix the
    pieces have one number of rows, which is a constant of the code and the same for all batches, and the last
    one begins in the one before.
    """
    batch, n, m = x.shape
    tail, slices = n % ALIGNED, []
    for part in together(x):
        fit = SCRATCH_BYTES // (4 * m * (part.stop - part.start)) - tail if rounds else n
        step = max(1, fit // ALIGNED) * ALIGNED
        height = step + tail
        if height >= n:
            slices.append((part, slice(None)))
            continue
        matrices = range(batch)[part]
        # Helion chooses 32-bit indices by the entries of a piece, which lie farther apart
        far = (len(matrices) - 1) * n * m + height * m >= INT32_ELEMENTS
        parts = [slice(k, k + 1) for k in matrices] if far else [part]
        starts = *range(0, n - height, step), n - height
        slices += [(each, slice(k, k + height)) for each in parts for k in starts]
    return slices


def backward(
    dp: torch.Tensor | None, df: torch.Tensor | None, dg: torch.Tensor | None, given: Matrices,
    of_rows: torch.Tensor, of_columns: torch.Tensor, choices: Choices = NO_CHOICES, longest: int = LONGEST,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of the logits and of both marginals; the contract is eager.backward's."""
    gradients = empty_gradients(given.logits, given.log_rows)
    if not given.logits.numel():
        return gradients
    x, dy, dx, upstream, marginals, vectors, of_marginals = sides.backward(
        None if dp is None else placed(dp), df, dg, placed_of(given), gradients, of_rows, of_columns
    )
    eps, scaled_by = given.eps, None
    if dy is None:
        dy = torch.zeros_like(x)
    elif may_overflow(eps) and eps:
        dy, scaled_by = of_order_one(dy)
    batch, n, m = x.shape
    log_r, log_c, log_mass = marginals_of(x, *marginals)
    if dp is None:
        # gradients of potentials do not depend on the mass
        log_mass = None
    of = state(given, map(placed, vectors), log_r, log_c)
    own_f, own_g = (
        x.new_zeros((batch, k), dtype=torch.float32) if t is None else placed(t.float())
        for t, k in zip(upstream, (n, m), strict=True)
    )
    # iterations work on gradients divided by the mass
    over_f, over_g = (
        t if log_mass is None or own is None else t * log_mass.neg().exp()
        for t, own in zip((own_f, own_g), upstream, strict=True)
    )
    rows, columns = (
        x.new_empty((len(of.fs), batch, kept_entries(k)), dtype=torch.float32)[..., :k] for k in (n, m)
    )
    wide = m > longest
    taken_back = (wide_launch if wide else narrow_launch).taken_back
    narrow = min(x, dy, key=torch.Tensor.element_size)
    for part in together(narrow):
        own = over_f[part], over_g[part]
        taken_back(Calls(x[part], choices), of.of(part), dy[part], own, rows[:, part], columns[:, part])
    bases, base_f, base_g, left, right = of_segments(Calls(x, choices), of, rows, columns)
    base_f = times(base_f, None if log_mass is None else log_mass.unsqueeze(1))
    # the first row step uses its own sums, so its entries and r may have any common factor
    factor = None if log_mass is None else log_mass.clamp(min=0.0)
    first_r = torch.zeros_like(log_r) if eps else times(log_r, factor)
    # dx is rounded once, after its scale is restored
    into = dx if scaled_by is None else torch.empty_like(dx, dtype=torch.float32)
    first_f, last_rest = times(of.fs[0], factor), of.rests[-1]
    values = *right.shape[1:3], eps > 0
    for part, lines in pieces(narrow, into.dtype != torch.float32):
        at = (part, ..., lines)
        piece, to = x[part, lines], into[part, lines]
        calls = Calls(piece, choices)
        # what the last sums are taken from is not rounded to 16 bits
        d = to if to.dtype == torch.float32 else torch.empty_like(to, dtype=torch.float32)
        calls.launch(
            "sinkhorn_large_terms", piece, dy[part, lines], of.scale, last_rest[part], bases[at], base_f[at],
            base_g[part], left[at], right[part], d, values=values,
        )  # fmt: skip
        calls.launch(
            f"sinkhorn_large_{'wide_gradient' if wide else 'gradient'}", piece, d, of.scale, first_r[at],
            own_f[at], of.base[at], first_f[at], rows[0][at], to, values=values[-1:],
        )  # fmt: skip
        # its memory is that of the next piece
        del d
    if scaled_by is not None:
        torch.mul(into, scaled_by, out=dx)
    if of_marginals:
        of_r, of_c = of_marginals
        torch.mul((columns / of.rests).sum(0), times(log_c, log_mass).exp(), out=of_c)
        torch.mul(rows[1:].sum(0), times(log_r, log_mass).exp(), out=of_r)
        of_r.addcmul_(rows[0], first_r.exp())
    return gradients


def describe(x: torch.Tensor, first: str, eps: float) -> tuple[str, str, str]:
    """(device, forward choice, backward choice) of the kernels that read a matrix in each iteration."""
    n, m = lead_first(first, *x.shape[-2:])
    # a call makes logits contiguous that are not
    batch, call = matrices_of(x), call_for(n, m, x.dtype, first == "cols" and n > 1)
    step, back = (
        ("wide_rows",) * 2 if call.m > LONGEST else ("eps_step", "eps_back") if eps else ("step", "back")
    )
    names = (form_of(f"sinkhorn_large_{k}", call)[0] for k in (step, back))
    chosen = (str(chosen_for(KERNELS[k], for_kernel(k, call), batch, x)) for k in names)
    return f"{device_of(x).key} ({x.device})", *chosen
