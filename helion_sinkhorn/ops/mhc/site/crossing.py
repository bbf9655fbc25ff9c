"""crossing(...): what hc_site and hc_boundary have in common, and whether kernels or parts make a call."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

import torch

from helion_sinkhorn.ops.mhc.mixes.api import check_tensors, projected
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.out import NONE, Out, check_fields, count_change, tensors_of, written
from helion_sinkhorn.ops.mhc.post.api import mixed
from helion_sinkhorn.ops.mhc.pre.api import Norm, check_norm, collapsed
from helion_sinkhorn.ops.mhc.pre.quantized import eager as of_quantize
from helion_sinkhorn.ops.mhc.pre.quantized import torch_op as quantize_op
from helion_sinkhorn.ops.mhc.pre.quantized.layouts import FLOOR, kind_of
from helion_sinkhorn.ops.mhc.pre.quantized.space import GROUPS
from helion_sinkhorn.ops.mhc.site import torch_op
from helion_sinkhorn.ops.mhc.site.boundary import composed
from helion_sinkhorn.ops.mhc.site.boundary import torch_op as boundary_op
from helion_sinkhorn.ops.mhc.split.api import SMALLEST_NORM_EPS, check_parameters, split
from helion_sinkhorn.ops.mhc.split.forms import in_parts
from helion_sinkhorn.ops.mhc.split.given import check_parameters_beside, coefficients_beside
from helion_sinkhorn.ops.mhc.split.limits import beyond_kernels
from helion_sinkhorn.ops.mhc.streams import MOST_STREAMS, check_projection, evenly, for_projection, streams_of
from helion_sinkhorn.runtime.checks import (
    DTYPES,
    check_same_device,
    check_tensor,
    implementation_for,
    refuse_shape,
)
from helion_sinkhorn.runtime.export import named_for_export
from helion_sinkhorn.runtime.tokens import has_dtensor
from helion_sinkhorn.runtime.torch_op import PLAIN
from helion_sinkhorn.runtime.updates import Update, updated


class Crossing(NamedTuple):
    """A Site whose collapse took other weights than its own pre, which the next collapse takes."""

    y: torch.Tensor
    """(..., C), the sublayer's input."""
    pre: torch.Tensor
    """(..., n), the weights of this site."""
    post: torch.Tensor
    """(..., n)."""
    comb: torch.Tensor
    """(..., n, n)."""
    residual: torch.Tensor
    """(..., n, C), the new streams, to pass to `hc_post`."""


named_for_export(Crossing)


def crossing(
    update: Update | None,
    x: torch.Tensor,
    site: SiteParameters,
    weights: torch.Tensor | None,
    options: SiteOptions,
    implementation: str,
    out: Out = NONE,
    direct: bool = False,
) -> Crossing:
    """hc_site of the streams x, or of what `update` makes of them, collapsed by `weights` if they are given.

    An update has the same x.  The caller has checked the tensors by `check_site` and `check_update`, and the
    options by `SiteOptions.checked`.  Kernels write into the tensors of `out` if they may (`direct`), or else
    only its mean and quantized are written.
    """
    fn, scale, base, norm_weight, y_weight, comb = site
    serves = implementation_for(implementation, "x", x)
    # otherwise each part chooses its own implementation
    has_kernels = comb is None and options.has_kernels
    alike = has_kernels and (serves == "pytorch" or not beyond_parts(options, *x.shape[-2:]))
    tensors = x, *site[:5], weights, *(update or ())
    computed = serves == "helion" and alike and options.norm_eps >= SMALLEST_NORM_EPS
    computed = computed and not has_dtensor(*tensors)
    summed = update is not None and alike and not computed and composed.loses_digits(x, update[-1])
    if update is not None and not (computed or summed):
        x = mixed(update, options.comb_order, implementation)
        update = None
    if computed or summed:
        if norm_weight is not None:
            fn = fn.float() * norm_weight.float()
        if update is None:
            given = x, fn, scale, base, weights, y_weight, *options.of_site
            if not direct:
                return with_others(Crossing(*torch_op.run(*given)), out, implementation)
            count_change(*tensors_of(out))
            return Crossing(*torch_op.forward(*given, out=out)[:4], x)
        given = *update, weights, fn, scale, base, y_weight
        if summed:
            streams, *results = composed.Composed.apply(*given, *options.of_site, serves)
        elif direct:
            count_change(*tensors_of(out))
            streams, *results = boundary_op.forward(*given, *options.of_site, out=out)
            out = NONE
        else:
            streams, *results = boundary_op.apply(*given, *options.of_site)
        updated(streams, update, options.comb_order, serves)
        return with_others(Crossing(*results[:4], streams), out, implementation)
    pre, post, comb = coefficients(x, site, options, implementation)
    norm = None if y_weight is None else Norm(y_weight, options.y_norm_eps)
    y = collapsed(x, pre if weights is None else weights, norm, implementation)
    return with_others(Crossing(y, pre, post, comb, x), out, implementation)


def crossing_into(
    out: Out,
    update: Update | None,
    x: torch.Tensor,
    site: SiteParameters,
    weights: torch.Tensor | None,
    options: SiteOptions,
    implementation: str,
) -> Crossing:
    """`crossing` with its results in `out`; raise what `check_fields` raises for it."""
    given = {**site._asdict(), "x": x, "pre_next": weights, "comb_next": site.comb}
    over = dict.fromkeys(("y", "post", "comb", "quantized"), "")
    if update is not None:
        given |= update._asdict()
        over |= {"pre": "pre_next", "post": "post", "comb": "comb", "residual": "x", "mean": ""}
    direct = check_fields(out, x, over, given)
    results = crossing(update, x, site, weights, options, implementation, out, direct)
    return Crossing(*[written(t, getattr(out, name)) for name, t in results._asdict().items()])


def with_others(results: Crossing, out: Out, implementation: str) -> Crossing:
    """The same, after what else is wanted of it is written: the mean of the streams, as hc_pre makes it and
    the kernel of hc_boundary, and y as quantize rounds it.
    """
    streams, y = results.residual, results.y
    if out.mean is not None:
        written(collapsed(streams, evenly(streams), None, implementation), out.mean)
    if out.quantized is not None:
        kind = kind_of(y.shape, out.quantized)
        # of other groups, and of float64, quantize has no kernel
        asked = "pytorch" if kind[0] not in GROUPS or implementation == "pytorch" else "auto"
        run = of_quantize.forward if implementation_for(asked, "y", y) == "pytorch" else quantize_op.call
        for t, into in zip(run(y, *kind, FLOOR), out.quantized, strict=True):
            written(t, into)
    return results


def coefficients(
    x: torch.Tensor, site: SiteParameters, options: SiteOptions, implementation: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre, post, comb) of the streams x by two operators; the caller has checked as for `crossing`."""
    fn, scale, base, norm_weight, _, comb = site
    norm = options.norm_eps, options.eps_outside, options.precision
    mixes = projected(for_projection(x), fn, norm_weight, norm, implementation)
    given = mixes, scale, base, options.of_split(x.shape[-2])
    if comb is not None:
        return coefficients_beside(*given, comb)
    if not options.has_kernels:
        return in_parts(*given, options.form, implementation, None)
    return split(*given, implementation)


def beyond_parts(options: SiteOptions, n: int, columns: int) -> bool:
    """Whether the kernels of a part do not take the call."""
    return beyond_kernels(n, options.sinkhorn_iters, options.eps) is not None or columns == 1


_kind, _device = attrgetter("dtype", "layout", "is_nested"), attrgetter("device")
_is_compiling = torch.compiler.is_compiling
KINDS = frozenset((dtype, torch.strided, False) for dtype in DTYPES)


def _fit(*tensors: torch.Tensor) -> bool:
    """Whether x, fn, scale and base are plain tensors that fit each other: one look instead of all checks."""
    if _is_compiling() or not PLAIN.issuperset(map(type, tensors)):
        return False
    x, fn, scale, base = tensors
    if not KINDS.issuperset(map(_kind, tensors)) or len({*map(_device, tensors)}) > 1 or x.dim() < 2:
        return False
    n, c = x.shape[-2:]
    rows = n * (n + 2)
    return (
        1 <= n <= MOST_STREAMS
        and c > 0
        and (fn.shape, scale.shape, base.shape) == ((rows, n * c), (3,), (rows,))
    )


def check_site(x: torch.Tensor, site: SiteParameters, weights: torch.Tensor | None = None) -> None:
    """Raise unless the tensors belong to one site, and weights collapse its streams."""
    fn, scale, base, norm_weight, y_weight, comb = site
    if norm_weight is y_weight is comb is weights is None and _fit(x, fn, scale, base):
        return
    check_tensor("x", x, "(..., n, C)")
    check_tensor("fn", fn, "(n^2 + 2n, n C)")
    if comb is None:
        check_projection(x, fn, lambda n: n * (n + 2), streams_of)
        check_parameters(scale, base, x.shape[-2], "x", x)
    else:
        check_parameters_beside(x, fn, scale, base, comb)
    check_tensors(x, fn, norm_weight)
    check_norm(x, y_weight)
    if weights is not None:
        check_tensor("pre_next", weights, "(..., n)")
        check_same_device("pre_next", weights, "x", x)
        wanted = tuple(x.shape[:-1])
        if weights.shape != wanted:
            refuse_shape("pre_next", weights, wanted, f"for these streams pass {wanted}")
