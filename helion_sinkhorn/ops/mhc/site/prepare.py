"""hc_prepare(...): what every call makes of a site's projection, made once."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.mixes.api import PRECISIONS
from helion_sinkhorn.ops.mhc.prepared import prepare
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS
from helion_sinkhorn.ops.mhc.site.torch_op import implementations
from helion_sinkhorn.ops.mhc.streams import streams_of
from helion_sinkhorn.runtime.checks import (
    check_flag,
    check_option,
    check_tensor,
    implementation_for,
    is_capturing,
)
from helion_sinkhorn.runtime.torch_op import are_eager
from helion_sinkhorn.runtime.views import parameter


def hc_prepare(fn: torch.Tensor, *, boundary: bool = False, precision: str = "float32") -> None:
    """Split the projection of a site into the parts that kernels multiply, once for all calls with this fn.

    Without it every call of `hc_site` and `hc_boundary` splits fn in a launch of its own.  Calls with this
    very tensor, also calls of the module that holds it, use the kept parts, with the same bits; so do CUDA
    graphs that are captured afterwards.  If fn is changed in place, the next call notices and splits fn
    itself, but a graph does not.  Call hc_prepare again after a change: it writes into the same memory, so
    that no graph has to be captured again.  Changes through `fn.data` are not noticed.

    Args:
        fn: (n^2 + 2n, n C), any floating dtype, as `hc_site` takes it; its parts are kept while it lives.
        boundary: False for `hc_site`, True for `hc_boundary`.
        precision: "float32" or "tf32", as in the calls.

    Nothing is kept where no kernel takes fn, as on a CPU or in float64.  Calls with a norm_weight multiply it
    by fn and use no kept parts.  The parts take 6 bytes for each entry of fn, or 4 with "tf32".

    Raises:
        TypeError: fn is no floating-point tensor, boundary no flag.
        ValueError: fn is no projection of 1 to 16 streams, or is an inference tensor, which does not count
            its changes; an unknown precision.
        NotImplementedError: fn is a DTensor, or the call is compiled.
        RuntimeError: a CUDA graph is being captured.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), section 4.2.
    """
    check_tensor("fn", fn, "(n^2 + 2n, n C)")
    check_flag("boundary", boundary)
    check_option("precision", precision, PRECISIONS)
    n = streams_of(fn.shape[0]) if fn.dim() == 2 else 0
    if not n or fn.shape[1] % n or not fn.shape[1]:
        raise ValueError(
            f"fn has shape {tuple(fn.shape)}; pass (n^2 + 2n, n C), the projection of a site with n streams"
        )
    if fn.is_inference():
        raise ValueError(
            "fn is an inference tensor, which counts no changes; make it outside torch.inference_mode()"
        )
    if not are_eager((fn,)):
        raise NotImplementedError("hc_prepare takes a plain tensor; call it outside of compiled functions")
    if implementation_for("auto", "fn", fn) == "pytorch":
        return
    if is_capturing():
        raise RuntimeError(
            "a CUDA graph is being captured, and calls outside of it would read parts that only its replay "
            "makes; call hc_prepare before the capture"
        )
    from helion_sinkhorn.ops.mhc.mixes import launch as of_mixes
    from helion_sinkhorn.ops.mhc.site.boundary import launch as of_boundary
    from helion_sinkhorn.ops.mhc.site.launch import call_for

    # the parts are the same for streams of any dtype
    call = call_for(n, fn.shape[1] // n, torch.bfloat16, precision)
    with torch.no_grad(), implementations.launching(fn):
        rows = parameter(fn)
        if boundary and n <= MOST_STREAMS:
            prepare(fn, of_boundary.LAYOUT, call.mixes.parts, lambda: of_boundary.split_of(rows, call))
        else:
            prepare(fn, of_mixes.LAYOUT, call.mixes.parts, lambda: of_mixes.split(rows, call.mixes))
