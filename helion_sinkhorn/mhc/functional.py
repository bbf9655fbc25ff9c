"""The functions of the mHC residual path that are made of its operators: entry, coefficients, head."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.head import Head, check_head, weights_of
from helion_sinkhorn.ops.mhc.merged import joined, of_head, of_site, takes_merged
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.out import check_out, written
from helion_sinkhorn.ops.mhc.pre.api import collapsed
from helion_sinkhorn.ops.mhc.site.crossing import check_site, coefficients
from helion_sinkhorn.runtime.checks import check_flag, check_implementation, check_int, check_tensor


def hc_expand(h: torch.Tensor, n: int, *, merged: bool = False) -> torch.Tensor:
    """Copy hidden states into n residual streams, the entry of the path.

        x_ic = h_c for each stream i;  gradient dh_c = sum_i dx_ic

    Args:
        h: (..., C), any floating dtype, the embedding.
        n: the number of streams, at least 1.
        merged: return (..., n C), as some models keep streams.

    Returns:
        (..., n, C), or (..., n C), in the dtype of h, contiguous.

    Numerical policy: the values are copies; the gradient's sum is in float32 at least, with one rounding.

    Raises:
        TypeError: h is no floating-point tensor, n no integer.
        ValueError: h has no dimension, n is less than 1.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880).
    """
    check_tensor("h", h, "(..., C)")
    if h.dim() < 1:
        raise ValueError("h has shape (); pass (..., C)")
    n = check_int("n", n, 1)
    check_flag("merged", merged)
    streams = h.unsqueeze(-2).expand(*h.shape[:-1], n, h.size(-1))
    streams = streams.clone(memory_format=torch.contiguous_format)
    return joined(streams) if merged else streams


@takes_merged("fn", of_site)
def hc_coeffs(
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
    form: str = "deepseek",
    merged: bool = False,
    implementation: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make the coefficients pre, post and comb of a site from its residual streams.

        mixes = hc_mixes(x, fn, norm_eps, norm_weight),  (pre, post, comb) = hc_split_sinkhorn(mixes, ...)

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
        form: "deepseek" or "log", the form of Sinkhorn, as in `hc_split_sinkhorn`.
        merged: x is (..., n C), as some models keep streams.
        implementation: "auto", "helion" or "pytorch", for both.

    Returns:
        pre (..., n), post (..., n), comb (..., n, n), float32; float64 for float64 streams.

    Numerical policy: as for the two operators; the mixes between them are float32 and never rounded.

    Raises:
        TypeError, ValueError, NotImplementedError: as the two operators do.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), section 4.2.
    """
    implementation = check_implementation(implementation)
    site = SiteParameters(fn, scale, base, norm_weight)
    check_site(x, site)
    options = SiteOptions(
        sinkhorn_iters, eps, norm_eps, post_mult, pre_eps, post_eps, comb_order, precision, eps_outside,
        form=form,
    ).checked()  # fmt: skip
    return coefficients(x, site, options, implementation)


@takes_merged("fn", of_head)
def hc_head(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    norm_eps: float = 1e-6,
    eps: float = 1e-6,
    norm_weight: torch.Tensor | None = None,
    precision: str = "float32",
    eps_outside: bool = False,
    merged: bool = False,
    out: torch.Tensor | None = None,
    implementation: str = "auto",
) -> torch.Tensor:
    """Collapse the residual streams after the last layer into one hidden state.

        mix = hc_mixes(x, fn, norm_eps, norm_weight)
        pre = sigmoid(mix * scale + base) + eps
        y_c = sum_i pre_i x_ic

    Args:
        x: (..., n, C), float32, bfloat16, float16 or float64, the streams.
        fn: (n, n C), any floating dtype, the projection.
        scale: (1,).
        base: (n,).
        eps: added to pre.
        norm_eps: added to the mean square under the root, as in `hc_mixes`.
        norm_weight: (n C,), the weight of the norm, or None for 1.
        precision: "float32" or "tf32" for the projection's products, as in `hc_mixes`.
        eps_outside: add norm_eps to the root and not under it.
        merged: x is (..., n C), as some models keep streams.
        out: (..., C), contiguous, in the dtype of x: the tensor that y is written into.  No argument may
            require a gradient then.  None for a new tensor.
        implementation: "auto", "helion" or "pytorch", for `hc_mixes` and `hc_pre`.

    Returns:
        y (..., C) in the dtype of x.

    Numerical policy: all arithmetic in float32 (float64 for float64 streams); one rounding to the dtype of x.
        The gate's derivative is sigmoid(a) sigmoid(-a), without cancellation in a saturated gate.

    Raises:
        TypeError: an argument is no floating-point tensor, eps or norm_eps no number.
        ValueError: shapes that do not fit, more than 16 streams, norm_eps out of range, an unknown option,
            an out that overlaps an argument.
        NotImplementedError: implementation="helion" where the kernels do not support the call; out where an
            argument requires a gradient.

    Source: DeepSeek-V4's inference code, whose last collapse this is.
    """
    implementation = check_implementation(implementation)
    head = Head(fn, scale, base, norm_eps, eps, norm_weight)
    check_head(x, head, precision, eps_outside)
    direct = None
    if out is not None:
        wanted = {"out": ((*x.shape[:-2], x.size(-1)), x.dtype)}
        direct = out if check_out({"out": out}, wanted, x, {}, {"x": x, **head._asdict()}) else None
    pre = weights_of(x, head, implementation, precision, eps_outside)
    return written(collapsed(x, pre, None, implementation, direct), out)
