"""Sums and maxima over the processes of torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def reduce_over(t: torch.Tensor, groups: Sequence[str], how: str = "SUM") -> torch.Tensor:
    """t, reduced over all ranks of these groups, in place, to their "SUM" or "MAX"."""
    import torch.distributed as dist

    # NCCL refuses other tensors
    together = t.contiguous()
    for name in groups:
        group = dist.distributed_c10d._resolve_process_group(name)
        dist.all_reduce(together, getattr(dist.ReduceOp, how), group)
    return t if together is t else t.copy_(together)
