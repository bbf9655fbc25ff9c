"""From tensors to launches of sinkhorn_balance: its passes by kernels, shares, the choice of configs."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.balance import space
from helion_sinkhorn.ops.balance.space import FEWEST_ROWS, BalanceCall
from helion_sinkhorn.runtime.kernel import Kernel
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, Chosen, chosen_for, device_of, launch

NORMS, STEP, COLUMNS, FINISH, MOMENTUM, UPDATE = (
    f"balance_{name}" for name in ("norms", "step", "columns", "finish", "momentum", "update")
)
BODIES = "helion_sinkhorn.ops.balance.kernels"
USUAL_SHARES = 256
Order = tuple[torch.Tensor, torch.Tensor]
"""(rows (B m,), with those that are not masked first in each matrix; count (B,), their number)."""


def given(chosen: Chosen, call: BalanceCall, *values: Any) -> tuple[Any, ...]:
    """What a body takes after its tensors: the values of the launch, and whether it is interpreted."""
    return *values, chosen.interpret


KERNELS = {
    name: Kernel(
        name, f"{BODIES}:{name}", BalanceCall, *configs, given,
        traits=frozenset({"norms"}), size=size, numbers=numbers,
    )
    # configs: the default and the space
    for name, numbers, size, *configs in (
        (NORMS, 0, None, space.rows_default, space.rows_space),
        (STEP, 2, None, space.step_default, space.step_space),
        (COLUMNS, 1, lambda call: USUAL_SHARES, space.columns_default, space.columns_space),
        (FINISH, 1, None, space.rows_default, space.rows_space),
        (MOMENTUM, 2, None, space.rows_default, space.rows_space),
        (UPDATE, 1, None, space.rows_default, space.rows_space),
    )
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def call_for(columns: int, dtype: torch.dtype) -> BalanceCall:
    """What the configs of a call are chosen for."""
    return BalanceCall(str(dtype)[6:], columns)


class Launches(NamedTuple):
    """The passes of `eager` for contiguous x (B, m, n) at a 16-byte boundary, with m at least 2."""

    choices: Choices = NO_CHOICES

    def norms(self, x: torch.Tensor) -> torch.Tensor:
        norms_of_rows = x.new_empty(x.shape[:2], dtype=torch.float32)
        self._launch(NORMS, x, (x.flatten(0, 1), norms_of_rows.view(-1)))
        return norms_of_rows

    def order(self, live: torch.Tensor) -> Order:
        """The order of rows, with masked rows after the others; nothing waits for the device."""
        m = live.size(1)
        rows, passed = torch.arange(m, device=live.device), live.cumsum(1)
        count = passed[:, -1:]
        places = torch.where(live, passed - 1, count + rows - passed)
        offset = m * torch.arange(len(live), device=live.device).unsqueeze(1)
        order = torch.empty_like(places).scatter_(1, places, rows + offset)
        return order.view(-1), count.reshape(-1)

    def squares(
        self, x: torch.Tensor, c: torch.Tensor, d: torch.Tensor, order: Order | None,
        eps: float, row_step: bool, backwards: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        batch, m, n = x.shape
        # rows that no program takes stay 0
        stepped = None if not row_step else torch.zeros_like(d) if order else torch.empty_like(d)
        sums = x.new_empty((batch, self._shares(x), n), dtype=torch.float32)
        rows, count = order or (None, None)
        after = None if stepped is None else stepped.view(-1)
        tensors = x.flatten(0, 1), c, d.view(-1), rows, count, after, sums.flatten(0, 1)
        self._launch(STEP, x, tensors, m, sums.size(1), eps, row_step, backwards)
        return sums, d if stepped is None else stepped

    def columns(self, sums: torch.Tensor, c: torch.Tensor, eps: float) -> None:
        call, choice = call_for(c.size(1), torch.float32), self.choices.get(COLUMNS)
        tensors, shares = (sums.flatten(0, 1), c), sums.size(1)
        launch(KERNELS[COLUMNS], call, tensors, shares, eps, batch=shares, choice=choice)

    def finish(
        self, x: torch.Tensor, c: torch.Tensor, d: torch.Tensor, out: torch.Tensor,
        eps: float, row_step: bool, factor: float,
    ) -> None:  # fmt: skip
        tensors = x.flatten(0, 1), c, d.view(-1), out.flatten(0, 1)
        self._launch(FINISH, x, tensors, x.size(1), eps, row_step, factor)

    def momentum(
        self, x: torch.Tensor, average: torch.Tensor, ahead: torch.Tensor | None, momentum: float
    ) -> torch.Tensor:
        norms = x.new_empty(x.shape[:2], dtype=torch.float32)
        after = None if ahead is None else ahead.flatten(0, 1)
        tensors = x.flatten(0, 1), average.flatten(0, 1), after, norms.view(-1)
        self._launch(MOMENTUM, x, tensors, momentum, 1.0 - momentum)
        return norms

    def update(
        self, x: torch.Tensor, c: torch.Tensor, d: torch.Tensor, w: torch.Tensor,
        size: torch.Tensor, eps: float, row_step: bool,
    ) -> None:  # fmt: skip
        tensors = x.flatten(0, 1), c, d.view(-1), w.flatten(0, 1), size
        self._launch(UPDATE, x, tensors, x.size(1), eps, row_step)

    def _launch(self, kernel: str, x: torch.Tensor, tensors: tuple[torch.Tensor | None, ...], *values: Any):
        call, rows = call_for(x.size(2), x.dtype), len(x) * x.size(1)
        launch(KERNELS[kernel], call, tensors, *values, batch=rows, choice=self.choices.get(kernel))

    def _shares(self, x: torch.Tensor) -> int:
        """Shares of the rows of a matrix: as many as programs fill the device, for any batch."""
        batch, m, n = x.shape
        kernel, call = KERNELS[STEP], call_for(n, x.dtype)
        choice = self.choices.get(STEP) or chosen_for(kernel, call, batch * m, x)
        programs = dict(choice.variant)["programs"] * device_of(x).compute_units
        # at least 2, since Helion would make another program for 1
        return max(2, min(programs, m // FEWEST_ROWS))


LAUNCHES = Launches()
