"""Sums over the last dimension, as kernels that stream rows may add them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ci.gate.arithmetic import Arithmetic

Change = Callable[[torch.Tensor], torch.Tensor]
TILE = 64
"""Entries of a tile; a power of two."""


def same(t: torch.Tensor) -> torch.Tensor:
    return t


def at_once(t: torch.Tensor) -> torch.Tensor:
    return t.sum(-1)


def wide(t: torch.Tensor) -> torch.Tensor:
    return t.double().sum(-1).to(t.dtype)


def tree(t: torch.Tensor) -> torch.Tensor:
    return Arithmetic(sums="tree").sum(t, -1).squeeze(-1)


def cut_into_tiles(t: torch.Tensor, tile: int = TILE) -> torch.Tensor:
    """(..., tiles, tile), the last one filled up with zeros."""
    return torch.nn.functional.pad(t, (0, -t.size(-1) % tile)).unflatten(-1, (-1, tile))


def in_order(t: torch.Tensor, partial: Change = same) -> torch.Tensor:
    return Arithmetic(partial=partial).sum(t, -1).squeeze(-1)


def tiles(t: torch.Tensor, partial: Change = same) -> torch.Tensor:
    """A sum for each place in a tile, tile after tile, then a tree of these."""
    return tree(in_order(cut_into_tiles(t).mT, partial))


def tiles_backwards(t: torch.Tensor) -> torch.Tensor:
    return tree(in_order(cut_into_tiles(t).flip(-2).mT))


def tiles_one_by_one(t: torch.Tensor) -> torch.Tensor:
    """A tree within each tile, and the tiles in order."""
    return in_order(tree(cut_into_tiles(t)))


def programs(t: torch.Tensor, count: int = 4) -> torch.Tensor:
    """Ranges of tiles, each a program's, added by a second launch."""
    return in_order(tiles(cut_into_tiles(t, -(-t.size(-1) // count))))


def permuted(t: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(t.size(-1), generator=torch.Generator().manual_seed(0))
    return tiles(t[..., order])


SUMS: dict[str, Change] = {
    "columns at once": at_once,
    "columns in float64": wide,
    "columns by a tree": tree,
    "tiles of columns": tiles,
    "tiles of columns, last first": tiles_backwards,
    "tiles one by one": tiles_one_by_one,
    "ranges of columns, a second launch": programs,
    "columns permuted": permuted,
}
"""The choices that every implementation may make."""
