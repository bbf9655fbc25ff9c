"""The RMSNorm module before a sublayer, computed in the collapse that makes the sublayer's input."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.streams import check_norm_eps
from helion_sinkhorn.runtime.checks import type_of

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_hf_hook",
)  # fmt: skip


def with_norm(
    site: SiteParameters, options: SiteOptions, norm: torch.nn.Module | None, streams: torch.Tensor
) -> tuple[SiteParameters, SiteOptions]:
    """A site's parameters and options joined with a norm's, so that the norm need not be called.

    The norm is an RMSNorm by the name of its class.  An eps of None means, as in torch.nn.RMSNorm, twice the
    unit roundoff of float32, or of float64 for float64 streams.  A weight that is added to 1, as in Gemma, is
    not recognised.
    """
    if norm is None:
        return site, options
    name = next((name for name in ("eps", "variance_epsilon") if hasattr(norm, name)), None)
    is_norm = isinstance(norm, torch.nn.Module) and type(norm).__name__.endswith("RMSNorm")
    if not is_norm or not hasattr(norm, "weight") or name is None or getattr(norm, "bias", None) is not None:
        raise TypeError(
            f"y_norm is {type_of(norm)}; pass an RMSNorm: a torch.nn.Module with weight (C,), with eps or "
            "variance_epsilon, without a bias, and of a class whose name ends with RMSNorm"
        )
    weight, eps = norm.weight, getattr(norm, name)
    if eps is None:
        eps = torch.finfo(torch.float64 if streams.dtype == torch.float64 else torch.float32).eps
    check_norm_eps("y_norm.eps", eps)
    if weight is None:
        weight = streams.new_ones(streams.size(-1), dtype=torch.float32)
    return site._replace(y_norm_weight=weight), options._replace(y_norm_eps=float(eps))


def is_plain(norm: torch.nn.Module, size: int) -> bool:
    """Whether a norm's call does nothing but an RMSNorm of `size` entries, which a collapse can compute."""
    if type(norm) is not torch.nn.RMSNorm or norm.normalized_shape != (size,):
        return False
    return "forward" not in norm.__dict__ and not any(getattr(norm, name, None) for name in HOOKS)
