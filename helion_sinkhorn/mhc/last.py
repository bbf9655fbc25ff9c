"""hc_last: from the last sublayer of the mHC residual path to the model's last hidden state."""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.mhc.head import Head, check_head, weights_of
from helion_sinkhorn.ops.mhc.merged import of_coefficients, takes_merged
from helion_sinkhorn.ops.mhc.mixes.api import with_weight
from helion_sinkhorn.ops.mhc.out import check_out, count_change, written
from helion_sinkhorn.ops.mhc.post.api import check_update, mixed
from helion_sinkhorn.ops.mhc.pre.api import Norm, check_norm, collapsed
from helion_sinkhorn.ops.mhc.site.boundary.head import torch_op as head_op
from helion_sinkhorn.ops.mhc.site.boundary.head.space import FEWEST_STREAMS
from helion_sinkhorn.ops.mhc.site.boundary.last import torch_op
from helion_sinkhorn.ops.mhc.site.boundary.last.space import MOST_COLUMNS, MOST_STREAMS
from helion_sinkhorn.ops.mhc.streams import COMB_ORDERS, check_norm_eps, evenly
from helion_sinkhorn.runtime.checks import (
    check_implementation,
    check_option,
    check_same_device,
    check_tensor,
    implementation_for,
    refuse_shape,
    type_of,
)
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
    head: Head | None = None,
    bias: torch.Tensor | None = None,
    comb_order: str = "io",
    y_norm_weight: torch.Tensor | None = None,
    y_norm_eps: float = 1e-6,
    merged: bool = False,
    out: torch.Tensor | None = None,
    implementation: str = "auto",
) -> torch.Tensor:
    """Take the last sublayer's output into the streams and collapse them, without writing them.

        y = hc_pre(hc_post(f, x, post, comb, bias), pre), or its RMSNorm with y_norm_weight
    DeepSeek-V4.1 collapses by the `pre` that came with post and comb, GLM-5.3 takes the mean of the
    streams, pre = None.  DeepSeek-V4 makes its weights of the new streams, by a head:
        y = hc_head(hc_post(f, x, post, comb, bias), fn, scale, base), or its RMSNorm

    Args:
        f: (..., C), the last sublayer's output, any floating dtype, as `hc_post` takes it.
        x: (..., n, C), the streams before it; float32, bfloat16, float16 or float64.
        post: (..., n), any floating dtype.
        comb: (..., n, n), any floating dtype.
        pre: (..., n), any floating dtype, or None for 1/n, or for a head.
        head: Head(fn, scale, base, norm_eps=1e-6, eps=1e-6, norm_weight=None), the arguments of `hc_head`,
            whose precision is "float32" here; norm_eps is under the root.
        bias: (C,), any floating dtype, added to f, or None.
        comb_order: "io" or "oi", as in `hc_post`.
        y_norm_weight: (C,), weight of the model's last RMSNorm, which makes y then; or None.
        y_norm_eps: added to the mean square of y.
        merged: x is (..., n C), as some models keep streams.
        out: (..., C), contiguous, in the dtype of x: the tensor that y is written into.  No argument may
            require a gradient then.  None for a new tensor.
        implementation: "auto", "helion" or "pytorch".

    Returns:
        y (..., C) in the dtype of x.

    Numerical policy: the new streams are rounded to the dtype of x, as between the functions, and y as
        `hc_pre` rounds it.  Where no gradient is needed one kernel reads f and x and writes y, for up to 4
        streams of up to 8192 columns, or with a head two, for 2 to 4 streams; a call that needs one, or that
        kernels do not take, is the functions.  Both have the same bits without a norm and a head; the sums of
        these are in another order, and those of a head as exact as in `hc_mixes`.  A token's result does not
        depend on the tokens around it.

    Raises:
        TypeError: what `hc_post`, `hc_pre` and `hc_head` raise, who name a head's fields without it; head is
            no Head; out has another dtype.
        ValueError: what these raise; pre and head are given; out does not fit, or overlaps an argument.
        NotImplementedError: what these raise; an argument requires a gradient, and out is given.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), and the last
        collapses in the inference code of DeepSeek-V4 and V4.1.
    """
    implementation = check_implementation(implementation)
    update = Update(f, x, post, comb, bias)
    check_update(update)
    check_option("comb_order", comb_order, COMB_ORDERS)
    check_norm(x, y_norm_weight)
    check_norm_eps("y_norm_eps", y_norm_eps)
    by = (_weights(x, pre),) if head is None else _of_head(x, pre, head)
    given = *update, *by, y_norm_weight
    there = [t for t in given if t is not None]
    direct = None
    if out is not None:
        named = update._asdict() | {"pre": pre, "y_norm_weight": y_norm_weight}
        named |= {} if head is None else head._asdict()
        direct = out if check_out({"out": out}, {"out": (tuple(f.shape), x.dtype)}, x, {}, named) else None
    n, columns = x.shape[-2:]
    fewest = 1 if head is None else FEWEST_STREAMS
    # under a compiler too, which would find no gradient of the kernel
    fits = fewest <= n <= MOST_STREAMS and 1 < columns <= MOST_COLUMNS and not needs_gradient(*there)
    if fits and implementation_for(implementation, "x", x) == "helion":
        if head is None:
            op, options = torch_op, (float(y_norm_eps), comb_order)
        else:
            op, options = head_op, (comb_order, *map(float, (head.norm_eps, head.eps, y_norm_eps)))
        count_change(direct)
        run = op.call if direct is None else functools.partial(op.forward, out=direct)
        return written(run(*given, *options), out)
    streams = mixed(update, comb_order, implementation)
    weights = by[0] if head is None else weights_of(streams, Head(*by, *head[3:5]), implementation)
    norm = None if y_norm_weight is None else Norm(y_norm_weight, float(y_norm_eps))
    return written(collapsed(streams, weights, norm, implementation, direct), out)


def _weights(x: torch.Tensor, pre: torch.Tensor | None) -> torch.Tensor:
    """The given weights of the streams x, or those of their mean."""
    if pre is None:
        return evenly(x)
    check_tensor("pre", pre, "(..., n)")
    check_same_device("pre", pre, "x", x)
    wanted = tuple(x.shape[:-1])
    if pre.shape != wanted:
        refuse_shape("pre", pre, wanted, f"for these streams pass {wanted}")
    return pre


def _of_head(x: torch.Tensor, pre: torch.Tensor | None, head: Head) -> tuple[torch.Tensor, ...]:
    """(fn, scale, base) of a head, with its norm's weight in fn."""
    if not isinstance(head, Head):
        raise TypeError(
            f"head is {type_of(head)}; pass helion_sinkhorn.mhc.last.Head(fn, scale, base), or None"
        )
    if pre is not None:
        raise ValueError("pre and head are given; pass pre=None with a head, which makes the weights itself")
    check_head(x, head)
    return with_weight(x, head.fn, head.norm_weight), head.scale, head.base
