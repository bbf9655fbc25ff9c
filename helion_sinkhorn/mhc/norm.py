"""The RMSNorm before a sublayer, a module of its own, as a part of the collapse that makes its input."""

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
    """A site's parameters and options with those of a norm, whose call is left out.

    Args:
        norm: a module with `weight` (C,) or None, and `eps` or `variance_epsilon`, of which None stands for
            the unit roundoff of the streams' dtype, as in torch.nn.RMSNorm; None for no norm.

    Raises:
        TypeError: it is no such module.
    """
    if norm is None:
        return site, options
    name = next((name for name in ("eps", "variance_epsilon") if hasattr(norm, name)), None)
    if not isinstance(norm, torch.nn.Module) or not hasattr(norm, "weight") or name is None:
        raise TypeError(
            f"y_norm is {type_of(norm)}; pass an RMSNorm: a torch.nn.Module with weight (C,), and eps or "
            "variance_epsilon"
        )
    weight, eps = norm.weight, getattr(norm, name)
    eps = torch.finfo(streams.dtype).eps if eps is None else eps
    check_norm_eps("y_norm.eps", eps)
    if weight is None:
        weight = torch.ones_like(streams[..., 0, :].flatten(0, -2)[0], dtype=torch.float32)
    return site._replace(y_norm_weight=weight), options._replace(y_norm_eps=float(eps))


def is_plain(norm: torch.nn.Module, size: int) -> bool:
    """Whether a norm's call does nothing but the RMSNorm of so many entries, which a collapse can do."""
    if type(norm) is not torch.nn.RMSNorm or norm.normalized_shape != (size,):
        return False
    return "forward" not in norm.__dict__ and not any(getattr(norm, name, None) for name in HOOKS)
