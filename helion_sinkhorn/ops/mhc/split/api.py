"""hc_split_sinkhorn(...): the contract, its checks, and which implementation computes a call."""

from __future__ import annotations

import math

import torch

from helion_sinkhorn.ops.mhc.split import torch_op
from helion_sinkhorn.ops.mhc.split.forms import in_parts
from helion_sinkhorn.ops.mhc.split.limits import beyond_kernels
from helion_sinkhorn.ops.mhc.split.options import SplitOptions
from helion_sinkhorn.ops.mhc.split.partials import Reduce
from helion_sinkhorn.ops.mhc.streams import COMB_ORDERS, MOST_STREAMS
from helion_sinkhorn.ops.sinkhorn.api import FORMS, MOST_ITERS, check_eps
from helion_sinkhorn.runtime.checks import (
    as_int,
    check_finite,
    check_flag,
    check_implementation,
    check_int,
    check_number,
    check_option,
    check_out_dtype,
    check_same_device,
    check_same_dtype,
    check_tensor,
    implementation_for,
    type_of,
)
from helion_sinkhorn.runtime.pieces import COMPUTING

PARTIAL_DTYPES = (torch.float32, torch.float64)
SMALLEST_NORM_EPS = 1e-37
"""The smallest norm_eps: its reciprocal, the largest r^2, is still a float32."""
NORM_EPS = f"0 or a float of at least {SMALLEST_NORM_EPS}, finite"


def hc_split_sinkhorn(
    mixes: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    hc_mult: int = 4,
    sinkhorn_iters: int = 20,
    eps: float = 1e-6,
    *,
    post_mult: float = 2.0,
    pre_eps: float | None = None,
    post_eps: float = 0.0,
    comb_order: str = "io",
    form: str = "deepseek",
    implementation: str = "auto",
    out_dtype: torch.dtype | None = None,
    reduce: Reduce | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split the mixes of n = hc_mult residual streams into pre, post and comb, the coefficients of mHC.

    With a = mixes * s + base, s being scale[0] for the first n columns, scale[1] for the next n and scale[2]
    for the other n^2:
        pre  = sigmoid(a_pre) + pre_eps
        post = post_mult sigmoid(a_post) + post_eps
        comb = softmax(a_comb, rows) + eps, columns normalised, then sinkhorn_iters - 1 times rows and
               columns, each denominator + eps
    The gradient is the exact one of the iterations as they are run, and is computed from the arguments only:
        da_pre = dpre sigmoid(a) sigmoid(-a),  da_post = post_mult dpost sigmoid(a) sigmoid(-a),
        da_comb the adjoint of Sinkhorn's iterations (docs/dev/math.md),
        dmixes = da * s,  dbase = sum of da over tokens,  dscale_k = sum of da * mixes over tokens and part k

    Args:
        mixes: (..., n^2 + 2n), float32, bfloat16, float16 or float64, any layout: the projection's output
            after its norm, a row for each token.
        scale: (3,), any floating dtype, for pre, post and comb.
        base: (n^2 + 2n,), any floating dtype.
        hc_mult: n, the number of streams, 1 to 16.
        sinkhorn_iters: T, the number of row and of column steps; with 0 comb is a_comb.
        eps: added to Sinkhorn's softmax and denominators; 0, or 1e-12 to 1.
        post_mult: the factor of post.
        pre_eps: added to pre; None for eps.
        post_eps: added to post.
        comb_order: "io" for comb[..., input stream, output stream], as DeepSeek has it; "oi" for its
            transpose.
        form: "deepseek" is the form above; "log" is the log form of `sinkhorn`, without eps, which normalises
            rows and columns T times.  The log form and T = 0 have no kernel of their own: PyTorch computes
            the gates, and `sinkhorn` comb.
        implementation: "auto" takes the Helion kernels on a GPU, and vectorised PyTorch on a CPU, in
            float64, for one stream, and for more iterations than the kernels keep in registers (33; at
            eps = 0 fewer); "helion" and "pytorch" ask for one of them.
        out_dtype: the dtype of the results; by default float32, float64 for float64 mixes.
        reduce: Reduce(squares, size, norm_eps, eps_outside).  With it, mixes are the partial sums of a
            projection, (splits, ..., n^2 + 2n), float32 or float64, and squares (splits, ...) are the sums of
            squares of the entries of each split.  With q = sum of squares / size, the mixes are the sum of
            the partial sums, in the order of the splits, times r = 1 / sqrt(q + norm_eps), or with
            eps_outside 1 / (sqrt(q) + norm_eps).  Every split has the same gradients:
            dpartials = r dmixes,  dsquares = (k / 2) sum_j dmixes_j mixes_j,  k = -r^2 / size; with
            eps_outside k = -r / (size sqrt(q)), and 0 where q is 0.

    Returns:
        pre (..., n), post (..., n), comb (..., n, n).

    Numerical policy: all arithmetic in float32 (float64 for float64 mixes) whatever the inputs or autocast;
        one rounding to out_dtype at the end.  Bitwise reproducible, and a token's results and dmixes do not
        depend on the tokens around it, with any config.  dscale and dbase are sums in a fixed order.

    Raises:
        TypeError: an argument is no floating-point tensor, a count is no integer, out_dtype no float.
        ValueError: shapes that do not fit, counts or constants out of range, an unknown option.
        NotImplementedError: implementation="helion" on a CPU, in float64, for one stream or beyond the
            kernels' iterations; double backward.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), section 4.2, and
        hc_split_sinkhorn of DeepSeek-V4's inference code, whose positional arguments these are.
    """
    implementation = check_implementation(implementation)
    hc_mult, sinkhorn_iters = as_int(hc_mult), as_int(sinkhorn_iters)
    is_fused = has_kernels(form, sinkhorn_iters)
    _check(mixes, scale, base, hc_mult, sinkhorn_iters, out_dtype)
    if reduce is not None:
        _check_reduce(reduce, mixes)
    check_constants(eps, post_mult, pre_eps, post_eps, comb_order)
    pre_eps = eps if pre_eps is None else pre_eps
    floats = float(eps), float(post_mult), float(pre_eps), float(post_eps)
    options = SplitOptions(hc_mult, sinkhorn_iters, *floats, comb_order)
    if not is_fused:
        if reduce is not None:
            raise ValueError(
                f"reduce is given with form={form!r} and {sinkhorn_iters} iterations; partial sums need "
                'form="deepseek" and at least 1 iteration: use those, or add the partial sums up before'
            )
        implementation_for(implementation, "mixes", mixes)
        return in_parts(mixes, scale, base, options, form, implementation, out_dtype)
    return split(mixes, scale, base, options, implementation, out_dtype, reduce)


def split(mixes, scale, base, options, implementation, out_dtype=None, reduce=None):
    """hc_split_sinkhorn of checked arguments."""
    beyond = beyond_kernels(options.n, options.n_iters, options.eps)
    serves = implementation_for(implementation, "mixes", mixes, beyond)
    options = *options, serves, out_dtype or COMPUTING[mixes.dtype]
    if reduce is None:
        return torch_op.apply(mixes, scale, base, *options)
    norm = as_int(reduce.size), float(reduce.norm_eps), reduce.eps_outside
    return tuple(torch_op.apply_reduced(mixes, reduce.squares, scale, base, *norm, *options)[:3])


def _check(mixes, scale, base, n, n_iters, out_dtype) -> None:
    check_int("hc_mult", n, 1, MOST_STREAMS)
    check_iterations(n_iters)
    columns = n * n + 2 * n
    check_tensor("mixes", mixes, f"(..., {columns})")
    if mixes.dim() < 1 or mixes.shape[-1] != columns:
        raise ValueError(
            f"mixes has shape {tuple(mixes.shape)}; for hc_mult={n} pass (..., {columns}): n pre, n post and "
            "n^2 comb columns"
        )
    check_parameters(scale, base, n, "mixes", mixes)
    check_out_dtype(out_dtype)


def has_kernels(form, n_iters) -> bool:
    """Whether the kernels make a comb of this form; raise for an unknown form."""
    if form == "deepseek":
        return n_iters != 0
    check_option("form", form, FORMS)
    return False


def check_iterations(n_iters) -> None:
    """Raise unless the operator takes so many iterations."""
    check_int("sinkhorn_iters", n_iters, 0, MOST_ITERS)


def check_parameters(scale, base, n, first, other) -> None:
    """Raise unless scale and base are tensors for n streams, on the device of the argument named `first`."""
    columns = n * n + 2 * n
    for name, x, shape in (("scale", scale, (3,)), ("base", base, (columns,))):
        check_tensor(name, x, f"({shape[0]},)")
        check_same_device(name, x, first, other)
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; for hc_mult={n} pass {shape}")


def _check_reduce(reduce, partials) -> None:
    if not isinstance(reduce, Reduce):
        raise TypeError(f"reduce is {type_of(reduce)}; pass helion_sinkhorn.Reduce(squares, size) or None")
    squares, size, norm_eps, eps_outside = reduce
    columns = partials.shape[-1]
    if partials.dim() < 2 or partials.shape[0] < 1:
        raise ValueError(
            f"mixes has shape {tuple(partials.shape)}; with reduce pass partial sums "
            f"(splits, ..., {columns}) with at least one split"
        )
    if partials.dtype not in PARTIAL_DTYPES:
        raise TypeError(
            f"mixes has dtype {partials.dtype}; with reduce pass partial sums in "
            f"{' or '.join(map(str, PARTIAL_DTYPES))}"
        )
    check_tensor("reduce.squares", squares, "(splits, ...)")
    check_same_dtype("reduce.squares", squares, "mixes", partials)
    check_same_device("reduce.squares", squares, "mixes", partials)
    if squares.shape != partials.shape[:-1]:
        raise ValueError(
            f"reduce.squares has shape {tuple(squares.shape)}; for partial sums of shape "
            f"{tuple(partials.shape)} pass {tuple(partials.shape[:-1])}"
        )
    check_int("reduce.size", size, 1, what="the number of entries of a token")
    check_number("reduce.norm_eps", norm_eps, NORM_EPS)
    if not (norm_eps == 0 or SMALLEST_NORM_EPS <= norm_eps < math.inf):
        raise ValueError(f"reduce.norm_eps is {norm_eps}; pass {NORM_EPS}")
    check_flag("reduce.eps_outside", eps_outside)


def check_constants(eps, post_mult, pre_eps, post_eps, comb_order) -> None:
    """Raise unless the constants are finite numbers and comb_order is a known order."""
    check_eps(eps)
    for name, value in (("post_mult", post_mult), ("pre_eps", pre_eps), ("post_eps", post_eps)):
        if value is not None or name != "pre_eps":
            check_finite(name, value)
    check_option("comb_order", comb_order, COMB_ORDERS)
