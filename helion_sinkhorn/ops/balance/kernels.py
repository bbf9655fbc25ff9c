"""The Helion kernel bodies of sinkhorn_balance: a pass over the rows of a matrix for each row step.

The iterate is never stored: u_ij = d_i x_ij c_j, with a scale for each row and each column.  A program has
whole rows, so that their norms, and the squares that the columns add up, come from one read of x.
"""

from __future__ import annotations

import helion.language as hl
import torch


def row_step(entries, scales, eps, normalises):
    """d of rows x c, given their d: d / (d |x c| + eps), or d where the pass has no row step."""
    if not normalises:
        return scales
    norms = torch.sqrt((entries * entries).sum(1))
    # a row of zeros stays one, whatever its scale, which may not become infinite
    return torch.where(norms == 0, scales, scales / (scales * norms + eps))


def rows_of(order, places):
    """The rows at these places of the order, or the places where there is none."""
    # hl.load: inside a helper Helion takes indexing for an operation on the host
    return places if order is None else hl.load(order, [places])


def live_rows(x, at, live, interpret):
    """The rows `at` of x, 0 and not read where they are masked."""
    if interpret:  # Helion's reference mode takes no mask beside a slice
        return torch.where(live, hl.load(x, [at, slice(None)]), 0.0)
    return hl.load(x, [at, slice(None)], extra_mask=live)


def store_live(x, at, live, entries, interpret):
    """The rows `at` of x, but those that are masked."""
    if interpret:
        x[at, :] = torch.where(live, entries, x[at, :])
    else:
        hl.store(x, [at, slice(None)], entries, extra_mask=live)


def added(total, terms, interpret):
    """total + terms, of a tile that may be shorter in Helion's reference mode."""
    return total.index_add(0, torch.arange(terms.size(0)), terms) if interpret else total + terms


def balance_norms(x: torch.Tensor, norms: torch.Tensor, facts: hl.constexpr):
    """norms (T,) of the rows of x (T, n)."""
    hl.specialize((x.size(1), x.stride()))
    for tile_t in hl.tile(x.size(0)):
        entries = x[tile_t, :].to(torch.float32)
        norms[tile_t] = torch.sqrt((entries * entries).sum(1))


def balance_momentum(
    x: torch.Tensor,
    average: torch.Tensor,
    ahead: torch.Tensor | None,
    norms: torch.Tensor,
    momentum: float,
    rest: float,
    facts: hl.constexpr,
):
    """average (T, n) <- momentum average + rest x; ahead = momentum average + rest x, for Nesterov; norms
    (T,) of the rows of what is stored last."""
    hl.specialize((x.size(1), x.stride(), average.stride()))
    for tile_t in hl.tile(x.size(0)):
        terms = x[tile_t, :].to(torch.float32) * rest
        mean = average[tile_t, :].to(torch.float32) * momentum + terms
        stored = mean.to(average.dtype)
        average[tile_t, :] = stored
        if ahead is not None:
            stored = (mean * momentum + terms).to(average.dtype)
            ahead[tile_t, :] = stored
        entries = stored.to(torch.float32)
        norms[tile_t] = torch.sqrt((entries * entries).sum(1))


def balance_step(
    x: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    order: torch.Tensor | None,
    count: torch.Tensor | None,
    stepped: torch.Tensor | None,
    sums: torch.Tensor,
    rows: int,
    shares: int,
    facts: hl.constexpr,
):
    """sums (B S, n): of u^2 over the rows of each of S shares of x (B m, n), behind a row step if the pass
    has one, which leaves d in `stepped` (B m,).

    A pass that goes backwards begins with the rows that the one before it left in the cache.  `order` (B m,)
    has the rows that are not masked first in each matrix, `count` (B,) how many they are.
    """
    eps, normalises, backwards, interpret = facts
    matrices = c.size(0)
    hl.specialize((x.size(1), x.stride(), c.stride(), sums.stride()))
    block = hl.register_block_size(rows)
    for tile_b, tile_s in hl.tile([matrices, shares], block_size=[1, 1]):
        b = tile_b.begin
        if count is None:
            share = (rows + shares - 1) // shares
            first = tile_s.begin * share
            last = min(first + share, rows)
        else:
            share = (count[b] + shares - 1) // shares
            first = tile_s.begin * share
            last = torch.minimum(first + share, count[b])
        factors = c[b, :].unsqueeze(0)
        # not of [block, n]: for few columns Helion takes n there for another axis than that of x
        total = hl.zeros([block], dtype=torch.float32).unsqueeze(1) * factors
        for tile_t in hl.tile(first, last, block_size=block):
            at = rows_of(order, (first + last - 1 - tile_t.index if backwards else tile_t.index) + b * rows)
            entries = x[at, :].to(torch.float32) * factors
            scales = row_step(entries, d[at], eps, normalises)
            # asked of a constant: for a tensor that the loop reads too, Helion has no pipeline
            if normalises:
                stepped[at] = scales
            u = entries * scales.unsqueeze(1)
            total = added(total, u * u, interpret)
        sums[b * shares + tile_s.begin, :] = total.sum(0)


def balance_columns(sums: torch.Tensor, c: torch.Tensor, shares: int, facts: hl.constexpr):
    """A column step: c (B, n) / (norm + eps), of squares added over the S shares of sums (B S, n)."""
    eps, _ = facts
    matrices, columns = c.size(0), hl.specialize(c.size(1))
    hl.specialize((c.stride(), sums.stride()))
    block = hl.register_block_size(shares)
    for tile_b, tile_j in hl.tile([matrices, columns], block_size=[1, None]):
        b = tile_b.begin
        total = hl.zeros([block, tile_j], dtype=torch.float32)
        for tile_s in hl.tile(shares, block_size=block):
            total = total + sums[tile_s.index + b * shares, tile_j]
        square, factors = total.sum(0), c[b, tile_j]
        # a column of zeros stays one, whatever its scale, which may not become infinite
        c[b, tile_j] = torch.where(square == 0, factors, factors / (torch.sqrt(square) + eps))


def balance_finish(
    x: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    out: torch.Tensor,
    rows: int,
    facts: hl.constexpr,
):
    """out (B m, n): the iterate behind a last row step, or as it is, times `factor`; rows whose d is 0 are
    not read."""
    eps, normalises, factor, interpret = facts
    matrices = c.size(0)
    hl.specialize((x.size(1), x.stride(), c.stride(), out.stride()))
    for tile_b, tile_t in hl.tile([matrices, rows], block_size=[1, None]):
        b = tile_b.begin
        at = tile_t.index + b * rows
        before = d[at]
        live = (before > 0).unsqueeze(1)
        entries = live_rows(x, at, live, interpret).to(torch.float32) * c[b, :].unsqueeze(0)
        scales = row_step(entries, before, eps, normalises) * factor
        out[at, :] = (entries * scales.unsqueeze(1)).to(out.dtype)


def balance_update(
    x: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    w: torch.Tensor,
    size: torch.Tensor,
    rows: int,
    facts: hl.constexpr,
):
    """w (B m, n) - size (1,) times the iterate, in place of w; rows whose d is 0 are neither read nor
    written."""
    eps, normalises, interpret = facts
    matrices = c.size(0)
    hl.specialize((x.size(1), x.stride(), c.stride(), w.stride()))
    for tile_b, tile_t in hl.tile([matrices, rows], block_size=[1, None]):
        b = tile_b.begin
        at = tile_t.index + b * rows
        before = d[at]
        # NaN is not 0: it reaches the weights
        live = (before != 0).unsqueeze(1)
        entries = live_rows(x, at, live, interpret).to(torch.float32) * c[b, :].unsqueeze(0)
        # on its way while the rows are added up
        weights = live_rows(w, at, live, interpret)
        scales = row_step(entries, before, eps, normalises) * size[0]
        moved = weights.to(torch.float32) - entries * scales.unsqueeze(1)
        store_live(w, at, live, moved.to(w.dtype), interpret)
