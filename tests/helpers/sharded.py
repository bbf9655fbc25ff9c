"""An operator of tokens on DTensors, on two processes, against the same call in one."""

from __future__ import annotations

import torch

CASES = {
    "tokens": "Shard(0)",
    "second token dimension": "Shard(1)",
    "replicated": "Replicate()",
    "columns": "Shard(2)",
}
"""Placements of what has two token dimensions; 5 tokens do not divide by two."""
COMMUNICATION = {"tokens": False, "second token dimension": False, "replicated": False, "columns": True}


def sharded_results(mesh, placement, f, tensors, upstream, shared) -> dict:
    """The results and gradients of f on distributed tensors against those of one process.

    Args:
        f: of the tensors and, behind them, those of `shared`, which belong to no token and are replicated.
    """
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    place = eval(placement, {"Shard": Shard, "Replicate": Replicate})
    leaves = [t.clone().requires_grad_() for t in (*tensors, *shared)]
    places = [place] * len(tensors) + [Replicate()] * len(shared)
    spread = [distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in zip(leaves, places, strict=True)]
    expected = f(*leaves)
    truth = expected.detach(), *torch.autograd.grad(expected, leaves, upstream)
    # the upstream gradient has no third token dimension to shard either
    given = distribute_tensor(upstream, mesh, [place if placement != "Shard(2)" else Replicate()])
    with CommDebugMode() as forward:
        found = f(*spread)
    with CommDebugMode() as backward:
        gradients = torch.autograd.grad(found, spread, given)
    every = found, *gradients
    return {
        "given": str(place),
        "placements": [str(t.placements[0]) for t in every],
        "communication": (forward.get_total_counts(), backward.get_total_counts()),
        "equal": [torch.equal(a.full_tensor(), b) for a, b in zip(every, truth, strict=True)],
        "apart": [
            float((a.full_tensor() - b).abs().max() / b.abs().max())
            for a, b in zip(every, truth, strict=True)
        ],
    }
