"""The inputs of `--op sinkhorn_balance`, its backends, and the bounds of their results."""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn import reference, sinkhorn_balance
from helion_sinkhorn.lab.balance.budget import error_budget, exact
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance.options import BalanceOptions
from tritonbench_ops import flags
from tritonbench_ops.bounds import largest_share
from tritonbench_ops.judged import Backends, Judged, of_pytorch

OPTIONS = BalanceOptions()
"""Every input is balanced as DeepSeek-V4.1 does."""

parse = flags.parser("sinkhorn_balance").parse_args
cases = functools.partial(flags.bench, "sinkhorn_balance", BalanceWorkload, settings=OPTIONS)
LEAVES = 1
x_value = "{0.batch}x{0.n}".format


def inputs(case: BalanceWorkload, device: torch.device | str) -> tuple[torch.Tensor]:
    """(update (1, m, n),), drawn on the device: large ones take minutes to draw bit for bit the same."""
    (rows,) = case.make_inputs(device=device, there=True)
    return (rows.view(1, -1, case.n),)


def bytes_moved(case: BalanceWorkload, mode: str = "fwd") -> int:
    """Bytes of a read for the norms and for each row step, and of a write."""
    row_steps = (OPTIONS.steps + 1) // 2
    return (2 + row_steps) * case.batch * case.n * case.dtype.itemsize


def operations(case: BalanceWorkload) -> float:
    """Floating-point operations: two products with scales in each step, a square and an addition."""
    return 4.0 * OPTIONS.steps * case.batch * case.n


def in_float32(update: torch.Tensor) -> torch.Tensor:
    """The specification in float32, rounded once."""
    return reference.sinkhorn_balance(update.float()).to(update.dtype)


BACKENDS: Backends = {**of_pytorch(in_float32), "helion_sinkhorn_balance": lambda: sinkhorn_balance}


class Operator(Judged):
    """An update balanced by the norms of its rows and columns; an input is (update, ())."""

    label = "MxN"

    def __init__(self, tb_args, extra_args=None):
        super().__init__(tb_args, extra_args)
        self.requires_grad = False

    def upstreams(self):
        return [self.example_inputs[0]]

    def get_bwd_fn(self, forward):
        raise NotImplementedError("sinkhorn_balance has no gradient; use --mode fwd or fwd_no_grad")


def share_of_budget(
    case: BalanceWorkload, given: tuple[torch.Tensor], out: torch.Tensor, gradients: None = None
) -> float:
    """The largest error of the balanced update."""
    (update,) = given
    budget = error_budget(update, OPTIONS, update.dtype)
    return largest_share(out, exact(update, OPTIONS), budget)
