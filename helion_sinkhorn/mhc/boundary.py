"""hc_boundary and its module: from one sublayer of the mHC residual path to the next."""

from __future__ import annotations

import torch

from helion_sinkhorn.mhc.modules import HyperConnection, apart_for
from helion_sinkhorn.mhc.norm import with_norm
from helion_sinkhorn.ops.mhc.merged import of_site, takes_merged, with_joined
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.out import Out
from helion_sinkhorn.ops.mhc.post.api import check_update
from helion_sinkhorn.ops.mhc.site.api import Site
from helion_sinkhorn.ops.mhc.site.crossing import Crossing, check_site, crossing, crossing_into
from helion_sinkhorn.ops.mhc.split.given import Comb
from helion_sinkhorn.runtime.checks import check_implementation
from helion_sinkhorn.runtime.updates import Update


@takes_merged("fn", of_site, with_joined)
def hc_boundary(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    pre_next: torch.Tensor | None,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int = 20,
    eps: float = 1e-6,
    norm_eps: float = 1e-6,
    norm_weight: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
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
    comb_next: Comb | None = None,
    out: Out | None = None,
    implementation: str = "auto",
) -> Crossing:
    """Add a sublayer's output to the streams, and make the next sublayer's input and coefficients.

        streams = hc_post(f, x, post, comb, bias)
        (pre, post', comb') from streams, as `hc_site` makes them with fn, scale and base of the next site
        y_c = sum_i p_i streams_ic,  p = pre_next, or pre where that is None; or its RMSNorm
    DeepSeek-V4 collapses the streams with the weights of the same site: pass None for pre_next.
    DeepSeek-V4.1 takes the weights of the site before: pass the `pre` that came with post and comb.

    Args:
        f: (..., C), the sublayer's output, any floating dtype, as `hc_post` takes it.
        x: (..., n, C), the streams before it, which are the `residual` of the call that made post and comb;
            float32, bfloat16, float16 or float64.
        post: (..., n), any floating dtype.
        comb: (..., n, n), any floating dtype.
        pre_next: (..., n), any floating dtype, or None.
        fn: (n^2 + 2n, n C), the projection of the next site.  fn, scale to norm_weight, post_mult, pre_eps,
            post_eps, precision and eps_outside are the arguments of `hc_site` for that site.
        scale: (3,).
        base: (n^2 + 2n,).
        sinkhorn_iters: T, the number of iterations, as in `hc_split_sinkhorn`; with 0 comb is its logits.
        eps: added to Sinkhorn's softmax and denominators, and to pre; 0, or 1e-12 to 1.
        norm_eps: added to the mean square under the root, as in `hc_mixes`.
        norm_weight: (n C,), the weight of the norm, or None for 1.
        bias: (C,), any floating dtype, added to f, or None.
        post_mult: the factor of post, as in `hc_split_sinkhorn`.
        pre_eps: added to pre; None for eps.
        post_eps: added to post.
        comb_order: "io" or "oi", the order of comb and of the comb that is returned.
        precision: "float32" or "tf32" for the projection's products, as in `hc_mixes`.
        eps_outside: add norm_eps to the root and not under it.
        y_norm_weight: (C,), the weight of the RMSNorm before the sublayer, as in `hc_pre`: y is then its
            result; or None.
        y_norm_eps: added to the mean square of y.
        form: "deepseek" or "log", the form of Sinkhorn, as in `hc_split_sinkhorn`.
        merged: x is (..., n C), as some models keep streams, and so is the residual.
        comb_next: (..., n, n), any floating dtype, in comb_order, used instead of Sinkhorn's matrix: fn and
            base then have 2n rows; or a function that returns it from its logits (..., K), float32: fn and
            base then have 2n + K rows.  None for Sinkhorn.
        out: tensors that results are written into (`Out`), where nothing needs a gradient; None for new ones.
            Its residual may be x, its post and comb the arguments of these names, and its pre pre_next.
            Its mean receives the mean of the new streams, and its quantized y in float8 with scales.
        implementation: "auto", "helion" or "pytorch".

    Returns:
        y (..., C), pre (..., n), post (..., n), comb (..., n, n), and residual (..., n, C), the new streams.

    Numerical policy: as for `hc_post` and `hc_site`; the projection takes the rounded new streams.

    Raises:
        TypeError, ValueError, NotImplementedError: as the two functions do, and for an `out` that does not
            fit, overlaps another argument, or would have a gradient.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), and the order of
        collapses in DeepSeek-V4.1's inference code.
    """
    implementation = check_implementation(implementation)
    update = Update(f, x, post, comb, bias)
    site = SiteParameters(fn, scale, base, norm_weight, y_norm_weight, comb_next)
    check_boundary(update, x, site, pre_next)
    options = SiteOptions(
        sinkhorn_iters, eps, norm_eps, post_mult, pre_eps, post_eps, comb_order, precision, eps_outside,
        y_norm_eps, form,
    ).checked()  # fmt: skip
    given = update, x, site, pre_next, options, implementation
    return crossing(*given) if out is None else crossing_into(out, *given)


def check_boundary(
    update: Update | None, x: torch.Tensor, site: SiteParameters, weights: torch.Tensor | None
) -> None:
    """Raise unless the tensors fit an update, if there is one, and the site after it."""
    # the update is checked first, since otherwise an error about f or x would name fn
    if update is not None:
        check_update(update)
    check_site(x, site, weights)


class HyperBoundary(HyperConnection):
    """A HyperConnection after a sublayer: from that sublayer's output and the streams to the next input.

        y, pre, post, comb, streams = hc_boundary(f, streams, post, comb, pre, fn, scale, base, ...)
    A model of DeepSeek-V4.1's form is a chain of these modules: the first one has no sublayer before it and
    collapses the streams to stream 0, each other one takes the pre of the one before, and the collapse after
    the last is `hc_pre(streams, pre)`.  `HyperSublayer` does this around a sublayer.

    Args: as for HyperConnection; they are for the site after the boundary.

    Parameters, numerical policy, errors: as for HyperConnection and `hc_boundary`.

    Source: DeepSeek-V4.1's inference code.
    """

    def forward(
        self,
        f: torch.Tensor | None,
        streams: torch.Tensor,
        post: torch.Tensor | None = None,
        comb: torch.Tensor | None = None,
        pre: torch.Tensor | None = None,
        *,
        y_norm: torch.nn.Module | None = None,
        out: Out | None = None,
    ) -> Crossing:
        """Return the next sublayer's input, the new coefficients, and the new streams.

        Args:
            f: (..., C), the output of the sublayer before, or None at the first site.
            streams: (..., n, C).
            post: (..., n), or None with f.
            comb: (..., n, n), or None with f.
            pre: (..., n), the pre of the site before, as in V4.1; None for the pre of this site, as in V4.
            y_norm: the RMSNorm before the next sublayer, as `HyperConnection.enter` takes it.
            out: tensors that results are written into, as `hc_boundary` takes them; its residual (..., n, C).
                Without f only y, post, comb and quantized.
        """
        # if the two were exchanged, hc_boundary reports it
        if getattr(f, "ndim", 0) <= getattr(streams, "ndim", 0):
            streams = apart_for(self, streams)
        update = None if f is post is comb is None else Update(f, streams, post, comb)
        site, options = with_norm(self.site, self.options, y_norm, streams)
        check_boundary(update, streams, site, pre)
        given = update, streams, site, pre, options, check_implementation(self.implementation)
        crossed = crossing(*given) if out is None else crossing_into(out, *given)
        return with_joined(crossed) if self.merged else crossed

    def enter(self, streams: torch.Tensor, *, y_norm: torch.nn.Module | None = None) -> Site:
        """Raise TypeError: there is a sublayer before a boundary, whose output comes with the streams."""
        raise TypeError(
            "HyperBoundary has no enter; call it with the output of the sublayer before: "
            "boundary(f, streams, post, comb, pre). hc_coeffs makes the coefficients of the first site"
        )
