"""The norm before a sublayer of another package, in the collapse that makes the sublayer's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.integrations.digests import digest
from helion_sinkhorn.mhc.norm import HOOKS


class Norm(NamedTuple):
    """What is known of a class of RMSNorms."""

    forward: Callable[..., torch.Tensor]
    """Its forward: another one may compute something else."""
    keeps_dtype: bool
    """Whether a weight of a wider dtype makes no wider result."""


Norms = Mapping[type[torch.nn.Module], Norm]


def norm_of(kind: type[torch.nn.Module], keeps_dtype: bool, *digests: str) -> Norms:
    """The row of a class, if its forward is one of the versions tested; otherwise its modules are called."""
    return {kind: Norm(kind.forward, keeps_dtype)} if digest(kind.forward) in digests else {}


def entered(
    norms: Norms, norm: torch.nn.Module, streams: torch.Tensor, enter: Callable[..., Any], *given: Any
) -> Any:
    """The way into a sublayer, enter(streams, *given), its y after the norm.

    A norm that is known, and has no hook and no wrapper, is a part of the collapse; any other is called.
    """
    if _is_plain(norms, norm, streams):
        return enter(streams, *given, y_norm=norm)
    site = enter(streams, *given)
    return site._replace(y=norm(site.y))


def _is_plain(norms: Norms, norm: torch.nn.Module, streams: torch.Tensor) -> bool:
    known = norms.get(type(norm))
    if known is None or type(norm).forward is not known.forward or "forward" in norm.__dict__:
        return False
    if any(getattr(norm, name, None) for name in HOOKS):
        return False
    weight = norm.weight
    same = weight.dtype == streams.dtype
    return tuple(weight.shape) == tuple(streams.shape[-1:]) and (same or known.keeps_dtype)
