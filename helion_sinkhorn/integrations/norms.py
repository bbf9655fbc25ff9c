"""The norm before a sublayer of another package, computed in the collapse that makes the sublayer's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.integrations.replacement import digest
from helion_sinkhorn.mhc.norm import HOOKS


class Norm(NamedTuple):
    """What is known about a class of RMSNorms."""

    forward: Callable[..., torch.Tensor]
    """The known forward; a different one may compute something else."""
    keeps_dtype: bool
    """Whether the result keeps the dtype of its input with a weight of a wider dtype."""


Norms = Mapping[type[torch.nn.Module], Norm]


def norm_of(kind: type[torch.nn.Module], keeps_dtype: bool, *digests: str) -> Norms:
    """The row of a class, if its forward is of a tested version; otherwise its modules are called."""
    return {kind: Norm(kind.forward, keeps_dtype)} if digest(kind.forward) in digests else {}


def entered(
    norms: Norms, norm: torch.nn.Module, streams: torch.Tensor, enter: Callable[..., Any], *given: Any
) -> Any:
    """The results of enter(streams, *given), the input of a sublayer, with y after the norm.

    A known norm without hooks and wrappers is computed in the collapse; any other norm is called.
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
