"""sinkhorn_balance of DTensors: each rank balances its rows; squares of columns are added over ranks."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def local(
    update: torch.Tensor, out: torch.Tensor | None, groups: list[str]
) -> tuple[torch.Tensor, torch.Tensor | None, list[str]]:
    """This rank's parts of update and out, and the names of the groups over which rows are sharded."""
    are = {isinstance(t, DTensor) for t in (update, out) if t is not None}
    if are == {False}:
        return update, out, groups
    if not isinstance(update, DTensor) or len(are) > 1:
        raise TypeError("one of update and out is a DTensor and the other is not; distribute both alike")
    if groups:
        raise ValueError("update is a DTensor, whose mesh says which ranks have its rows; leave out group")
    if out is not None and (out.placements, out.device_mesh) != (update.placements, update.device_mesh):
        raise ValueError(f"out is placed {out.placements}, update {update.placements}; place both alike")
    rows, mesh = update.dim() - 2, update.device_mesh
    for placement in update.placements:
        if placement.is_partial() or placement.is_shard(rows + 1):
            raise ValueError(
                f"update is placed {update.placements}; its rows may be sharded, Shard({rows}), and its "
                "leading dimensions, but a row must be whole: call .redistribute"
            )
    groups = [
        mesh.get_group(k).group_name
        for k, placement in enumerate(update.placements)
        if placement.is_shard(rows)
    ]
    return update.to_local(), None if out is None else out.to_local(), groups


def whole(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The DTensor of this part, placed like `like`, or the part itself if `like` is no DTensor."""
    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
