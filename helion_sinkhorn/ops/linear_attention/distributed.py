"""Recurrent linear attention of DTensors, which may be sharded over sequences and heads only.

In torch an operator that returns a list has no sharding rule, so each process computes its own part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

SEQUENCES = (0, 0, 0, 0, None, 0, 0, None, 0)
"""Dimension of the sequences in q, k, v, g, g_gamma, gk, gv, scale, initial_state."""
HEADS = (2, 2, 2, 2, 0, 2, 2, None, 1)
"""Dimension of the heads in the same tensors."""
G_GAMMA = 4


def is_distributed(arguments: Sequence[Any]) -> bool:
    """Whether the tensors are DTensors, which all of them are or none."""
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    distributed = [isinstance(x, DTensor) for x in tensors]
    if any(distributed) and not all(distributed):
        raise TypeError(
            "some tensors are DTensors and others not; distribute all of them, with Replicate() where needed"
        )
    return any(distributed)


def attend(run: Callable[..., tuple[torch.Tensor, torch.Tensor]], arguments: Sequence[Any]):
    """run(*arguments) of DTensors, (o, last state), sharded like q; `run` gets the parts of this process."""
    q, v, cu_seqlens = arguments[0], arguments[2], arguments[10]
    mesh = q.device_mesh

    def placements(sequences: int | None, heads: int | None) -> list[Placement]:
        """Placements of a tensor with these dimensions, one for each dimension of the mesh."""
        placed: list[Placement] = []
        for of_q in q.placements:
            # packed sequences are one batch
            dim = (
                sequences if of_q.is_shard(0) and cu_seqlens is None else heads if of_q.is_shard(2) else None
            )
            placed.append(Replicate() if dim is None else Shard(dim))
        return placed

    def local(i: int, x: Any) -> Any:
        if not isinstance(x, DTensor):
            return x
        own = placements(SEQUENCES[i], HEADS[i]) if i < len(HEADS) else [Replicate()] * mesh.ndim
        gradient = own
        if i == G_GAMMA:
            # it has a row for each of the process's sequences
            of_sequences = placements(0, None)
            gradient = [Partial() if s.is_shard() else p for s, p in zip(of_sequences, own, strict=True)]
        return x.redistribute(mesh, own).to_local(grad_placements=gradient)

    o, state = run(*[local(i, x) for i, x in enumerate(arguments)])
    sequences = q.size(0) if cu_seqlens is None else cu_seqlens.size(0) - 1

    def whole(x: torch.Tensor, shape: Sequence[int], placed: list[Placement]) -> DTensor:
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(x, mesh, placed, run_check=False, shape=torch.Size(shape), stride=stride)

    state_shape = sequences, q.size(2), q.size(3), v.size(3)
    return whole(o, v.shape, placements(0, 2)), whole(state, state_shape, placements(0, 1))
