"""hc_pre(...): the contract, its checks, and which implementation computes a call."""

from __future__ import annotations

from typing import NamedTuple

import torch

from helion_sinkhorn.ops.mhc.merged import of_coefficients, takes_merged
from helion_sinkhorn.ops.mhc.out import count_change
from helion_sinkhorn.ops.mhc.pre import torch_op
from helion_sinkhorn.ops.mhc.pre.normed import torch_op as normed_op
from helion_sinkhorn.ops.mhc.streams import check_norm_eps, check_streams, refuse_merged
from helion_sinkhorn.runtime.checks import (
    check_implementation,
    check_same_device,
    check_tensor,
    implementation_for,
    refuse_shape,
)


class Norm(NamedTuple):
    """The RMSNorm of a collapsed state."""

    weight: torch.Tensor
    """(C,), any floating dtype."""
    eps: float


@takes_merged("pre", of_coefficients)
def hc_pre(
    x: torch.Tensor,
    pre: torch.Tensor,
    *,
    y_norm_weight: torch.Tensor | None = None,
    y_norm_eps: float = 1e-6,
    merged: bool = False,
    implementation: str = "auto",
) -> torch.Tensor:
    """Collapse the n residual streams of mHC to the input of a sublayer: y_c = sum_i pre_i x_ic.

    With dy the gradient of y, the gradients are
        dx_ic = pre_i dy_c,    dpre_i = sum_c dy_c x_ic
    With y_norm_weight = w the result is the RMSNorm of y, the norm before a sublayer, instead of y:
        u_c = w_c v_c,  v_c = r y_c,  r = 1 / sqrt(sum_c y_c^2 / C + y_norm_eps)
        dy_c = r (h_c - v_c sum_k h_k v_k / C),  h_c = w_c du_c,    dw_c = sum over tokens of du_c v_c

    Args:
        x: (..., n, C), float32, bfloat16, float16 or float64, any layout: n streams, 1 to 16, of C entries.
        pre: (..., n), any floating dtype, the leading dimensions of x; normally float32, as
            hc_split_sinkhorn returns it.
        y_norm_weight: (C,), any floating dtype, converted to float32; None for y itself.
        y_norm_eps: added to the mean square of y, at least 1.2e-38, float32's smallest normal number.
        merged: x is (..., n C), as some models keep streams.
        implementation: "auto" takes the Helion kernels on a GPU and vectorised PyTorch elsewhere, in float64
            and for a norm of C = 1; "helion" and "pytorch" ask for one of them.

    Returns:
        y (..., C), or u with a norm, in the dtype of x.

    Numerical policy: all arithmetic in float32 (float64 for float64 x) whatever the inputs or autocast; one
        rounding to the dtype of x, or of pre for dpre, at the end.  A norm takes y rounded to the dtype of x,
        as a separate norm would read it, and keeps neither y nor r: the backward computes them again.
        Bitwise reproducible, and a token's results do not depend on the tokens around it, with any config;
        the gradient of the norm's weight is a sum over tokens in a fixed order.

    Raises:
        TypeError: an argument is no floating-point tensor, or y_norm_eps no number.
        ValueError: shapes that do not fit, more than 16 streams, devices that differ, a y_norm_eps out of
            range, an unknown implementation.
        NotImplementedError: implementation="helion" on a CPU, in float64 or for a norm of C = 1; double
            backward.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), equation 3.
    """
    implementation = check_implementation(implementation)
    _check(x, pre)
    check_norm(x, y_norm_weight)
    check_norm_eps("y_norm_eps", y_norm_eps)
    norm = None if y_norm_weight is None else Norm(y_norm_weight, float(y_norm_eps))
    return collapsed(x, pre, norm, implementation)


def collapsed(x, pre, norm: Norm | None, implementation, direct: torch.Tensor | None = None) -> torch.Tensor:
    """hc_pre of checked arguments; without a norm kernels write into `direct`."""
    if norm is None:
        serves = implementation_for(implementation, "x", x)
        if direct is not None and serves == "helion":
            count_change(direct)
            return torch_op.forward(x, pre, serves, into=direct)
        return torch_op.apply(x, pre, serves)
    beyond = (lambda: "the kernels normalise at least 2 entries, C is 1") if x.size(-1) == 1 else None
    serves = implementation_for(implementation, "x", x, beyond)
    given = x, pre, norm.weight
    return normed_op.apply(*given, norm.eps, serves)


def check_norm(x: torch.Tensor, weight: torch.Tensor | None) -> None:
    """Raise unless weight is None or the weight (C,) of a norm, for streams x (..., n, C)."""
    if weight is None:
        return
    check_tensor("y_norm_weight", weight, "(C,)")
    check_same_device("y_norm_weight", weight, "x", x)
    wanted = tuple(x.shape[-1:])
    if tuple(weight.shape) != wanted:
        refuse_shape("y_norm_weight", weight, wanted, f"for x of shape {tuple(x.shape)} pass {wanted}")


def _check(x, pre) -> None:
    for name, t, shape in (("x", x, "(..., n, C)"), ("pre", pre, "(..., n)")):
        check_tensor(name, t, shape)
        check_same_device(name, t, "x", x)
    if pre.dim() == x.dim() and pre.shape[:-1] == x.shape[:-1]:
        refuse_merged(x, pre.shape[-1], x.shape[-1])
    check_streams(x)
    wanted = tuple(x.shape[:-1])
    if pre.shape != wanted:
        accepted = f"for this x pass (..., n), {wanted}"
        refuse_shape("pre", pre, wanted, accepted, ": a weight for each stream of each token")
