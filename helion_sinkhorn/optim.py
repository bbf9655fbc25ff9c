"""Optimizers whose updates are balanced: SinkhornBalanced and SinkGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from helion_sinkhorn.ops.balance.api import sinkhorn_balance
from helion_sinkhorn.ops.balance.options import BalanceOptions

MOST_ENTRIES = 1 << 26
"""The most entries of tensors of one shape that are balanced at a time, which takes a copy of them."""
BUFFER = "momentum_buffer"


class _Balanced(torch.optim.Optimizer):
    """A step along the balanced gradient, or its average."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _check(group["lr"], group["momentum"])
        BalanceOptions.checked(**_options(group), first="rows")
        for p in group["params"]:
            if p.dim() < 2:
                raise ValueError(
                    f"a parameter has shape {tuple(p.shape)}; {type(self).__name__} takes matrices, "
                    "(..., m, n): give vectors to another optimizer, such as AdamW"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """One step; returns what the closure does, which computes the loss and its gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for params in _alike(group["params"], group["foreach"]):
                self._update(params, group)
        return loss

    def _update(self, params: list[torch.Tensor], group: dict[str, Any]) -> None:
        """A step of parameters of one shape."""
        gradients: list[torch.Tensor] = []
        for p in params:
            assert p.grad is not None
            gradients.append(p.grad)
        together, updates = _copies(gradients)
        momentum = group["momentum"]
        if momentum > 0:
            buffers = [self._buffer(p) for p in params]
            torch._foreach_lerp_(buffers, gradients, 1.0 - momentum)
            if group["nesterov"]:
                torch._foreach_lerp_(updates, buffers, momentum)
            else:
                torch._foreach_copy_(updates, buffers)
        sinkhorn_balance(together, out=together, **_options(group))
        size = group["lr"] * group["lr_correction"]
        if group["scale"] == "none":
            # columns of norm 1, to a root mean square of 1
            size = size * math.sqrt(params[0].size(-2))
        if isinstance(size, torch.Tensor):
            # read on the device: a captured step takes the values that it has then
            torch._foreach_mul_(updates, size)
            torch._foreach_sub_(params, updates)
        else:
            torch._foreach_add_(params, updates, alpha=-size)

    def _buffer(self, p: torch.Tensor) -> torch.Tensor:
        state = self.state[p]
        if BUFFER not in state:
            state[BUFFER] = torch.zeros_like(p)
        return state[BUFFER]


class SinkhornBalanced(_Balanced):
    """Momentum whose updates have balanced rows and columns: for embeddings, heads and lookup tables.

    With the gradient g of a matrix w, rows are tokens,
        a <- momentum a + (1 - momentum) g
        u  = momentum a + (1 - momentum) g        (a itself without Nesterov)
        w <- w - lr lr_correction sinkhorn_balance(u)
    which leaves rows alone whose gradients are zero or small; there is no decay of weights.

    Args:
        params: parameters of (..., m, n), or groups of them; any dtype and layout, DTensors with whole rows
            too.
        lr: the step; a tensor of one entry is read on the device, so that a step in a CUDA graph takes its
            new values.
        momentum: from 0 to below 1; 0 keeps no state.
        nesterov: whether the update looks one step ahead.
        lr_correction: what lr is multiplied by: with 0.18 it is about as large as that of AdamW.
        steps, zero_row_threshold, eps: of `helion_sinkhorn.sinkhorn_balance`.
        foreach: whether tensors of one shape are balanced together, in one launch a pass.

    Numerical policy: the average has the dtype of its parameter; balancing is in float32 and rounds once.

    Raises:
        ValueError: a parameter is a vector, an option is out of range.

    Source: DeepSeek-V4.1, section 2.5, algorithm 1.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0.95,
        *,
        nesterov: bool = True,
        lr_correction: float = 0.18,
        steps: int = 11,
        zero_row_threshold: float = 1e-3,
        eps: float = 1e-20,
        foreach: bool = True,
    ) -> None:
        options = {"steps": steps, "zero_row_threshold": zero_row_threshold, "eps": eps, "scale": "row_rms"}
        average = {"momentum": momentum, "nesterov": nesterov}
        super().__init__(
            params, {"lr": lr, **average, "lr_correction": lr_correction, **options, "foreach": foreach}
        )


class SinkGD(_Balanced):
    """Gradient steps without any state, balanced: for every matrix of a model.

        w <- w - lr u,    u = the gradient, its rows and columns in turn divided by their root mean squares

    Args:
        params: parameters of (..., m, n), or groups of them, as SinkhornBalanced takes.
        lr: the step, as SinkhornBalanced takes.
        iterations: how often rows and columns are normalised.
        eps: added to each norm.
        foreach: whether tensors of one shape are balanced together.

    Numerical policy: as SinkhornBalanced.

    Raises:
        ValueError: a parameter is a vector, an option is out of range.

    Source: Scetbon et al., Gradient Multi-Normalization (arXiv 2502.06742).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        *,
        iterations: int = 5,
        eps: float = 1e-20,
        foreach: bool = True,
    ) -> None:
        options = {"steps": 2 * iterations, "zero_row_threshold": 0.0, "eps": eps, "scale": "none"}
        super().__init__(
            params, {"lr": lr, "momentum": 0.0, "lr_correction": 1.0, **options, "foreach": foreach}
        )


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {k: group[k] for k in ("steps", "zero_row_threshold", "eps", "scale")}


def _check(lr: float | torch.Tensor, momentum: float) -> None:
    if isinstance(lr, torch.Tensor):
        if lr.numel() != 1:
            raise ValueError(f"lr has shape {tuple(lr.shape)}; pass a float or a tensor of one entry")
    elif not 0.0 <= lr < math.inf:
        raise ValueError(f"lr is {lr}; pass a finite float of at least 0")
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum is {momentum}; pass a float from 0 to below 1")


def _alike(params: list[torch.Tensor], together: bool) -> Iterator[list[torch.Tensor]]:
    """Those with a gradient that one launch may balance: plain tensors of one shape, dtype and device."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for k, p in enumerate(params):
        if p.grad is None:
            continue
        if p.grad.is_sparse:
            raise ValueError("a gradient is sparse; use torch.nn.Embedding(sparse=False)")
        plain = together and type(p.grad) is torch.Tensor
        key = (p.shape, p.dtype, p.grad.dtype, p.device) if plain else k
        groups.setdefault(key, []).append(p)
    for alike in groups.values():
        count = max(1, MOST_ENTRIES // max(1, alike[0].numel()))
        for first in range(0, len(alike), count):
            yield alike[first : first + count]


def _copies(gradients: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(one tensor, its parts): copies of tensors of one shape, which one call takes."""
    if len(gradients) == 1:
        copy = gradients[0].clone(memory_format=torch.contiguous_format)
        return copy, [copy]
    together = torch.stack(gradients)
    return together, list(together.unbind(0))
