"""hc_last: from the last sublayer of the mHC residual path to the model's last hidden state."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.merged import of_coefficients, takes_merged
from helion_sinkhorn.ops.mhc.post.api import check_update, mixed
from helion_sinkhorn.ops.mhc.pre.api import Norm, check_norm, collapsed
from helion_sinkhorn.ops.mhc.site.boundary.last import torch_op
from helion_sinkhorn.ops.mhc.site.boundary.last.space import MOST_COLUMNS, MOST_STREAMS
from helion_sinkhorn.ops.mhc.streams import COMB_ORDERS, check_norm_eps
from helion_sinkhorn.runtime.checks import (
    check_implementation,
    check_option,
    check_same_device,
    check_tensor,
    implementation_for,
    refuse_shape,
)
from helion_sinkhorn.runtime.tokens import register_sharding_for
from helion_sinkhorn.runtime.torch_op import needs_gradient
from helion_sinkhorn.runtime.updates import Update


@takes_merged("post", of_coefficients)
def hc_last(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    pre: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    comb_order: str = "io",
    y_norm_weight: torch.Tensor | None = None,
    y_norm_eps: float = 1e-6,
    merged: bool = False,
    implementation: str = "auto",
) -> torch.Tensor:
    """Take the last sublayer's output into the streams and collapse them, without writing them.

        y = hc_pre(hc_post(f, x, post, comb, bias), pre), or its RMSNorm with y_norm_weight
    DeepSeek-V4.1 collapses by the `pre` that came with post and comb, GLM-5.3 takes the mean of the
    streams, pre = None.  The head of DeepSeek-V4 makes its weights of the new streams: that is `hc_post`
    and `hc_head`.

    Args:
        f: (..., C), the last sublayer's output, any floating dtype, as `hc_post` takes it.
        x: (..., n, C), the streams before it; float32, bfloat16, float16 or float64.
        post: (..., n), any floating dtype.
        comb: (..., n, n), any floating dtype.
        pre: (..., n), any floating dtype, or None for 1/n.
        bias: (C,), any floating dtype, added to f, or None.
        comb_order: "io" or "oi", as in `hc_post`.
        y_norm_weight: (C,), weight of the model's last RMSNorm, which makes y then; or None.
        y_norm_eps: added to the mean square of y.
        merged: x is (..., n C), as some models keep streams.
        implementation: "auto", "helion" or "pytorch".

    Returns:
        y (..., C) in the dtype of x.

    Numerical policy: the new streams are rounded to the dtype of x, as between the two functions, and y as
        `hc_pre` rounds it.  Where no gradient is needed one kernel reads f and x and writes y, for up to 4
        streams of up to 8192 columns; a call that needs one, or that kernel does not take, is the two
        functions.  Both have the same bits without a norm; a norm's sum of squares is in another order.  A
        token's result does not depend on the tokens around it.

    Raises:
        TypeError, ValueError, NotImplementedError: what `hc_post` and `hc_pre` raise.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), and the last collapse
        in DeepSeek-V4.1's inference code.
    """
    implementation = check_implementation(implementation)
    update = Update(f, x, post, comb, bias)
    check_update(update)
    check_option("comb_order", comb_order, COMB_ORDERS)
    check_norm(x, y_norm_weight)
    check_norm_eps("y_norm_eps", y_norm_eps)
    *lead, n, columns = x.shape
    if pre is None:
        pre = x.new_full((*lead, n), 1.0 / n, dtype=torch.promote_types(x.dtype, torch.float32))
    check_tensor("pre", pre, "(..., n)")
    check_same_device("pre", pre, "x", x)
    if pre.shape != post.shape:
        refuse_shape("pre", pre, (*lead, n), f"for these streams pass {(*lead, n)}")
    given = *update, pre, y_norm_weight
    there = [t for t in given if t is not None]
    # under a compiler too, which would find no gradient of the kernel
    fits = n <= MOST_STREAMS and 1 < columns <= MOST_COLUMNS and not needs_gradient(*there)
    if fits and implementation_for(implementation, "x", x) == "helion":
        register_sharding_for(*there)
        return torch_op.call(*given, float(y_norm_eps), comb_order)
    streams = mixed(update, comb_order, implementation)
    norm = None if y_norm_weight is None else Norm(y_norm_weight, float(y_norm_eps))
    return collapsed(streams, pre, norm, implementation)
