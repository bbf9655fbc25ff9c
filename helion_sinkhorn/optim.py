"""Optimizers whose updates are balanced: SinkhornBalanced and SinkGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from helion_sinkhorn.ops.balance import torch_op
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.ops.balance.space import LARGEST_N
from helion_sinkhorn.runtime.checks import check_finite, check_number, check_tensor, implementation_for
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.torch_op import may_be_distributed

MOST_ENTRIES = 1 << 26
"""The most entries of tensors of one shape that are balanced at a time: they are copied for that."""
BUFFER = "momentum_buffer"


class _Balanced(torch.optim.Optimizer):
    """An optimizer that steps along the balanced gradient, or along its balanced average."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except Exception:
            self.param_groups.pop()
            raise

    def _check(self, group: dict[str, Any]) -> None:
        _check_lr(group["lr"])
        _check_at_least_zero("lr_correction", group["lr_correction"])
        accepted = "a float from 0 to below 1"
        check_number("momentum", group["momentum"], accepted)
        if not 0.0 <= group["momentum"] < 1.0:
            raise ValueError(f"momentum is {group['momentum']}; pass {accepted}")
        BalanceOptions.checked(**_options(group), first="rows")
        for p in group["params"]:
            check_tensor("a parameter", p)
            if p.dim() < 2:
                raise ValueError(
                    f"a parameter has shape {tuple(p.shape)}; {type(self).__name__} takes matrices, "
                    "(..., m, n): give vectors to another optimizer, such as AdamW"
                )

    def __setstate__(self, state: dict[str, Any]) -> None:
        # an unpickled optimizer brings its own defaults
        needed = state.get("defaults", self.__dict__.get("defaults", {})).keys() - {"differentiable"}
        for group in state["param_groups"]:
            if missing := sorted(needed - group.keys()):
                raise ValueError(
                    f"the state dict has a group without {', '.join(missing)}; load one that "
                    f"{type(self).__name__} saved"
                )
        super().__setstate__(state)

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        """One step; returns what the closure does, which computes the loss and its gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # all are found first, so that a refused gradient leaves every parameter as it was
        alike = [(some, group) for group in self.param_groups for some in _alike(group)]
        for params, group in alike:
            self._update(params, group)
        return loss

    def _update(self, params: list[torch.Tensor], group: dict[str, Any]) -> None:
        """A step of parameters of one shape; the rows of a DTensor may be sharded."""
        gradients = [_gradient(p) for p in params]
        averages = [self._buffer(p) for p in params] if group["momentum"] > 0 else []
        rows, columns = params[0].shape[-2:]
        # rows, or columns, of norm 1 then have a root mean square of 1
        factor = math.sqrt(columns if group["scale"] == "row_rms" else rows)
        size = _size(group["lr"], group["lr_correction"] * factor, params[0])
        groups: list[str] = []
        if may_be_distributed(*params, *gradients):
            from helion_sinkhorn.ops.balance.distributed import local

            parts = [local(g, p, []) for g, p in zip(gradients, params, strict=True)]
            gradients, params, (groups, *_) = ([*of] for of in zip(*parts, strict=True))
            averages = [local(a, None, [])[0] for a in averages]
        within = 2 <= columns <= LARGEST_N
        how = implementation_for("auto", "a parameter", params[0], None if within else str)
        average = group["momentum"], group.get("nesterov", False)
        settings = group["steps"], group["zero_row_threshold"], group["eps"]
        torch_op.call_step(params, gradients, averages, size, *average, *settings, groups, how)

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
    which does not change rows whose gradients are zero or small.  There is no weight decay.

    Args:
        params: parameters (..., m, n), or groups of them, in any dtype and layout; DTensors with whole rows
            are accepted too.
        lr: the learning rate; a tensor of one entry is read on the device, so that a step in a CUDA graph
            takes its new values.
        momentum: from 0 to below 1; 0 keeps no state.
        nesterov: whether the update looks one step ahead.
        lr_correction: lr is multiplied by it; with 0.18 a step is about as large as AdamW's.
        steps: as in `helion_sinkhorn.sinkhorn_balance`.
        zero_row_threshold: as in `helion_sinkhorn.sinkhorn_balance`.
        eps: as in `helion_sinkhorn.sinkhorn_balance`.
        foreach: whether tensors of one shape are balanced together, with one launch for each pass.

    Numerical policy: the average and u have the dtype of the parameter, to which a gradient of another dtype
        is converted.  All arithmetic is in float32 (float64 for float64).  u is computed from the average
        before that is rounded, and the average, u and w are each rounded once.  Masked rows keep their
        weights.

    Raises:
        TypeError: a parameter is no floating-point tensor, or an option has another type.
        ValueError: a parameter is a vector, an option is out of range, a gradient is sparse, or a state dict
            belongs to another optimizer.  Groups, parameters and state are then not changed.

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
    """Balanced gradient steps without any state, for every matrix of a model.

        w <- w - lr u,    u = the gradient, its rows and columns in turn divided by their root mean squares

    Args:
        params: parameters (..., m, n), or groups of them, as for SinkhornBalanced.
        lr: the learning rate, as for SinkhornBalanced.
        iterations: how often rows and columns are normalised.
        eps: added to each norm.
        foreach: whether tensors of one shape are balanced together.

    Numerical policy: as for SinkhornBalanced.

    Raises:
        TypeError, ValueError: as for SinkhornBalanced.

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


def _check_lr(lr: object) -> None:
    if isinstance(lr, torch.Tensor):
        if lr.numel() != 1:
            raise ValueError(f"lr has shape {tuple(lr.shape)}; pass a float or a tensor of one entry")
        # read once, here: no step waits for it
        lr = lr.item()
    _check_at_least_zero("lr", lr)


def _check_at_least_zero(name: str, value: object) -> None:
    accepted = "a finite float of at least 0"
    check_finite(name, value, accepted)
    if value < 0:
        raise ValueError(f"{name} is {value}; pass {accepted}")


def _alike(group: dict[str, Any]) -> Iterator[list[torch.Tensor]]:
    """Parameters that one launch may balance: with gradients, plain, of one shape, dtype and device."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for k, p in enumerate(group["params"]):
        # without a column there is nothing to move
        if p.grad is None or p.size(-1) == 0:
            continue
        if p.grad.is_sparse:
            raise ValueError("a gradient is sparse; use torch.nn.Embedding(sparse=False)")
        plain = group["foreach"] and type(p.grad) is torch.Tensor
        key = (p.shape, p.dtype, p.device) if plain else k
        groups.setdefault(key, []).append(p)
    for alike in groups.values():
        count = max(1, MOST_ENTRIES // max(1, alike[0].numel()))
        for first in range(0, len(alike), count):
            yield alike[first : first + count]


def _gradient(p: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter, in its dtype, and placed as it is."""
    assert p.grad is not None
    placements = getattr(p, "placements", None)
    if placements is not None and getattr(p.grad, "placements", placements) != placements:
        return p.grad.redistribute(p.device_mesh, placements).to(p.dtype)
    return p.grad.to(p.dtype)


def _size(lr: float | torch.Tensor, factor: float, p: torch.Tensor) -> torch.Tensor:
    """lr times the factor, (1,), where a parameter is.

    Read on the device: a captured step takes the learning rate that a tensor has then.
    """
    kind = COMPUTING[p.dtype]
    if isinstance(lr, torch.Tensor) and lr.device == p.device:
        return (lr.detach().view(1) * factor).to(kind)
    return torch.full((1,), float(lr) * factor, dtype=kind, device=p.device)
