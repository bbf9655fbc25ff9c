"""The kernels of large matrices, and launches of them on matrices whose lead sides are rows."""

from __future__ import annotations

import functools
from typing import Any

import torch

from helion_sinkhorn.ops.sinkhorn.large.space import (
    LargeCall,
    columns_default,
    columns_space,
    of_logs_default,
    once,
    rows_default,
    rows_space,
    whole_default,
    whole_space,
    write_default,
)
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Choices, Chosen, chosen_for, launch

ROOM = "helion_sinkhorn.ops.sinkhorn.large"


@functools.lru_cache(maxsize=4096)
def call_for(n: int, m: int, dtype: torch.dtype) -> LargeCall:
    """What configs are chosen for; n lines are normalised first."""
    return LargeCall(str(dtype)[6:], n, m)


def rows_facts(chosen: Chosen, call: LargeCall, *_: Any) -> tuple[Any, ...]:
    """What the bodies of rows take after their tensors."""
    return call.n, call.m, rows_of(chosen.choice)


def rows_of(choice: Choice) -> int:
    """Rows of a program."""
    return dict(choice.variant)["rows"]


def columns_facts(chosen: Chosen, call: LargeCall, count: int, of: Any) -> tuple[Any, ...]:
    """The same of the bodies that add parts."""
    return count, call.m, of


def sizes(chosen: Chosen, call: LargeCall, *values: Any) -> tuple[Any, ...]:
    """The same of the others."""
    return call.n, call.m, *values


KERNELS = {
    name: Kernel(name, f"{ROOM}.{body}:{name.removesuffix('_of_logs')}", LargeCall, default, space, facts)
    for name, body, default, space, facts in (
        ("sinkhorn_large_first", "kernels", rows_default, once(rows_default), rows_facts),
        ("sinkhorn_large_step", "kernels", rows_default, rows_space, rows_facts),
        ("sinkhorn_large_columns", "kernels", columns_default, columns_space, columns_facts),
        (
            "sinkhorn_large_columns_of_logs", "kernels", of_logs_default, once(of_logs_default),
            columns_facts,
        ),
        ("sinkhorn_large_write", "kernels", write_default, once(write_default), sizes),
        ("sinkhorn_large_sums", "adjoint", rows_default, once(rows_default), rows_facts),
        ("sinkhorn_large_turn", "adjoint", rows_default, once(rows_default), rows_facts),
        ("sinkhorn_large_back", "adjoint", rows_default, rows_space, rows_facts),
        ("sinkhorn_large_gather", "adjoint", columns_default, columns_space, columns_facts),
        ("sinkhorn_large_gradient", "adjoint", whole_default, whole_space, sizes),
    )
}  # fmt: skip


class Calls:
    """Launches on matrices x (B, n, m): the choice of each kernel, and room for the parts of sums."""

    def __init__(self, x: torch.Tensor, choices: Choices, call: LargeCall | None = None) -> None:
        self.x = x
        self.batch, n, m = x.shape
        self.call = call or call_for(n, m, x.dtype)
        self.choices = choices
        self.parts: dict[int, torch.Tensor] = {}

    def empty(self, *shape: int) -> torch.Tensor:
        return self.x.new_empty(shape, dtype=torch.float32)

    def launch(self, name: str, *tensors: torch.Tensor, values: tuple[Any, ...] = ()) -> None:
        launch(KERNELS[name], self.call, tensors, *values, batch=self.batch, choice=self.choices.get(name))

    def rows(self, name: str, *tensors: torch.Tensor) -> torch.Tensor:
        """The parts (B, K, m) that a kernel of rows leaves."""
        kernel = KERNELS[name]
        choice = self.choices.get(name) or chosen_for(kernel, self.call, self.batch, self.x)
        count = -(-self.call.n // rows_of(choice))
        if count not in self.parts:
            self.parts[count] = self.empty(self.batch, count, self.call.m)
        part = self.parts[count]
        launch(kernel, self.call, (*tensors, part), batch=self.batch, choice=choice)
        return part

    def columns(
        self, part: torch.Tensor, g: torch.Tensor, log_c: torch.Tensor, out: torch.Tensor, of_logs: bool
    ) -> None:
        """g of the columns from parts of their sums, or from the logarithms of these."""
        name = "sinkhorn_large_columns_of_logs" if of_logs else "sinkhorn_large_columns"
        self.launch(name, part, g, log_c, out, values=(part.size(1), of_logs))

    def gather(
        self, part: torch.Tensor, own: torch.Tensor, log_c: torch.Tensor, out: torch.Tensor, sign: float
    ) -> None:
        """out = (sign times the sum of the parts + own) / c."""
        self.launch("sinkhorn_large_gather", part, own, log_c, out, values=(part.size(1), sign))
