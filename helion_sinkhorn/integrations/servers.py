"""The common parts of the plug-ins for vLLM and SGLang: which calls they take, and the seam of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.post.api import check_update, hc_post
from helion_sinkhorn.ops.mhc.site.crossing import Crossing, check_site, crossing
from helion_sinkhorn.ops.mhc.site.prepare import hc_prepare
from helion_sinkhorn.runtime.checks import is_capturing, type_of
from helion_sinkhorn.runtime.torch_op import are_eager
from helion_sinkhorn.runtime.updates import Update

MOST_TOKENS = 64
"""V4's fused seams of up to so many tokens take less time here than by vLLM's kernels on an H200, C = 4096.

Seams of more tokens take longer, and the operators by themselves take as long or longer
(docs/integrations.md).  Other GPUs were not measured.
"""
MOST_PREPARED = 128
"""The same after `hc_prepare`."""
CALLS = "on", "all", "on,prepared", "all,prepared"


class Taken:
    """Which calls a plug-in takes; each plug-in has one global record, which its operators read."""

    every = prepares = False

    def __init__(self) -> None:
        self._prepared: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def set(self, calls: str) -> None:
        """Set from an argument or the environment."""
        if calls not in CALLS:
            what = repr(calls) if isinstance(calls, (int, str)) else type_of(calls)
            raise ValueError(
                f"calls, or HELION_SINKHORN_SERVE, is {what}; pass 'on' for seams of up to {MOST_TOKENS} "
                "tokens, or 'all' for every call; with ',prepared' if weights stay as they are; 'off' in the "
                "environment"
            )
        first, *others = calls.split(",")
        self.every, self.prepares = first == "all", bool(others)

    def takes(self, streams: torch.Tensor | None) -> bool:
        """Whether this package computes a call: of a fused seam with streams (..., n, C), or of a part."""
        most = MOST_PREPARED if self.prepares else MOST_TOKENS
        return self.every or (streams is not None and streams.shape[:-2].numel() <= most)

    def kept(self, fn: torch.Tensor, boundary: bool) -> torch.Tensor:
        """fn, after `hc_prepare` if that is asked for and possible."""
        if self.prepares and are_eager((fn,)) and not fn.is_inference() and not is_capturing():
            of_fn, now = self._prepared.setdefault(fn, {}), (fn._version, fn.data_ptr())
            if of_fn.get(boundary) != now:
                # parts made in inference mode could not be written again outside of it
                with torch.inference_mode(False):
                    hc_prepare(fn, boundary=boundary)
                of_fn[boundary] = now
        return fn

    def seam(
        self, update: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None, streams: torch.Tensor,
        parameters: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        constants: tuple[float, float, float, float, int], norm_weight: torch.Tensor | None,
        norm_eps: float | None, weights: torch.Tensor | None = None,
    ) -> Crossing:  # fmt: skip
        """Call `hc_boundary`, or without an update `hc_site` with the weights of the site before.

        The update is the sublayer's output, post (..., n) or (..., n, 1), and comb.  The constants come in
        the order of the servers.  norm_eps is not read without norm_weight.
        """
        rms_eps, pre_eps, eps, post_mult, iterations = constants
        options = SiteOptions(iterations, eps, rms_eps, post_mult, pre_eps)
        if norm_weight is not None:
            options = options._replace(y_norm_eps=norm_eps)
        fn, *rest = parameters
        site = SiteParameters(self.kept(fn, update is not None), *rest, y_norm_weight=norm_weight)
        if update is not None:
            f, post, comb = update
            update = Update(f, streams, per_stream(post, streams), comb)
            check_update(update)
        check_site(streams, site, weights)
        return crossing(update, streams, site, weights, options.checked(), "auto")

    def or_theirs(self, ours: Callable[..., Any], streams: str = "") -> Callable[..., Any]:
        """(theirs, *given, **options): `ours` if it is taken; a fused seam names its argument of streams."""
        at = [*inspect.signature(ours).parameters].index(streams) if streams else None

        @functools.wraps(ours)
        def call(theirs: Callable[..., Any], *given: Any, **options: Any) -> Any:
            of = None if at is None else options[streams] if streams in options else given[at]
            return (ours if self.takes(of) else theirs)(*given, **options)

        return call


def mhc_post(
    x: torch.Tensor, residual: torch.Tensor, post_layer_mix: torch.Tensor, comb_res_mix: torch.Tensor
) -> torch.Tensor:
    """The new streams, by `hc_post`; the arguments of both servers."""
    return hc_post(x, residual, per_stream(post_layer_mix, residual), comb_res_mix)


def per_stream(post: torch.Tensor, streams: torch.Tensor) -> torch.Tensor:
    """post as (..., n), which the servers pass as (..., n, 1)."""
    return post.reshape(streams.shape[:-1])


def check_parameters(where: str, theirs: Callable[..., Any], ours: Callable[..., Any], release: str) -> None:
    """Raise RuntimeError if a function takes other arguments than its replacement."""
    beside = "self", "theirs"
    names, wanted = (
        [name for name in inspect.signature(function).parameters if name not in beside]
        for function in (theirs, ours)
    )
    if names != wanted:
        raise RuntimeError(
            f"{where} takes ({', '.join(names)}), and the plug-in was written for {release}, where it takes "
            f"({', '.join(wanted)}); install {release}, or unset HELION_SINKHORN_SERVE"
        )
