"""Matrices whose rows or columns are shared out among ranks, of a process group or of a DTensor."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.sinkhorn.large.eager import SMALL, resolve_large
from helion_sinkhorn.ops.sinkhorn.large.marginals import Transport
from helion_sinkhorn.ops.sinkhorn.large.ranks import Ranks, ranks_of
from helion_sinkhorn.runtime.checks import check_group, check_implementation
from helion_sinkhorn.runtime.groups import reduce_over
from helion_sinkhorn.runtime.torch_op import may_be_distributed, needs_gradient

OTHER = {"rows": "cols", "cols": "rows"}


class Shared(NamedTuple):
    """A rank's part of the rows of matrices; if of the columns, all is transposed, `first` included."""

    part: torch.Tensor
    first: str
    groups: list[str]
    lines: int
    """The number of lines that all ranks have together."""
    turned: bool
    like: Any
    """The DTensor that the part comes from, or None."""
    by_kernels: bool = False
    """Whether all ranks run the kernels on their parts."""

    @property
    def ranks(self) -> Ranks:
        return ranks_of(self.groups, self.first, self.lines)

    def whole(self, p: torch.Tensor) -> torch.Tensor:
        """P in the form in which the logits were given."""
        p = p.mT if self.turned else p
        if self.like is None:
            return p
        from torch.distributed.tensor import DTensor

        x = self.like
        # like the whole, p is contiguous; if it is transposed, it is made so
        p, stride = p.contiguous(), torch.empty(x.shape, device="meta").stride()
        return DTensor.from_local(
            p, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=stride
        )


def shared(
    logits: torch.Tensor, group: Any, first: str, implementation: str, backward: object, of: Transport
) -> Shared | None:
    """This rank's part of matrices of which no rank has all rows or columns; None if they are whole.

    Raises:
        TypeError: group is no process group.
        ValueError: a rank has no row, or options do not go with it.
        NotImplementedError: implementation="helion".
    """
    if group is None and not may_be_distributed(logits):
        return None
    helion = check_implementation(implementation) == "helion"
    mine = _placed(logits, group, first, backward == "exact" and not helion)
    if mine is None:
        return None
    if helion:
        raise NotImplementedError(
            "implementation='helion' needs whole matrices; use implementation='auto', which takes the "
            "kernels where no rank needs a gradient or has marginals"
        )
    if backward != "exact":
        raise ValueError("backward='implicit' needs whole matrices; leave out group, or pass 'exact'")
    of.check_shared()
    if not isinstance(mine.part, torch.Tensor) or mine.part.dim() < 2:
        return mine
    n = mine.part.size(-2)
    # a rank that took PyTorch alone would wait for sums that the others do not make
    in_torch = of.has_marginals or not n or needs_gradient(mine.part)
    in_torch = in_torch or resolve_large(implementation, mine.part, mine.first) == "pytorch"
    counts = torch.tensor([n, n == 0, in_torch], device=mine.part.device)
    reduce_over(counts, mine.groups, "SUM")
    lines, without, in_torch = counts.tolist()
    if without:
        raise ValueError(
            f"{without} of the ranks have no {'columns' if mine.turned else 'rows'}; each must have at "
            "least one: shard over fewer ranks"
        )
    return mine._replace(lines=lines, by_kernels=not in_torch)


def _placed(logits: torch.Tensor, group: Any, first: str, exact: bool) -> Shared | None:
    """This rank's part, known without asking the other ranks."""
    if may_be_distributed(logits):
        from torch.distributed.tensor import DTensor

        if isinstance(logits, DTensor):
            return _of_dtensor(logits, group, first, exact)
    return None if group is None else Shared(logits, first, [check_group(group)], 0, False, None)


def _of_dtensor(logits: Any, group: Any, first: str, exact: bool) -> Shared | None:
    """This rank's part of a DTensor; None if DTensor gathers the matrices.

    Small matrices cost less gathered, and some calls need whole matrices.
    """
    if group is not None:
        raise ValueError("logits is a DTensor, whose mesh says which ranks have its rows; leave out group")
    rows = logits.dim() - 2
    sides = {p.dim for p in logits.placements if p.is_shard() and p.dim >= rows}
    is_partial = any(p.is_partial() for p in logits.placements)
    if len(sides) != 1 or is_partial or not exact or max(logits.shape[-2:]) <= SMALL:
        return None
    groups = [
        logits.device_mesh.get_group(k).group_name
        for k, p in enumerate(logits.placements)
        if p.is_shard() and p.dim in sides
    ]
    part, turned = logits.to_local(), sides == {rows + 1}
    return Shared(part.mT if turned else part, OTHER.get(first, first) if turned else first, groups, 0,
                  turned, logits)  # fmt: skip
