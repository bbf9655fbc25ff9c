"""Sinkhorn on the two processes of a mesh, which share the rows of matrices."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from autograd_calls import randn
from torch.distributed.tensor import Shard, distribute_tensor

from helion_sinkhorn import sinkhorn, sinkhorn_potentials
from helion_sinkhorn.ops.sinkhorn import distributed
from helion_sinkhorn.ops.sinkhorn.large import launch
from helion_sinkhorn.ops.sinkhorn.large.marginals import Transport
from helion_sinkhorn.ops.sinkhorn.large.ranks import ranks_of
from helion_sinkhorn.ops.sinkhorn.large.sides import Matrices
from helion_sinkhorn.recipes import sinkhorn_knopp_teacher
from helion_sinkhorn.runtime.groups import reduce_over

SHARED = (0.5, torch.float64), (0.1, torch.float64), (0.5, torch.float32)
"""The share of the rows that the first process has, and the dtype."""
N, M, BATCH = 190, 150, 2
FIRSTS = "rows", "cols"
WITHOUT = {
    "log": {"form": "log", "n_iters": 20},
    "log, one iteration": {"form": "log", "n_iters": 1, "temperature": 0.5},
    "deepseek": {"n_iters": 20},
    "deepseek, one iteration": {"n_iters": 1},
    "deepseek, small eps": {"n_iters": 5, "eps": 1e-9},
}


def logits() -> torch.Tensor:
    """Some columns have mass only in rows of the first process, and one column is small in every row."""
    x = randn(BATCH, N, M, dtype=torch.float64, scale=3)
    x[:, N // 2 :, 3] = -torch.inf
    x[:, :, 5] -= 60
    return x


def upstream() -> torch.Tensor:
    return randn(BATCH, N, M, seed=1, dtype=torch.float64)


def marginals() -> dict[str, torch.Tensor]:
    """Logarithms with the sum 1.7."""
    r, c = (
        randn(BATCH, k, seed=seed, dtype=torch.float64).log_softmax(-1) + 0.53 for k, seed in ((N, 2), (M, 3))
    )
    return {"log_row_marginals": r, "log_col_marginals": c}


def part_of(t: torch.Tensor, share: float, rank: int, axis: int = 1) -> torch.Tensor:
    first = int(share * t.size(axis))
    return t.split([first, t.size(axis) - first], axis)[rank].contiguous()


def differentiated(function: Any, given: dict[str, torch.Tensor], *upstream: torch.Tensor) -> list[Any]:
    """The results, and the gradients of all that is given, on a CPU."""
    leaves = {name: t.clone().requires_grad_() for name, t in given.items()}
    output = function(**leaves)
    results = output if isinstance(output, tuple) else (output,)
    gradients = torch.autograd.grad(results, [*leaves.values()], upstream)
    return [*(t.detach().cpu() for t in results), *(t.cpu() for t in gradients)]


def of_group(mesh: Any) -> dict[Any, list[torch.Tensor]]:
    """P and gradients of this process's rows, computed on its device."""
    results, rank, group, device = {}, mesh.get_rank(), mesh.get_group(), mesh.device_type
    for share, dtype in SHARED:
        x, dy = (part_of(t, share, rank).to(device, dtype) for t in (logits(), upstream()))
        for first in FIRSTS:
            shared = {"first": first, "group": group}
            for name, options in WITHOUT.items():
                results[name, first, share, dtype] = differentiated(
                    lambda logits, o=options, s=shared: sinkhorn(logits, **o, **s), {"logits": x}, dy
                )
            given = {k: t.to(device, dtype) for k, t in marginals().items()}
            given["log_row_marginals"] = part_of(given["log_row_marginals"], share, rank)
            results["marginals", first, share, dtype] = differentiated(
                lambda s=shared, **given: sinkhorn(n_iters=4, form="log", **given, **s),
                {"logits": x, **given}, dy,
            )  # fmt: skip
    return results


def upstream_of_potentials(rank: int) -> list[torch.Tensor]:
    """What the loss of a process says of f, of all rows, and of g."""
    return [randn(BATCH, k, seed=7 + rank * (k == M), dtype=torch.float64) for k in (N, M)]


def of_potentials(mesh: Any) -> list[torch.Tensor]:
    rank, (df, dg) = mesh.get_rank(), upstream_of_potentials(mesh.get_rank())
    given = marginals()
    given["log_row_marginals"] = part_of(given["log_row_marginals"], 0.1, rank)
    return differentiated(
        lambda **given: sinkhorn_potentials(n_iters=3, group=mesh.get_group(), **given),
        {"logits": part_of(logits(), 0.1, rank), **given}, part_of(df, 0.1, rank), dg,
    )  # fmt: skip


def counted(mesh: Any, first: str, form: str, n_iters: int) -> tuple[int, int]:
    """How often the processes add up in the forward and in the backward."""
    real, counts = dist.all_reduce, [0, 0]

    def all_reduce(*given: Any) -> Any:
        counts[-1] += 1
        return real(*given)

    x, dy = (part_of(t, 0.5, mesh.get_rank()).clamp(min=-9) for t in (logits()[:1], upstream()[:1]))
    with mock.patch.object(dist, "all_reduce", all_reduce):
        leaf = x.requires_grad_()
        p = sinkhorn(leaf, n_iters, form=form, first=first, group=mesh.get_group())
        forward, counts[-1] = counts[-1], 0
        torch.autograd.grad(p, leaf, dy)
    return forward, counts[-1]


def of_counts(mesh: Any) -> dict[Any, list[int]]:
    """How much ten more iterations add to both counts."""
    counts = {}
    for first in FIRSTS:
        for form in ("log", "deepseek"):
            few, more = (counted(mesh, first, form, n_iters) for n_iters in (3, 13))
            counts[first, form] = [b - a for a, b in zip(few, more, strict=True)]
    return counts


def of_dtensors(mesh: Any) -> dict[Any, Any]:
    """(P, dX, their placements, the stride of P), whole, by the dimension that is sharded."""
    results = {}
    for form in ("log", "deepseek"):
        for dim in (0, 1, 2):
            x, dy = (distribute_tensor(t, mesh, [Shard(dim)]) for t in (logits(), upstream()))
            p, dx = differentiated(lambda logits, f=form: sinkhorn(logits, 4, form=f), {"logits": x}, dy)
            placements = [t.placements for t in (p, dx)]
            results[form, dim] = p.full_tensor(), dx.full_tensor(), placements, p.stride()
    return results


def of_teacher(mesh: Any) -> torch.Tensor:
    x = part_of(logits()[0], 0.1, mesh.get_rank(), 0)
    return sinkhorn_knopp_teacher(x, 0.1, 3, group=mesh.get_group())


def of_teacher_on_gpus(mesh: Any, share: float) -> tuple[bool, torch.Tensor]:
    """Whether kernels run, and the targets."""
    x, group = part_of(logits()[0], share, mesh.get_rank(), 0).float().cuda(), mesh.get_group()
    shared = distributed.shared(x, group, "cols", "auto", "exact", Transport(0.1))
    return shared.by_kernels, sinkhorn_knopp_teacher(x, 0.1, 3, group=group).cpu()


LAUNCHED = ("rows", "log", 2), ("cols", "log", 2), ("rows", "deepseek", 1), ("cols", "deepseek", 2)


def of_launches(mesh: Any) -> dict[Any, tuple[torch.Tensor, ...]]:
    """(P, f, g) of this process's rows by the kernels, as Helion's reference mode runs them."""
    x, results = part_of(logits().float(), 0.1, mesh.get_rank()), {}
    groups = [mesh.get_group().group_name]
    for first, form, n_iters in LAUNCHED:
        eps, temperature = (0.0, 0.5) if form == "log" else (1e-6, 1.0)
        matrices = Matrices(x, None, None, eps, first, temperature, ranks_of(groups, first, N))
        results[first, form, n_iters] = launch.forward(matrices, n_iters, False, torch.float32)[:3]
    return results


def of_refusals(mesh: Any) -> dict[str, str]:
    """The error that is raised, by the name of the defect."""
    group, x = mesh.get_group(), torch.zeros(2, 3, 4)
    cases = {
        "no rows": {"logits": x[:, : 3 * mesh.get_rank()]},
        "kernels": {"logits": x, "implementation": "helion"},
        "implicit": {"logits": x, "backward": "implicit"},
        "lengths": {"logits": x, "form": "log", "row_lengths": torch.tensor([1, 2])},
        "rows alone": {"logits": x, "form": "log", "log_row_marginals": torch.zeros(3)},
        "no group": {"logits": x, "group": "the first"},
    }
    errors = {}
    for name, options in cases.items():
        try:
            sinkhorn(**{"group": group, **options})
            errors[name] = ""
        except (TypeError, ValueError, NotImplementedError) as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


def of_sums_apart(mesh: Any) -> torch.Tensor:
    """Sums that do not lie together in memory, as sums by halves of several matrices, over the processes."""
    whole = torch.full((3, 4), mesh.get_rank() + 1.0)
    reduce_over(whole[:, :1], [mesh.get_group().group_name], "SUM")
    return whole
