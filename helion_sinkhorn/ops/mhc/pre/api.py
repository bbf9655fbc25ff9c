"""hc_pre(...): the contract, its checks, and which implementation computes a call."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.pre import torch_op
from helion_sinkhorn.ops.mhc.streams import check_streams, refuse_merged
from helion_sinkhorn.runtime.checks import (
    check_implementation,
    check_same_device,
    check_tensor,
    implementation_for,
    refuse_shape,
)
from helion_sinkhorn.runtime.tokens import register_sharding_for
from helion_sinkhorn.runtime.torch_op import differentiates


def hc_pre(x: torch.Tensor, pre: torch.Tensor, *, implementation: str = "auto") -> torch.Tensor:
    """Collapse the n residual streams of mHC to the input of a sublayer: y_c = sum_i pre_i x_ic.

    With dy the gradient of y, the gradients are
        dx_ic = pre_i dy_c,    dpre_i = sum_c dy_c x_ic

    Args:
        x: (..., n, C), float32, bfloat16, float16 or float64, any layout: n streams, 1 to 16, of C entries.
        pre: (..., n), any floating dtype, the leading dimensions of x; normally float32, as
            hc_split_sinkhorn returns it.
        implementation: "auto" takes the Helion kernels on a GPU and vectorised PyTorch elsewhere and in
            float64; "helion" and "pytorch" ask for one of them.

    Returns:
        y (..., C), in the dtype of x.

    Numerical policy: all arithmetic in float32 (float64 for float64 x) whatever the inputs or autocast; one
        rounding to the dtype of x, or of pre for dpre, at the end.  Bitwise reproducible, and a token's
        results do not depend on the tokens around it, with any config.

    Raises:
        TypeError: an argument is no floating-point tensor.
        ValueError: shapes that do not fit, more than 16 streams, devices that differ, an unknown
            implementation.
        NotImplementedError: implementation="helion" on a CPU or in float64; double backward.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), equation 3.
    """
    implementation = check_implementation(implementation)
    _check(x, pre)
    return collapsed(x, pre, implementation)


def collapsed(x, pre, implementation) -> torch.Tensor:
    """hc_pre of checked arguments."""
    serves = implementation_for(implementation, "x", x)
    register_sharding_for(x, pre)
    run = torch_op.HcPre.apply if differentiates(x, pre) else torch_op.call
    return run(x, pre, serves)


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
