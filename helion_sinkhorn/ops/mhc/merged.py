"""Merged streams, (..., n C): views as (..., n, C) on the way into a function, and back on the way out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from helion_sinkhorn.ops.mhc.out import Out
from helion_sinkhorn.ops.mhc.streams import MOST_STREAMS, streams_of
from helion_sinkhorn.runtime.checks import check_flag

Function = TypeVar("Function", bound=Callable[..., Any])
Count = Callable[[torch.Tensor, torch.Tensor], int]


def of_coefficients(x: torch.Tensor, given: torch.Tensor) -> int:
    """n of the merged streams x with coefficients (..., n); 0 if they do not belong together."""
    return given.shape[-1] if given.dim() and x.shape[:-1] == given.shape[:-1] else 0


def of_site(x: torch.Tensor, fn: torch.Tensor) -> int:
    """n of the merged streams x with a site's projection; 0 if they do not belong together."""
    return streams_of(fn.shape[0]) if fn.dim() == 2 and x.shape[-1:] == fn.shape[1:] else 0


def of_head(x: torch.Tensor, fn: torch.Tensor) -> int:
    """n of the merged streams x with the projection of a head; 0 if they do not belong together."""
    return fn.shape[0] if fn.dim() == 2 and x.shape[-1:] == fn.shape[1:] else 0


def joined(streams: torch.Tensor) -> torch.Tensor:
    """Streams (..., n, C) as (..., n C)."""
    return streams.flatten(-2)


def with_joined(site: Any) -> Any:
    """A Site or Crossing whose residual is (..., n C)."""
    return site._replace(residual=joined(site.residual))


def takes_merged(
    by: str, count: Count, back: Callable[[Any], Any] | None = None
) -> Callable[[Function], Function]:
    """Give a function of streams x its option `merged`: x is (..., n C) then, and so are resulting streams.

    The body never gets the option, which is in the signature for readers only.

    Args:
        by: the name of the argument that n follows from.
        count: returns n for x and that argument.
        back: merges the streams among the results, if there are any.
    """

    def decorate(function: Function) -> Function:
        names = [*inspect.signature(function).parameters]

        @functools.wraps(function)
        def call(*arguments: Any, merged: bool = False, **keywords: Any) -> Any:
            if merged is False:
                return function(*arguments, **keywords)
            check_flag("merged", merged)
            # Python reports arguments that are missing or given twice, and the function what is no tensor
            given = {**keywords, **dict(zip(names, arguments, strict=False))}
            x, other = given.get("x"), given.get(by)
            if not (isinstance(x, torch.Tensor) and isinstance(other, torch.Tensor)):
                return function(*arguments, **keywords)
            n = count(x, other)
            apart = _apart(x, by, other, n)
            if back is not None and keywords.get("out") is not None:
                keywords["out"] = _out_apart(keywords["out"], n, x.shape)
            if "x" in keywords:
                results = function(*arguments, **{**keywords, "x": apart})
            else:
                at = names.index("x")
                results = function(*arguments[:at], apart, *arguments[at + 1 :], **keywords)
            return results if back is None else back(results)

        return call

    return decorate


def _out_apart(out: Any, n: int, shape: torch.Size) -> Any:
    """`out` with its streams as (..., n, C) if they have the shape of x; others are refused later."""
    streams = out.residual if isinstance(out, Out) else out
    if not isinstance(streams, torch.Tensor) or streams.shape != shape:
        return out
    apart = streams.unflatten(-1, (n, shape[-1] // n))
    return out._replace(residual=apart) if isinstance(out, Out) else apart


def _apart(x: torch.Tensor, by: str, other: torch.Tensor, n: int) -> torch.Tensor:
    if not 1 <= n <= MOST_STREAMS or x.shape[-1] % n or not x.shape[-1]:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; with merged=True pass (..., n C), n streams of C entries, for "
            f"{by} of shape {tuple(other.shape)}"
        )
    return x.unflatten(-1, (n, x.shape[-1] // n))
