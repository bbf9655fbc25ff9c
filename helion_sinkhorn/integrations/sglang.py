"""register(): compute the mHC functions of SGLang by this package, through its hooks.

sglang is no dependency of the package: only this module imports it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from helion_sinkhorn.integrations.servers import Taken, check_parameters, mhc_post
from helion_sinkhorn.mhc.functional import hc_head

TESTED = "sglang==0.5.23"
taken = Taken()


def mhc_pre(
    residual: torch.Tensor, fn: torch.Tensor, hc_scale: torch.Tensor, hc_base: torch.Tensor, rms_eps: float,
    hc_pre_eps: float, hc_sinkhorn_eps: float, hc_post_mult_value: float, sinkhorn_repeat: int,
    n_splits: int = 1, n_splits_pre: int = 32, *, norm_weight: torch.Tensor | None = None,
    norm_eps: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """post (..., n, 1), comb and the sublayer's input, by `hc_site`."""
    constants = rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat
    site = taken.seam(None, residual, (fn, hc_scale, hc_base), constants, norm_weight, norm_eps)
    return site.post.unsqueeze(-1), site.comb, site.y


def fused_hc_head(
    x: torch.Tensor, hc_fn: torch.Tensor, hc_scale: torch.Tensor, hc_base: torch.Tensor, norm_eps: float,
    hc_eps: float,
) -> torch.Tensor:  # fmt: skip
    """The last collapse, by `hc_head`."""
    return hc_head(x, hc_fn, hc_scale.reshape(1), hc_base, norm_eps=norm_eps, eps=hc_eps)


def post_fusion(
    theirs: Callable[..., Any], hc: Any, y: torch.Tensor, residual: torch.Tensor,
    coefficients: tuple[torch.Tensor, torch.Tensor, torch.Tensor], next: Any,
) -> Any:  # fmt: skip
    """The seam of V4.1 by `hc_boundary`, where SGLang's own kernel would take it on the GPU that it needs."""
    # only SGLang's kernel fills a target for quantised experts
    is_open = next is not None and next.hc is not None and next.norm_fusable and next.mega_moe_input is None
    if not is_open or hc.cfg.cp_prefill or not taken.takes(residual):
        return theirs(hc, y, residual, coefficients, next)
    from sglang.srt.models.deepseek_v4_mhc import MHC_POST_MULT_VALUE, HcNormed, HcState

    pre, post, comb = coefficients
    site, norm = next.hc, next.norm
    constants = site.cfg.rms_eps, site.cfg.eps, site.cfg.eps, MHC_POST_MULT_VALUE, site.cfg.sinkhorn_iters
    seam = taken.seam(
        (y, post, comb), residual, (site.fn, site.scale, site.base), constants,
        norm.weight, norm.variance_epsilon, pre,
    )  # fmt: skip
    return HcState(seam.residual, pre, HcNormed(seam.y), (seam.pre, seam.post, seam.comb))


HOOKS = {
    "sglang.kernels.ops.layernorm.mhc.mhc_pre": taken.or_theirs(mhc_pre),
    "sglang.kernels.ops.layernorm.mhc.mhc_post": taken.or_theirs(mhc_post),
    "sglang.kernels.ops.layernorm.mhc_head.fused_hc_head": taken.or_theirs(fused_hc_head),
    "sglang.srt.models.deepseek_v4_mhc._post_fusion": post_fusion,
}


def register(calls: str = "on") -> tuple[str, ...]:
    """Let SGLang's models compute their residual path by this package.

    SGLang calls it in each process if HELION_SINKHORN_SERVE is set, and applies the hooks after that.

    Args:
        calls: "on" for fused seams of up to 64 tokens, which only V4.1 on Blackwell has; "all" for every
            call but V4.1's quantised input, and then a token's results do not depend on the tokens around it.
            ",prepared" after either as for vLLM.

    Returns:
        The functions that are hooked.

    Numerical policy: as for `hc_site`, `hc_boundary`, `hc_post` and `hc_head`.

    Raises:
        ValueError: calls is none of these.
        RuntimeError: a function of SGLang takes other arguments than in 0.5.23.  Nothing is hooked then.
    """
    taken.set(calls)
    for target, hook in HOOKS.items():
        module, _, name = target.rpartition(".")
        theirs = getattr(pkgutil.resolve_name(module), name)
        check_parameters(target, theirs, hook, TESTED)
    for target, hook in HOOKS.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    return tuple(HOOKS)
