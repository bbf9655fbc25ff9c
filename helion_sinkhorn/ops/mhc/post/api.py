"""hc_post(...): the contract, its checks, and which implementation computes a call."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.merged import joined, of_coefficients, takes_merged
from helion_sinkhorn.ops.mhc.out import check_out, count_change, written
from helion_sinkhorn.ops.mhc.post import torch_op
from helion_sinkhorn.ops.mhc.streams import COMB_ORDERS, check_streams, refuse_merged
from helion_sinkhorn.runtime.checks import (
    check_implementation,
    check_option,
    check_same_device,
    check_tensor,
    implementation_for,
    refuse_shape,
)
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.torch_op import without_autocast
from helion_sinkhorn.runtime.updates import Update, updated


@takes_merged("post", of_coefficients, joined)
def hc_post(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    *,
    comb_order: str = "io",
    merged: bool = False,
    out: torch.Tensor | None = None,
    implementation: str = "auto",
) -> torch.Tensor:
    """Mix the n residual streams of mHC and add the output f of a sublayer to each.

        out_oc = post_o (f_c + bias_c) + sum_i comb[i, o] x_ic
    The sum is over the first index of comb, the input stream.  With G the gradient of out, the gradients are
        df_c = sum_o post_o G_oc,                  dx_ic = sum_o comb[i, o] G_oc,
        dpost_o = sum_c G_oc (f_c + bias_c),       dcomb[i, o] = sum_c x_ic G_oc,
        dbias_c = sum of df_c over all tokens
    One reading of G makes the first four.  Without comb the streams are not mixed, as in Hy-V4:
        out_oc = post_o (f_c + bias_c) + x_oc

    Args:
        f: (..., C), float32, bfloat16, float16 or float64, any layout.
        x: (..., n, C), the same dtypes, any layout: n streams, 1 to 16, of C entries; the residual.
        post: (..., n), any floating dtype; like comb normally float32, as hc_split_sinkhorn returns them.
        comb: (..., n, n), any floating dtype; None for the identity, which is neither read nor given a
            gradient.  A call without comb has no kernel and is computed in PyTorch on every device.
            torch.compile makes one kernel of it, in which a product may be added unrounded.
        bias: (C,), any floating dtype, the bias of the sublayer's last linear map; None for 0.
        comb_order: "io" for comb[..., input stream, output stream], as DeepSeek has it; "oi" for its
            transpose.
        merged: x is (..., n C), as some models keep streams, and so is the result.
        out: (..., n, C), contiguous, in the dtype of x: the tensor that the result is written into.  It may
            be x itself.  No argument may require a gradient then.  None for a new tensor.
        implementation: "auto" takes the Helion kernels on a GPU and vectorised PyTorch elsewhere, in float64
            and for C = 1; "helion" and "pytorch" ask for one of them.

    Returns:
        out (..., n, C), contiguous, in the dtype of x.

    Numerical policy: all arithmetic in float32 (float64 for float64 x) whatever the inputs or autocast; one
        rounding to the dtype of x at the end, and of each gradient to the dtype of its tensor.  dbias is a
        sum of df before it is rounded.  Bitwise reproducible, and a token's results and gradients do not
        depend on the tokens around it, with any config; without comb, dpost is a sum made by PyTorch, whose
        last bits may depend on them.

    Raises:
        TypeError: an argument is no floating-point tensor.
        ValueError: shapes that do not fit, more than 16 streams, devices that differ, an unknown option, an
            out that overlaps another argument.
        NotImplementedError: implementation="helion" on a CPU, in float64, for C = 1 or without comb; double
            backward with comb; out where an argument requires a gradient.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), equation 3.
    """
    implementation = check_implementation(implementation)
    update = Update(f, x, post, comb, bias)
    check_update(update, optional=("comb", "bias"))
    check_option("comb_order", comb_order, COMB_ORDERS)
    direct = None
    if out is not None:
        wanted = {"out": (tuple(x.shape), x.dtype)}
        direct = out if check_out({"out": out}, wanted, x, {"out": "x"}, update._asdict()) else None
    if comb is None:
        made = added(f, x, post, bias, implementation)
        return written(updated(made, update, comb_order, implementation), out)
    return written(mixed(update, comb_order, implementation, direct), out)


def mixed(
    update: Update, comb_order: str, implementation: str, direct: torch.Tensor | None = None
) -> torch.Tensor:
    """hc_post of checked arguments; kernels write into `direct`."""
    x = update.x
    beyond = (lambda: "the kernels take streams of at least 2 entries, x has 1") if x.size(-1) == 1 else None
    serves = implementation_for(implementation, "x", x, beyond)
    if direct is not None and serves == "helion":
        count_change(direct)
        return torch_op.forward(*update, comb_order, serves, out=direct)
    return updated(torch_op.apply(*update, comb_order, serves), update, comb_order, implementation)


def added(f, x, post, bias, implementation) -> torch.Tensor:
    """hc_post of checked arguments without comb."""
    implementation_for(implementation, "x", x, lambda: "the kernels mix the streams, and comb is None")
    dtype = COMPUTING[x.dtype]
    given = f.to(dtype) if bias is None else f.to(dtype) + bias.to(dtype)
    # a stream at a time, so that only one stream is copied to float32; on a CPU this takes half the time
    weighted = zip(x.unbind(-2), post.to(dtype).unsqueeze(-1).unbind(-2), strict=True)
    made = [torch.addcmul(t.to(dtype), w, given).to(x.dtype) for t, w in weighted]
    # autocast of another narrow dtype would refuse the streams
    with without_autocast(x):
        return torch.stack(made, -2)


def check_update(update: Update, optional: tuple[str, ...] = ("bias",)) -> None:
    """Raise unless the tensors fit one update of streams; the optional ones may be None."""
    f, x, post, *_ = update
    shapes = {"f": "(..., C)", "x": "(..., n, C)", "post": "(..., n)", "comb": "(..., n, n)", "bias": "(C,)"}
    given = dict(zip(shapes, update, strict=True))
    given = {name: t for name, t in given.items() if not (t is None and name in optional)}
    for name, t in given.items():
        check_tensor(name, t, shapes[name])
        check_same_device(name, t, "f", f)
    if post.dim() and f.dim() and x.shape[-1:] != f.shape[-1:]:
        refuse_merged(x, post.shape[-1], post.shape[-1] * f.shape[-1])
    check_streams(x)
    *lead, n, c = x.shape
    for name, expected in (("f", (*lead, c)), ("post", (*lead, n)), ("comb", (*lead, n, n)), ("bias", (c,))):
        if name in given and given[name].shape != expected:
            swapped = name == "f" and f.dim() == x.dim() + 1
            accepted = f"for x of shape {tuple(x.shape)} pass {shapes[name]}, {expected}"
            why = ": f comes first, then the streams" if swapped else ""
            refuse_shape(name, given[name], expected, accepted, why)
