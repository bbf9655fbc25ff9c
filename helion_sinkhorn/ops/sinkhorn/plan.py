"""plan(...): what computes a call of `sinkhorn`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.ops.sinkhorn import torch_op
from helion_sinkhorn.ops.sinkhorn.api import (
    DEFAULT_EPS,
    KERNEL_LARGEST,
    Options,
    implicit_options,
    served_by,
)
from helion_sinkhorn.ops.sinkhorn.implicit import torch_op as implicit_op
from helion_sinkhorn.ops.sinkhorn.implicit.systems import Implicit
from helion_sinkhorn.ops.sinkhorn.large import torch_op as large_op
from helion_sinkhorn.runtime.checks import as_int


@dataclass(frozen=True)
class Plan:
    """What a call would use: the implementation, the device and, for kernels, their configs."""

    implementation: str
    device: str
    forward: str
    backward: str

    def __str__(self) -> str:
        return (
            f"implementation: {self.implementation} on {self.device}\n"
            f"forward:  {self.forward}\nbackward: {self.backward}"
        )


def plan(
    logits: torch.Tensor,
    n_iters: int = 20,
    *,
    eps: float = DEFAULT_EPS,
    form: str = "deepseek",
    first: str = "rows",
    backward: str | Implicit = "exact",
    implementation: str = "auto",
    out_dtype: torch.dtype | None = None,
) -> Plan:
    """Which implementation and configs `sinkhorn` with these arguments takes, without running it.

    Arguments and errors are as in `sinkhorn`.
    """
    n_iters = as_int(n_iters)
    serves = served_by(logits, Options(n_iters, eps, form, first, backward, out_dtype), implementation)
    options = implicit_options(backward)
    if serves == "pytorch" or n_iters == 0:
        how = f"vectorised PyTorch, {'P' if options else 'logits'} kept" if n_iters else "exp(logits)"
        return Plan("pytorch", str(logits.device), how, how)
    if max(logits.shape[-2:]) > KERNEL_LARGEST:
        launch = large_op.implementations.launcher
        return Plan("helion", *launch.describe(logits, first, eps if form == "deepseek" else 0.0))
    given = logits, n_iters, eps, form, first
    if options:
        launch = implicit_op.implementations.launcher
        return Plan("helion", *launch.describe_implicit(*given, options.solver))
    return Plan("helion", *torch_op.implementations.launcher.describe(*given))
