"""hc_site(...): the contract."""

from __future__ import annotations

from typing import NamedTuple

import torch

from helion_sinkhorn.ops.mhc.merged import of_site, takes_merged, with_joined
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.out import Out
from helion_sinkhorn.ops.mhc.site.crossing import check_site, crossing, crossing_into
from helion_sinkhorn.ops.mhc.split.given import Comb
from helion_sinkhorn.runtime.checks import check_implementation
from helion_sinkhorn.runtime.export import named_for_export


class Site(NamedTuple):
    """What a site makes of its streams."""

    y: torch.Tensor
    """(..., C), the sublayer's input, normalised if the site has a norm."""
    post: torch.Tensor
    """(..., n)."""
    comb: torch.Tensor
    """(..., n, n)."""
    residual: torch.Tensor
    """(..., n, C), the streams themselves, to pass to `hc_post`."""


named_for_export(Site)


@takes_merged("fn", of_site, with_joined)
def hc_site(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int = 20,
    eps: float = 1e-6,
    norm_eps: float = 1e-6,
    norm_weight: torch.Tensor | None = None,
    *,
    post_mult: float = 2.0,
    pre_eps: float | None = None,
    post_eps: float = 0.0,
    comb_order: str = "io",
    precision: str = "float32",
    eps_outside: bool = False,
    y_norm_weight: torch.Tensor | None = None,
    y_norm_eps: float = 1e-6,
    form: str = "deepseek",
    merged: bool = False,
    comb: Comb | None = None,
    out: Out | None = None,
    implementation: str = "auto",
) -> Site:
    """Make a sublayer's input and the coefficients of its output from the residual streams.

        mixes = hc_mixes(x, fn, norm_eps, norm_weight),  (pre, post, comb) = hc_split_sinkhorn(mixes, ...)
        y_c = sum_i pre_i x_ic, or its RMSNorm with y_norm_weight,  residual = x
    The values equal the results of the three operators.  x is used three times, twice here and once as the
    residual of `hc_post`, so that autograd would add three gradients.  Pass `residual`, and not x, to
    `hc_post`, or to whatever makes the new streams: its gradient then comes back here, and one kernel writes
        dx = dresidual + pre dy + r dmixes fn + k <dmixes, mixes> x
    with the gradient of fn.

    Args:
        x: (..., n, C), float32, bfloat16, float16 or float64, the streams.
        fn: (n^2 + 2n, n C), any floating dtype, the projection.
        scale: (3,), for pre, post and comb.
        base: (n^2 + 2n,).
        sinkhorn_iters: T, the number of iterations, as in `hc_split_sinkhorn`; with 0 comb is its logits.
        eps: added to Sinkhorn's softmax and denominators, and to pre; 0, or 1e-12 to 1.
        norm_eps: added to the mean square under the root, as in `hc_mixes`.
        norm_weight: (n C,), the weight of the norm, or None for 1.
        post_mult: the factor of post, as in `hc_split_sinkhorn`.
        pre_eps: added to pre; None for eps.
        post_eps: added to post.
        comb_order: "io" for comb[input stream, output stream], "oi" for its transpose.
        precision: "float32" or "tf32" for the projection's products, as in `hc_mixes`.
        eps_outside: add norm_eps to the root and not under it.
        y_norm_weight: (C,), the weight of the RMSNorm before the sublayer, as in `hc_pre`: y is then its
            result; or None.
        y_norm_eps: added to the mean square of y.
        form: "deepseek" or "log", the form of Sinkhorn, as in `hc_split_sinkhorn`.
        merged: x is (..., n C), as some models keep streams, and so is the residual.
        comb: (..., n, n), any floating dtype, in comb_order, used instead of Sinkhorn's matrix: fn and base
            then have 2n rows; or a function that returns it from its logits (..., K), float32: fn and base
            then have 2n + K rows.  None for Sinkhorn.
        out: tensors that y, post and comb are written into (`Out`), where nothing needs a gradient; None for
            new ones.  Its quantized receives y in float8 with scales.
        implementation: "auto", "helion" or "pytorch".

    Returns:
        y (..., C) in the dtype of x; post (..., n) and comb (..., n, n), float32, float64 for float64 x;
        residual, x as a view that has this function's gradient.

    Numerical policy: as in the three operators, but dx is rounded once, while their gradients are each
        rounded, and so are autograd's sums of them.  Bitwise reproducible, and a token's results and its dx
        do not depend on other tokens.  The three operators are called, and autograd adds their gradients, on
        a CPU, in float64, for DTensors, one stream, C = 1, a norm_eps below 1e-37, the log form, no
        iterations, more iterations than the kernels take, and a comb that is given.

    Raises:
        TypeError, ValueError, NotImplementedError: as the three operators do, and for an `out` that does not
            fit, overlaps an argument, or would have a gradient.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), section 4.2.
    """
    implementation = check_implementation(implementation)
    site = SiteParameters(fn, scale, base, norm_weight, y_norm_weight, comb)
    check_site(x, site)
    options = SiteOptions(
        sinkhorn_iters, eps, norm_eps, post_mult, pre_eps, post_eps, comb_order, precision, eps_outside,
        y_norm_eps, form,
    ).checked()  # fmt: skip
    given = None, x, site, None, options, implementation
    y, _, post, comb, residual = crossing(*given) if out is None else crossing_into(out, *given)
    return Site(y, post, comb, residual)
