"""register(): compute the mHC operators of vLLM by this package, instead of its CustomOps.

vllm is no dependency of the package: only this module imports it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers import mhc

from helion_sinkhorn.integrations.servers import Taken, check_parameters, mhc_post
from helion_sinkhorn.mhc.functional import hc_head as head
from helion_sinkhorn.runtime.gradients import NAMESPACE

TESTED = "vllm==0.33.0"
taken = Taken()
METHOD = "forward_hip" if torch.version.hip else "forward_cuda"
_left: dict[str, Callable[..., Any]] = {}
"""vLLM's methods by the names of operators, for calls that are left to vLLM."""


def mhc_pre(
    residual: torch.Tensor, fn: torch.Tensor, hc_scale: torch.Tensor, hc_base: torch.Tensor, rms_eps: float,
    hc_pre_eps: float, hc_sinkhorn_eps: float, hc_post_mult_value: float, sinkhorn_repeat: int,
    n_splits: int = 1, norm_weight: torch.Tensor | None = None, norm_eps: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """post (..., n, 1), comb and the sublayer's input, by `hc_site`."""
    constants = rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat
    site = taken.seam(None, residual, (fn, hc_scale, hc_base), constants, norm_weight, norm_eps)
    return site.post.unsqueeze(-1), site.comb, site.y


def mhc_pre_fake(residual, *others):
    return _coefficients(residual), _combs(residual), _collapsed(residual)


def mhc_pre_delayed(
    residual: torch.Tensor, fn: torch.Tensor, hc_scale: torch.Tensor, hc_base: torch.Tensor, rms_eps: float,
    hc_pre_eps: float, hc_sinkhorn_eps: float, hc_post_mult_value: float, sinkhorn_repeat: int,
    pre_mix: torch.Tensor | None = None, x: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None, norm_eps: float = 1e-6,
    sublayer_out: torch.Tensor | None = None, post_layer_mix: torch.Tensor | None = None,
    comb_res_mix: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The streams, post, comb, the sublayer's input and pre, by `hc_boundary`; no streams without an update.

    An operator must not return an argument, so without an update its method returns the streams.
    """
    constants = rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat
    update = None if sublayer_out is None else (sublayer_out, post_layer_mix, comb_res_mix)
    # x is given if it is the embedding, of which all streams are copies: another, narrower fn projects it
    if x is not None or not taken.takes(None if update is None else residual):
        streams, *others = _left["mhc_pre_delayed"](
            residual, fn, hc_scale, hc_base, *constants, pre_mix, x, norm_weight, norm_eps,
            sublayer_out, post_layer_mix, comb_res_mix,
        )  # fmt: skip
    else:
        if pre_mix is None:
            first = torch.eye(1, residual.size(-2), device=residual.device)
            pre_mix = first.expand(residual.shape[:-1])
        site = fn, hc_scale, hc_base
        seam = taken.seam(update, residual, site, constants, norm_weight, norm_eps, pre_mix)
        streams, others = seam.residual, (seam.post.unsqueeze(-1), seam.comb, seam.y, seam.pre)
    return residual.new_empty(0) if update is None else streams, *others


def mhc_pre_delayed_fake(residual, *others):
    # arguments at the end that have their default values are not passed
    has_update = len(others) > 12 and others[12] is not None
    streams = torch.empty_like(residual) if has_update else residual.new_empty(0)
    post = _coefficients(residual)
    return streams, post, _combs(residual), _collapsed(residual), post.new_empty(residual.shape[:-1])


def hc_head(
    hidden_states: torch.Tensor, hc_fn: torch.Tensor, hc_scale: torch.Tensor, hc_base: torch.Tensor,
    rms_norm_eps: float, hc_eps: float,
) -> torch.Tensor:  # fmt: skip
    """The last collapse, by `hc_head`."""
    return head(hidden_states, hc_fn, hc_scale.reshape(1), hc_base, norm_eps=rms_norm_eps, eps=hc_eps)


def mhc_fused_post_pre(
    x: torch.Tensor, residual: torch.Tensor, post_layer_mix: torch.Tensor, comb_res_mix: torch.Tensor,
    fn: torch.Tensor, hc_scale: torch.Tensor, hc_base: torch.Tensor, rms_eps: float, hc_pre_eps: float,
    hc_sinkhorn_eps: float, hc_post_mult_value: float, sinkhorn_repeat: int, n_splits: int = 1,
    tile_n: int = 1, norm_weight: torch.Tensor | None = None, norm_eps: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The new streams, their post (..., n, 1), comb and the next sublayer's input, by `hc_boundary`."""
    constants = rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat
    update = x, post_layer_mix, comb_res_mix
    seam = taken.seam(update, residual, (fn, hc_scale, hc_base), constants, norm_weight, norm_eps)
    return seam.residual, seam.post.unsqueeze(-1), seam.comb, seam.y


def _coefficients(streams: torch.Tensor) -> torch.Tensor:
    return streams.new_empty((*streams.shape[:-1], 1), dtype=torch.float32)


def _combs(streams: torch.Tensor) -> torch.Tensor:
    return streams.new_empty((*streams.shape[:-1], streams.size(-2)), dtype=torch.float32)


def _collapsed(streams: torch.Tensor, *others: Any) -> torch.Tensor:
    return streams.new_empty((*streams.shape[:-2], streams.size(-1)))


def _or_left(ours: Callable[..., Any], streams: str = "") -> Callable[..., Any]:
    """`ours`, or vLLM's method where a call is left to it."""
    run = taken.or_theirs(ours, streams)

    @functools.wraps(ours)
    def call(*given: Any) -> Any:
        return run(_left[ours.__name__], *given)

    return call


OPERATORS = {
    "MHCPreOp": (_or_left(mhc_pre), mhc_pre_fake),
    "MHCPreDelayedOp": (mhc_pre_delayed, mhc_pre_delayed_fake),
    "MHCPostOp": (_or_left(mhc_post), lambda x, residual, *others: torch.empty_like(residual)),
    "HCHeadOp": (_or_left(hc_head), _collapsed),
    "MHCFusedPostPreOp": (
        _or_left(mhc_fused_post_pre, "residual"),
        lambda x, residual, *others: (torch.empty_like(residual), *mhc_pre_fake(residual)),
    ),
}
"""vLLM's classes, the operators that replace their methods for a GPU, and their fakes."""


def register(calls: str = "on") -> tuple[str, ...]:
    """Let vLLM's models compute their residual path by this package.

    vLLM calls it in each process if HELION_SINKHORN_SERVE is set; call it before the model is built to do so
    by hand.  A torch operator decides which of the two packages computes a call, so that vLLM's compiled
    graphs work for any number of tokens.

    Args:
        calls: "on" for fused seams of up to 64 tokens, which take less time than vLLM's on an H200; "all"
            for every call but the first layer's broadcast, and then a token's results do not depend on the
            tokens around it.  With ",prepared" each projection is split once, by `hc_prepare`, and "on" takes
            up to 128 tokens: for servers that do not load other weights while they run.

    Returns:
        The classes that are replaced.

    Numerical policy: as for `hc_site`, `hc_boundary`, `hc_post` and `hc_head`.

    Raises:
        ValueError: calls is none of these, or another package has replaced one of the classes.
        RuntimeError: a method of vLLM takes other arguments than in 0.33.0.  Nothing is replaced then.
    """
    taken.set(calls)
    replaced = {name: op_registry_oot[name] for name in OPERATORS if name in op_registry_oot}
    for name, made in replaced.items():
        if getattr(made, "taken", None) is not taken:
            raise ValueError(
                f"{name} of vLLM is replaced by {made.__module__} already; load only one of the plug-ins, "
                "by naming it in VLLM_PLUGINS"
            )
    if replaced:
        return tuple(OPERATORS)
    for name, (run, _) in OPERATORS.items():
        check_parameters(f"{METHOD} of {name}", getattr(getattr(mhc, name), METHOD), run, TESTED)
    for name, (run, fake) in OPERATORS.items():
        theirs = getattr(mhc, name)
        theirs.register_oot(_class_in_place_of(theirs, _operator(run, fake)), name=name)
    return tuple(OPERATORS)


def _operator(run: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """A torch operator, opaque to a compiler, for every device like the package's operators."""
    name = f"{NAMESPACE}::vllm_{run.__name__}"
    schema = torch.library.infer_schema(run, mutates_args=())
    torch.library.define(name, schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(name, "CompositeExplicitAutograd", run)
    torch.library.register_fake(name, fake)
    return getattr(getattr(torch.ops, NAMESPACE), f"vllm_{run.__name__}")


def _class_in_place_of(theirs: type[torch.nn.Module], operator: Callable[..., Any]) -> type[torch.nn.Module]:
    """A class of CustomOps whose method for this machine's GPU calls an operator."""
    name = operator._qualified_op_name.partition("::vllm_")[2]
    is_delayed = name == "mhc_pre_delayed"

    def __init__(self, *given: Any, **options: Any) -> None:
        theirs.__init__(self, *given, **options)
        # the method of the instance made last: instances have no state except parts that are all alike
        _left[name] = getattr(super(subclass, self), METHOD)

    def method(self, *given: Any, **options: Any) -> Any:
        results = operator(*given, **options)
        if is_delayed and results[0].dim() == 1:
            return given[0] if given else options["residual"], *results[1:]
        return results

    subclass = type(theirs.__name__, (theirs,), {"__init__": __init__, METHOD: method, "taken": taken})
    subclass.__module__ = __name__
    return subclass
