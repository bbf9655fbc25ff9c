"""dot_compress(...): the contract, its checks, and which implementation computes a call."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.dot_compress import torch_op
from helion_sinkhorn.runtime.checks import (
    check_flag,
    check_implementation,
    check_same_device,
    check_same_dtype,
    check_tensor,
    implementation_for,
)

LARGEST_D = 1024
LARGEST_K = 128
"""The most columns of y that the kernels take."""


def dot_compress(
    x: torch.Tensor,
    y: torch.Tensor,
    z: torch.Tensor | None = None,
    *,
    precise_intermediate: bool = False,
    implementation: str = "auto",
) -> torch.Tensor:
    """Compress M embeddings to K by their own products: out = x (x'y + z).

    With b = x'y + z, and g the gradient of out, the gradients are
        dz = db = x'g,    dx = g b' + y db',    dy = x db

    Args:
        x: (..., M, D), float32, bfloat16, float16 or float64, any layout.
        y: (..., M, K), of the dtype, device and leading dimensions of x.
        z: (..., D, K), of the same dtype, device and leading dimensions; 0 if left out.
        precise_intermediate: keep b and db as two numbers of the dtype of x, the rounded value and the
            rounding error: 16 bits of significand in bfloat16, 22 in float16 (fewer below 0.125, where the
            second number is subnormal).  Each product that reads them then becomes two.  float32 and float64
            have no second number.
        implementation: "auto" takes the Helion kernels on a GPU (D <= 1024, K <= 128, not float64) and
            PyTorch elsewhere; "helion" and "pytorch" ask for one of them.

    Returns:
        out (..., M, K), in the dtype of x.

    Numerical policy: products are exact or rounded to float32 and summed in float32 (float64 for float64),
        also under autocast.  b and db are rounded once to the dtype of x, and each result once.  So the error
        of an entry of out is half a unit in its last place and x times the rounding errors of b; two correct
        implementations with different orders of sums differ by as much (docs/dev/dot_compress.md).  Bitwise
        reproducible, and an element's result does not depend on the batch around it under one config.

    Raises:
        TypeError: an argument is no floating-point tensor, or the dtypes differ.
        ValueError: shapes that do not fit, no columns, devices that differ, an unknown implementation.
        NotImplementedError: implementation="helion" on a CPU, in float64 or beyond the kernels' sizes;
            double backward.

    Source: the dot compression of embeddings in recommendation models, as reported in pytorch/helion#1661.
    """
    implementation = check_implementation(implementation)
    _check(x, y, z, precise_intermediate)
    d, k = x.shape[-1], y.shape[-1]
    within = d <= LARGEST_D and k <= LARGEST_K
    beyond = (
        None
        if within
        else lambda: f"the kernels take D up to {LARGEST_D} and K up to {LARGEST_K}, these are {d} and {k}"
    )
    serves = implementation_for(implementation, "x", x, beyond)
    parts = 2 if precise_intermediate and x.dtype in (torch.bfloat16, torch.float16) else 1
    out, _ = torch_op.apply(x, y, z, parts, serves)
    return out


def _check(x, y, z, precise_intermediate) -> None:
    tensors = {"x": (x, "(..., M, D)"), "y": (y, "(..., M, K)")}
    if z is not None:
        tensors["z"] = z, "(..., D, K)"
    for name, (t, shape) in tensors.items():
        check_tensor(name, t, shape)
        check_same_dtype(name, t, "x", x)
        check_same_device(name, t, "x", x)
        if t.dim() < 2:
            raise ValueError(f"{name} has shape {tuple(t.shape)}; pass {shape}")
    if 0 in (x.shape[-1], y.shape[-1]):
        raise ValueError(
            f"x has shape {tuple(x.shape)}, y {tuple(y.shape)}; each needs at least one column, D and K"
        )
    if y.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, x {tuple(x.shape)}; pass (..., M, K) and (..., M, D), "
            "with the same M and leading dimensions"
        )
    expected = (*x.shape[:-2], x.shape[-1], y.shape[-1])
    if z is not None and z.shape != expected:
        raise ValueError(f"z has shape {tuple(z.shape)}; for these x and y pass (..., D, K), {expected}")
    check_flag("precise_intermediate", precise_intermediate)
