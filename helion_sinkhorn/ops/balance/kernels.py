"""The Helion kernel bodies of sinkhorn_balance: a pass over the rows of a matrix for each row step.

The iterate is never stored: u_ij = d_i x_ij c_j, with a scale for each row and each column.  A program has
whole rows, so that one read of x gives their norms and the squares that are summed along columns.
"""

from __future__ import annotations

import helion.language as hl
import torch


def row_step(entries, scales, eps, normalises):
    """d of rows x c, given their d: d / (d |x c| + eps), or d where the pass has no row step."""
    if not normalises:
        return scales
    norms = torch.sqrt((entries * entries).sum(1))
    # a row of zeros keeps its scale, which must not become infinite
    return torch.where(norms == 0, scales, scales / (scales * norms + eps))


def rows_of(order, places):
    """The rows at these places of the order, or the places themselves if there is no order."""
    # hl.load: inside a helper Helion takes indexing for an operation on the host
    return places if order is None else hl.load(order, [places])


def live_rows(x, at, live, interpret):
    """The rows `at` of x; masked rows are 0 and not read."""
    if interpret:  # Helion's reference mode takes no mask beside a slice
        return torch.where(live, hl.load(x, [at, slice(None)]), 0.0)
    return hl.load(x, [at, slice(None)], extra_mask=live)


def store_live(x, at, live, entries, interpret):
    """Store the rows `at` of x that are not masked."""
    if interpret:
        x[at, :] = torch.where(live, entries, x[at, :])
    else:
        hl.store(x, [at, slice(None)], entries, extra_mask=live)


def added(total, terms, interpret):
    """total + terms; in Helion's reference mode the tile of terms may be shorter."""
    return total.index_add(0, torch.arange(terms.size(0)), terms) if interpret else total + terms


def balance_norms(x: torch.Tensor, norms: torch.Tensor, facts: hl.constexpr):
    """Write norms (T,), those of the rows of x (T, n)."""
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
    """Write average (T, n) <- momentum average + rest x, and for Nesterov ahead = momentum average + rest x.

    norms (T,) are those of the rows of what is stored last.
    """
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
    """Write sums (B S, n) of u^2 over the rows of each of S shares of x (B m, n).

    If the pass has a row step, it comes first and writes d to `stepped` (B m,).  A pass that runs backwards
    begins with the rows that the pass before left in the cache.  `order` (B m,) lists the rows that are not
    masked first in each matrix, and `count` (B,) is their number.
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
        # not made as [block, n]: for few columns Helion confuses n with another axis than that of x
        total = hl.zeros([block], dtype=torch.float32).unsqueeze(1) * factors
        for tile_t in hl.tile(first, last, block_size=block):
            at = rows_of(order, (first + last - 1 - tile_t.index if backwards else tile_t.index) + b * rows)
            entries = x[at, :].to(torch.float32) * factors
            scales = row_step(entries, d[at], eps, normalises)
            # the condition is a constant: with a tensor that the loop reads too, Helion would not pipeline
            if normalises:
                stepped[at] = scales
            u = entries * scales.unsqueeze(1)
            total = added(total, u * u, interpret)
        sums[b * shares + tile_s.begin, :] = total.sum(0)


def balance_columns(sums: torch.Tensor, c: torch.Tensor, shares: int, facts: hl.constexpr):
    """A column step: divide c (B, n) by norm + eps, with squares added over the S shares of sums (B S, n)."""
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
        # a column of zeros keeps its scale, which must not become infinite
        c[b, tile_j] = torch.where(square == 0, factors, factors / (torch.sqrt(square) + eps))


def balance_finish(
    x: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    out: torch.Tensor,
    rows: int,
    facts: hl.constexpr,
):
    """Write out (B m, n), the iterate, after a last row step if there is one, times `factor`.

    Rows whose d is 0 are not read.
    """
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
    """Subtract size (1,) times the iterate from w (B m, n), in place.

    Rows whose d is 0 are neither read nor written.
    """
    eps, normalises, interpret = facts
    matrices = c.size(0)
    hl.specialize((x.size(1), x.stride(), c.stride(), w.stride()))
    for tile_b, tile_t in hl.tile([matrices, rows], block_size=[1, None]):
        b = tile_b.begin
        at = tile_t.index + b * rows
        before = d[at]
        # NaN is not 0, so it reaches the weights
        live = (before != 0).unsqueeze(1)
        entries = live_rows(x, at, live, interpret).to(torch.float32) * c[b, :].unsqueeze(0)
        # loaded while the rows are added up
        weights = live_rows(w, at, live, interpret)
        scales = row_step(entries, before, eps, normalises) * size[0]
        moved = weights.to(torch.float32) - entries * scales.unsqueeze(1)
        store_live(w, at, live, moved.to(w.dtype), interpret)
