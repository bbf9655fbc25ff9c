"""From tensors to launches of the kernels of large matrices: potentials, and what a gradient takes back."""

from __future__ import annotations

import functools
import math

import torch

from helion_sinkhorn.ops.sinkhorn.large.calls import KERNELS, Calls, call_for
from helion_sinkhorn.ops.sinkhorn.large.eager import flat, lead_first, turned
from helion_sinkhorn.ops.sinkhorn.large.torch_op import kept_entries, kept_vectors
from helion_sinkhorn.ops.sinkhorn.scaling import EXPONENT_BUDGET
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, Tensors, chosen_for, device_of
from helion_sinkhorn.runtime.views import matrices_of, placed

GROUP_BYTES = 32 << 20
"""Logits that run all iterations together: they stay in L2."""


def marginals_of(
    x: torch.Tensor, log_r: torch.Tensor | None, log_c: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The logarithms of both marginals, (B, n) and (B, m), less that of the mass, and it, (B, 1); without
    any, of m / n and 1, and None.

    The mass is a whole power of e: marginals whose sum is near one keep their bits.
    """
    batch, n, m = x.shape
    if log_r is None or log_c is None:
        log_r, log_c = (
            x.new_full((k,), value, dtype=torch.float32).expand(batch, k)
            for k, value in ((n, math.log(m / n)), (m, 0.0))
        )
        return log_r, log_c, None
    log_r, log_c = log_r.float(), log_c.float()
    log_mass = log_c.logsumexp(-1, keepdim=True).round_()
    log_mass.masked_fill_(log_mass == -torch.inf, 0.0)
    return (log_r - log_mass).contiguous(), (log_c - log_mass).contiguous(), log_mass


def times(f: torch.Tensor, log_mass: torch.Tensor | None) -> torch.Tensor:
    """The logarithms f (B, n) of what a mass multiplies."""
    return f if log_mass is None else f + log_mass


padded = functools.partial(kept_entries, implementation="helion")


def forward(
    logits: torch.Tensor,
    log_rows: torch.Tensor | None,
    log_columns: torch.Tensor | None,
    n_iters: int,
    eps: float,
    first: str,
    temperature: float,
    keep: bool,
    out_dtype: torch.dtype,
    choices: Choices = NO_CHOICES,
) -> tuple[torch.Tensor, ...]:
    """P, f, g, and f above base and g of every iteration; the contract is eager.forward's."""
    *lead, n, m = logits.shape
    made = torch.empty(logits.shape, dtype=out_dtype, device=logits.device)
    new = functools.partial(logits.new_empty, dtype=torch.float32)
    kept = kept_vectors(n_iters, "helion") if keep else 0
    vectors = [new(kept, *lead, padded(k)) for k in (n, m)]
    potentials = [new(*lead, k) for k in (n, m)]
    if not logits.numel():
        return made, *potentials, *vectors
    x, p = turned(first, placed(logits)), turned(first, made)
    batch, n, m = x.shape
    log_r, log_c, log_mass = marginals_of(x, *flat(*lead_first(first, log_rows, log_columns)))
    # without a gradient two places are enough, one to read and one to write, and one for base
    room = [t.view(kept, batch, -1) if keep else new(min(2, n_iters) + 1, batch, t.size(-1)) for t in vectors]
    fs, gs = (t[..., :k] for t, k in zip(lead_first(first, *room), (n, m), strict=True))
    (*_, base), fs, gs = fs, fs[:-1], gs[:-1]
    scale = new(1).fill_(1 / temperature)
    for part in groups(x):
        iterations(
            Calls(x[part], choices),
            scale,
            (log_r[part], log_c[part]),
            base[part],
            fs[:, part],
            gs[:, part],
            n_iters,
        )
    f, g = (of[(n_iters - 1) % len(of)] for of in (fs, gs))
    f = times(f, log_mass)
    Calls(x, choices).launch("sinkhorn_large_write", x, scale, base, f, g, p)
    for into, t in zip(lead_first(first, *potentials), (f - base, g), strict=True):
        into.view(batch, -1).copy_(t)
    return made, *potentials, *vectors


def groups(x: torch.Tensor) -> list[slice]:
    """Which of (B, n, m) run all their iterations before the next ones begin: what fits into L2 together."""
    step = max(1, GROUP_BYTES // (x.element_size() * x[0].numel()))
    return [slice(k, k + step) for k in range(0, len(x), step)]


def iterations(
    calls: Calls,
    scale: torch.Tensor,
    marginals: Tensors,
    base: torch.Tensor,
    fs: torch.Tensor,
    gs: torch.Tensor,
    n_iters: int,
) -> None:
    """base, and f and g of every iteration, in turn in fs (K, B, n) and gs (K, B, m)."""
    x, (log_r, log_c) = calls.x, marginals
    for t in range(n_iters):
        f, g, before = (of[k % len(of)] for of, k in ((fs, t), (gs, t), (gs, t - 1)))
        if t == 0:
            part = calls.rows("sinkhorn_large_first", x, scale, log_r, base, f)
        else:
            part = calls.rows("sinkhorn_large_step", x, scale, log_r, base, before, f)
        calls.columns(part, before, log_c, g, t == 0)


def backward(
    dp: torch.Tensor | None,
    df: torch.Tensor | None,
    dg: torch.Tensor | None,
    logits: torch.Tensor,
    log_rows: torch.Tensor | None,
    log_columns: torch.Tensor | None,
    of_rows: torch.Tensor,
    of_columns: torch.Tensor,
    eps: float,
    first: str,
    temperature: float,
    choices: Choices = NO_CHOICES,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the logits and of both marginals; the contract is eager.backward's."""
    *lead, n, m = logits.shape
    dx = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    new = functools.partial(logits.new_empty, dtype=torch.float32)
    none = log_rows is None
    of_marginals = [new(*lead, 0 if none else k) for k in (n, m)]
    if not logits.numel():
        return dx, *of_marginals
    x, made = turned(first, placed(logits)), turned(first, dx)
    dy = torch.zeros_like(x) if dp is None else turned(first, placed(dp))
    n_iters = len(of_rows) - 1
    batch, n, m = x.shape
    log_r, log_c, log_mass = marginals_of(x, *flat(*lead_first(first, log_rows, log_columns)))
    if dp is None:
        # gradients of potentials alone do not know the mass
        log_mass = None
    room = (t.reshape(n_iters + 1, batch, -1) for t in lead_first(first, of_rows, of_columns))
    fs, gs = (placed(t)[..., :k] for t, k in zip(room, (n, m), strict=True))
    (*_, base), fs, gs = fs, fs[:-1], gs[:-1]
    own_f, own_g = (
        new(batch, k).zero_() if t is None else placed(t.reshape(batch, k).float())
        for t, k in zip(lead_first(first, df, dg), (n, m), strict=True)
    )
    scale = new(1).fill_(1 / temperature)
    # iterations take back what is over the mass
    over_f, over_g = (
        t if log_mass is None or own is None else t * log_mass.neg().exp()
        for t, own in zip((own_f, own_g), lead_first(first, df, dg), strict=True)
    )
    rows, columns = (new(n_iters, batch, padded(k))[..., :k] for k in (n, m))
    for part in groups(x):
        calls, marginals = Calls(x[part], choices), (log_r[part], log_c[part])
        own, potentials = (over_f[part], over_g[part]), (base[part], fs[:, part], gs[:, part])
        taken_back(calls, dy[part], scale, marginals, own, potentials, rows[:, part], columns[:, part])
    # the gradient takes back what the first row step left when it is made
    rows[0].zero_()
    base_f, *terms = low_rank(fs, gs, rows, columns)
    if log_mass is not None:
        base_f = base_f + log_mass.unsqueeze(1)
    # the first row step by its own sums: its entries and r may have any factor
    factor = None if log_mass is None else log_mass.clamp(min=0.0)
    first_r, first_f = times(log_r, factor), times(fs[0], factor)
    Calls(x, choices).launch(
        "sinkhorn_large_gradient", x, dy, scale, first_r, base, own_f, times(fs[-1], log_mass), gs[-1],
        first_f, base_f, *terms, rows[0], made, values=tuple(terms[-1].shape[1:3]),
    )  # fmt: skip
    if not none:
        of_r, of_c = (t.view(batch, -1) for t in lead_first(first, *of_marginals))
        torch.mul(columns.sum(0), times(log_c, log_mass).exp(), out=of_c)
        torch.mul(rows[1:].sum(0), times(log_r, log_mass).exp(), out=of_r)
        of_r.addcmul_(rows[0], first_r.exp())
    return dx, *of_marginals


def taken_back(
    calls: Calls,
    dy: torch.Tensor,
    scale: torch.Tensor,
    marginals: Tensors,
    own: Tensors,
    potentials: Tensors,
    rows: torch.Tensor,
    columns: torch.Tensor,
) -> None:
    """What each iteration takes back, over r and c: rows (T, B, n), but the first, and columns (T, B, m)."""
    x, (log_r, log_c), (own_f, own_g), (base, fs, gs) = calls.x, marginals, own, potentials
    nothing, again = (calls.empty(len(x), padded(columns.size(-1)))[:, : columns.size(-1)] for _ in range(2))
    nothing.zero_()
    f, g, last = fs[-1], gs[-1], len(fs) - 1
    # the first sums are the largest there are, and so is what rounding leaves of them: twice
    part = calls.rows("sinkhorn_large_sums", x, dy, scale, base, f, g, nothing)
    calls.gather(part, own_g, log_c, columns[last], 1.0)
    part = calls.rows("sinkhorn_large_sums", x, dy, scale, base, f, g, columns[last])
    calls.gather(part, own_g, log_c, again, 1.0)
    columns[last].add_(again)
    for t in range(last, 0, -1):
        if t == last:
            given = x, dy, scale, log_r, base, own_f, f, g, gs[t - 1], columns[t], rows[t]
            part = calls.rows("sinkhorn_large_turn", *given)
        else:
            given = x, scale, log_r, base, fs[t], gs[t], gs[t - 1], columns[t], rows[t]
            part = calls.rows("sinkhorn_large_back", *given)
        calls.gather(part, nothing, log_c, columns[t - 1], -1.0)


def segment_of(n: int, m: int) -> int:
    """Iterations whose potentials are within a float's range of each other."""
    return max(1, min(4, int(EXPONENT_BUDGET[torch.float32] // max(1.0, math.log2(n * m)))))


def low_rank(
    fs: torch.Tensor, gs: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """(base_f, base_g, left, right) of sinkhorn_large_gradient: what iterations take back, in segments.

    The terms of iteration t are P_t diag(columns_t) and diag(rows_t) P'_t, whose factors are relative to the
    last one of their segment.  The columns of the last iteration come first; rows of the first one are left.
    """
    n_iters, batch, n = fs.shape
    m = gs.size(-1)
    length = segment_of(n, m)
    segments = -(-n_iters // length)
    # from the last iteration on; behind the first one terms of nothing
    order = torch.arange(segments * length, device=fs.device).view(segments, length)
    t = (n_iters - 1 - order).clamp_(min=0)
    there = (order < n_iters).view(segments, length, 1, 1)
    base_f, base_g = fs[t[:, 0]], gs[t[:, 0]]

    def relative(now: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        u = (now - base.unsqueeze(1)).exp_()
        return u.masked_fill_((base == -torch.inf).unsqueeze(1), 0.0)

    u, v = relative(fs[t], base_f), relative(gs[t], base_g)
    v_before = relative(gs[(t - 1).clamp(min=0)], base_g)
    left = torch.stack((u * there, u * rows[t] * there), 2)
    right = torch.stack((v * columns[t], v_before), 2)
    shapes = (segments, 2 * length, batch)
    left, right = left.reshape(*shapes, n), right.reshape(*shapes, m)
    return tuple([k.movedim(-2, 0).contiguous() for k in (base_f, base_g, left, right)])


def describe(x: torch.Tensor, first: str) -> tuple[str, str, str]:
    """(device, forward choice, backward choice) of the kernels that read a matrix in each iteration."""
    batch = matrices_of(x)
    call = call_for(*lead_first(first, *x.shape[-2:]), x.dtype)
    names = "sinkhorn_large_step", "sinkhorn_large_back"
    return f"{device_of(x).key} ({x.device})", *(str(chosen_for(KERNELS[n], call, batch, x)) for n in names)
