"""sinkhorn_balance(...): the contract, its checks, and which implementation computes a call."""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.ops.balance import torch_op
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.ops.balance.space import LARGEST_N
from helion_sinkhorn.runtime.checks import (
    check_group,
    check_implementation,
    check_same_device,
    check_same_dtype,
    check_tensor,
    implementation_for,
    refuse_shape,
)
from helion_sinkhorn.runtime.torch_op import differentiates, may_be_distributed


def sinkhorn_balance(
    update: torch.Tensor,
    *,
    steps: int = 11,
    zero_row_threshold: float = 1e-3,
    eps: float = 1e-20,
    scale: str = "row_rms",
    first: str = "rows",
    out: torch.Tensor | None = None,
    group: Any = None,
    implementation: str = "auto",
) -> torch.Tensor:
    """Balance an optimizer's update: divide its rows and its columns in turn by their L2 norms.

    u begins as the update, with rows of norm at most zero_row_threshold times the mean norm set to zero.  The
    steps
        u_ij <- u_ij / (|u_i.| + eps)    and    u_ij <- u_ij / (|u_.j| + eps)
    alternate, `steps` in all.  u is never stored, since it is d_i update_ij c_j: the kernels read the update
    once for each row step and once for the norms, and write once.

    Args:
        update: (..., m, n), float32, bfloat16, float16 or float64, any layout: matrices of m rows.
        steps: the number of row and column steps together, at least 1.
        zero_row_threshold: at least 0; with 0 only rows of zeros are zero, and no pass looks for others.
        eps: added to each norm, at least 1e-30.
        scale: "row_rms" multiplies by sqrt(n), so that after a last row step rows have a root mean square of
            1; "none" leaves rows or columns of norm 1.
        first: the first step, "rows" or "cols".
        out: the tensor to write to, of the shape, dtype and device of the update; it may be the update
            itself, but may not share only a part of its memory.
        group: a torch.distributed.ProcessGroup whose ranks each have a share of the rows.  A DTensor whose
            rows are sharded, as by FSDP2, needs no group.  Each column step adds n numbers over all ranks,
            including ranks without a row.
        implementation: "auto" takes the Helion kernels on a GPU (n from 2 to 16384, not float64) and
            vectorised PyTorch elsewhere; "helion" and "pytorch" ask for one of them.

    Returns:
        The balanced update in its dtype: a new tensor, or out.

    Numerical policy: scales and sums of squares in float32 (float64 for float64) whatever the dtype or
        autocast, and one rounding to the dtype of the update.  float32 does not hold the squares of entries
        beyond 1e18.  A row whose norm is below 1e-18 counts as zero, and a column whose norm is below 1e-18
        (with rows of norm 1) is left as it is.  If a norm is infinite, so is the mean, and by the definition
        all rows of that matrix are zero; with zero_row_threshold=0 the row of an infinite entry may become
        zero, and the other rows NaN.  NaN spreads over its matrix.  A row whose norm is within a few units in
        the last place of the threshold may fall on either side.  Bitwise reproducible under one config; with
        sharded rows the bits depend on the number of ranks.

    Raises:
        TypeError: update or out is no floating-point tensor, or an option or group has another type.
        ValueError: shapes or devices that do not fit, an option that is not accepted, an out that shares a
            part of the update's memory, a DTensor whose columns are sharded.
        NotImplementedError: update or out requires grad, since there is no gradient; out under torch.vmap;
            implementation="helion" on a CPU, in float64 or beyond the kernels' sizes.

    Source: DeepSeek-V4.1, section 2.5, algorithm 1; Scetbon et al., Gradient Multi-Normalization
        (arXiv 2502.06742), whose SinkGD is steps=10, zero_row_threshold=0, scale="none" times sqrt(m).
    """
    implementation = check_implementation(implementation)
    options = BalanceOptions.checked(steps, zero_row_threshold, eps, scale, first)
    _check(update, out)
    if differentiates(update) or (out is not None and differentiates(out)):
        torch_op.no_gradient(None)
    groups, part, written = [] if group is None else [check_group(group)], update, out
    sharded = may_be_distributed(update, out)
    if sharded:
        from helion_sinkhorn.ops.balance.distributed import local, whole

        part, written, groups = local(update, out, groups)
    n = part.shape[-1]
    beyond = None if 2 <= n <= LARGEST_N else lambda: f"the kernels take n from 2 to {LARGEST_N}, this is {n}"
    serves = implementation_for(implementation, "update", part, beyond)
    if out is not None:
        torch_op.call_into(part, written, *options, groups, serves)
        return out
    balanced = torch_op.call(part, *options, groups, serves)
    return whole(balanced, update) if sharded else balanced


def _check(update, out) -> None:
    check_tensor("update", update, "(..., m, n)")
    if update.dim() < 2 or 0 in update.shape[-1:]:
        raise ValueError(
            f"update has shape {tuple(update.shape)}; pass (..., m, n), matrices whose rows have an entry"
        )
    if out is not None:
        check_tensor("out", out, "(..., m, n)")
        check_same_dtype("out", out, "update", update)
        check_same_device("out", out, "update", update)
        if out.shape != update.shape:
            wanted = tuple(update.shape)
            refuse_shape("out", out, wanted, f"pass the shape of update, {wanted}")
