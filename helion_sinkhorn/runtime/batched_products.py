"""Products of many small matrices in PyTorch, whose bits do not depend on the other matrices.

A BLAS chooses the order of a sum by the sizes, by the alignment of factors and results, and by the number of
products for its threads.  So every matrix begins at a 64-byte boundary, and there are at least as many as
threads; on a GPU always the same number.
"""

from __future__ import annotations

import math

import torch

from helion_sinkhorn.runtime.pieces import ENTRIES

BOUNDARY = 64
LONGEST = 512
"""The most terms that a BLAS adds in one sum; longer sums are split."""


def fewest(entries: int, device: torch.device) -> int:
    """The fewest elements of a batch, by their number of entries; large ones are multiplied one by one."""
    if entries > ENTRIES:
        return 1
    return max(2, torch.get_num_threads()) if device.type == "cpu" else ENTRIES // max(1, entries)


def products(
    a: torch.Tensor, b: torch.Tensor, least: int, turn_a: bool = False, turn_b: bool = False
) -> torch.Tensor:
    """a @ b for (T, n, k) and (T, k, m); with `turn_a` or `turn_b` that factor comes transposed.

    Args:
        least: the number of `fewest`, which `pieces` gets too.
    """
    count, columns = a.size(0), b.size(1 if turn_b else 2)
    rows = a.size(2 if turn_a else 1)
    # the elements of the result begin at boundaries too
    unit = BOUNDARY // a.element_size()
    step = unit // math.gcd(rows, unit)
    width = -(-columns // step) * step
    a = _placed(a, a.size(1), a.size(2), least)
    b = _placed(b, width, b.size(2), least) if turn_b else _placed(b, b.size(1), width, least)
    made = _sums(a.mT if turn_a else a, b.mT if turn_b else b)
    if made.size(0) == count and width == columns:
        return made
    return made[:count, :, :columns]


def _sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.size(2) <= LONGEST:
        return torch.bmm(a, b)
    (first, *rows), (second, *columns) = a.split(LONGEST, 2), b.split(LONGEST, 1)
    made = torch.bmm(first, second)
    for part, other in zip(rows, columns, strict=True):
        made.baddbmm_(part, other)
    return made


def _placed(t: torch.Tensor, rows: int, columns: int, least: int) -> torch.Tensor:
    """t (T, n, k) padded with zeros to (`least` or more, rows, columns), each element beginning at a
    boundary.
    """
    count, (n, k), unit = t.size(0), t.shape[1:], BOUNDARY // t.element_size()
    many = max(count, least)
    begins = t.is_contiguous() and t.data_ptr() % BOUNDARY == 0 and (count == 1 or n * k % unit == 0)
    if begins and (rows, columns) == (n, k) and count in (1, many):
        # an axis of one entry is contiguous with any stride
        return t.as_strided((many, n, k), (0 if count == 1 else n * k, k, 1))
    apart = -(-rows * columns // unit) * unit
    room = t.new_zeros(many, apart).as_strided((many, rows, columns), (apart, columns, 1))
    room[:count, :n, :k] = t
    return room
