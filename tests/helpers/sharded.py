"""An operator of tokens on DTensors, on two processes, against the same call in one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
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


def work(rank: int, folder: str, distributed) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (WORLD,))
    torch.save({name: distributed(mesh, CASES[name]) for name in CASES}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def ranks_of(distributed, tmp_path_factory) -> list[dict]:
    """What each process found, by case; distributed: (mesh, placement) -> a dict of `sharded_results`."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    folder = tmp_path_factory.mktemp("gloo")
    mp.spawn(work, (str(folder), distributed), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]
