"""sinkhorn_balance on the two processes of a mesh, which share the rows of matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from helion_sinkhorn import sinkhorn_balance
from helion_sinkhorn.lab.balance.workloads import ROWS, BalanceWorkload
from helion_sinkhorn.optim import SinkhornBalanced

WORKLOADS = {w.name: w for w in ROWS if w.name in ("balance_model", "balance_tall", "balance_columns_first")}
MODEL = WORKLOADS["balance_model"]
SHARES = 0.5, 0.1, 0.0
"""The share of the rows that the first process has."""
REFUSED = {"columns": Shard(2), "partial": Partial(), "replicated": Replicate()}


def part_of(workload: BalanceWorkload, share: float, mesh: Any) -> torch.Tensor:
    """This process's rows."""
    (update,) = workload.make_inputs()
    first = int(share * workload.tokens)
    parts = update.split([first, workload.tokens - first], 1)
    return parts[mesh.get_rank()].contiguous().to(mesh.device_type)


def of_group(mesh: Any) -> dict[tuple[str, float], torch.Tensor]:
    """By workload and share; every second one in place."""
    balanced, group = {}, mesh.get_group()
    for k, (name, share) in enumerate((name, share) for name in WORKLOADS for share in SHARES):
        part = part_of(WORKLOADS[name], share, mesh)
        out = part if k % 2 else None
        balanced[name, share] = sinkhorn_balance(part, group=group, out=out, **WORKLOADS[name].options).cpu()
    return balanced


def few() -> torch.Tensor:
    """Fewer rows than there are processes, so that one has none."""
    return MODEL.make_inputs()[0][0, :1]


def of_few_rows(mesh: Any) -> dict[str, torch.Tensor]:
    """Each process's part of few rows, or all of them, after each way to balance them."""
    update, group, balanced = few().to(mesh.device_type), mesh.get_group(), {}
    part = update[len(update) * mesh.get_rank() :]
    balanced["part"] = sinkhorn_balance(part, group=group)
    balanced["out"] = sinkhorn_balance(part, group=group, out=part.clone())
    balanced["DTensor"] = sinkhorn_balance(distribute_tensor(update, mesh, [Shard(0)])).full_tensor()
    parameter = torch.nn.Parameter(distribute_tensor(torch.zeros_like(update), mesh, [Shard(0)]))
    parameter.grad = distribute_tensor(update, mesh, [Shard(0)])
    SinkhornBalanced([parameter], torch.tensor([1.0]), lr_correction=1.0).step()
    balanced["step"] = -parameter.detach().full_tensor()
    return {name: t.cpu() for name, t in balanced.items()}


def of_optimizer(mesh: Any) -> torch.Tensor:
    """A weight after two steps, whose rows two ranks share unevenly."""
    w, gradients = optimized()
    parameter = torch.nn.Parameter(distribute_tensor(w.to(mesh.device_type), mesh, [Shard(0)]))
    optimizer = SinkhornBalanced([parameter], 0.1)
    for g in gradients:
        parameter.grad = distribute_tensor(g.to(mesh.device_type), mesh, [Shard(0)])
        optimizer.step()
    return parameter.detach().full_tensor().cpu()


def optimized() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A weight of 99 rows and its gradients in two steps."""
    w, *gradients = MODEL.make_inputs()[0]
    return w, gradients


def optimized_alone() -> torch.Tensor:
    """The weight that one process has after these steps."""
    w, gradients = optimized()
    optimizer = SinkhornBalanced([w.requires_grad_()], 0.1)
    for g in gradients:
        w.grad = g
        optimizer.step()
    return w.detach()


def model() -> torch.nn.Linear:
    """A table whose 33 rows two ranks share unevenly."""
    torch.manual_seed(0)
    return torch.nn.Linear(20, 33, bias=False)


def trained(of: torch.nn.Module, inputs: torch.Tensor) -> None:
    """Two steps; the loss is a mean over the batch."""
    optimizer = SinkhornBalanced(of.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        of(inputs).logsumexp(-1).mean().backward()
        optimizer.step()


def batch() -> torch.Tensor:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(1))


def fsdp_alone() -> torch.Tensor:
    trained(of := model(), batch())
    return of.weight.detach()


def of_fsdp(mesh: Any) -> torch.Tensor:
    """The weight after two steps under FSDP2, each process with a half of the batch."""
    from torch.distributed.fsdp import fully_shard

    of = fully_shard(model().to(mesh.device_type), mesh=mesh)
    trained(of, batch().chunk(2)[mesh.get_rank()].to(mesh.device_type))
    return of.weight.detach().full_tensor().cpu()


def of_dtensors(mesh: Any) -> dict[Any, Any]:
    """Whole results, with their placements, by the dimension that is sharded and whether compiled; and what
    is raised by the placements that are refused."""
    (update,) = MODEL.make_inputs()
    outcomes: dict[Any, Any] = {}
    for dim in (1, 0):
        given = distribute_tensor(update.to(mesh.device_type), mesh, [Shard(dim)])
        for compiled in (False, True):
            torch._dynamo.reset()
            balance = torch.compile(sinkhorn_balance, backend="aot_eager") if compiled else sinkhorn_balance
            u = balance(given)
            outcomes[dim, compiled] = u.full_tensor().cpu(), u.placements, u.stride()
        out = torch.zeros_like(given)
        assert sinkhorn_balance(given, out=out) is out
        outcomes[dim, "out"] = out.full_tensor().cpu(), out.placements, out.stride()
    for name, placement in REFUSED.items():
        # no collective: parts to be added are made of what is here
        x = DTensor.from_local(update.to(mesh.device_type), mesh, [placement], run_check=False)
        try:
            sinkhorn_balance(x)
            outcomes[name] = ""
        except ValueError as error:
            outcomes[name] = str(error)
    return outcomes
