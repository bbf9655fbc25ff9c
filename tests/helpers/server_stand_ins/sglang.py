"""A stand-in for SGLang 0.5.23: hooks around a function, the signatures of hooked functions, and records."""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import torch


class HookType(Enum):
    AROUND = "around"


class HookRegistry:
    _hooks: dict = {}  # noqa: RUF012

    @classmethod
    def register(cls, target, hook, hook_type):
        assert hook_type is HookType.AROUND
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls._hooks.items():
            module, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(module)
            theirs = getattr(owner, name)
            setattr(owner, name, functools.wraps(theirs)(functools.partial(hook, theirs)))


def mhc_pre(
    residual, fn, hc_scale, hc_base, rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value,
    sinkhorn_repeat, n_splits=1, n_splits_pre=32, *, norm_weight=None, norm_eps=None,
):  # fmt: skip
    raise NotImplementedError


def mhc_post(x, residual, post_layer_mix, comb_res_mix):
    raise NotImplementedError


def fused_hc_head(x, hc_fn, hc_scale, hc_base, norm_eps, hc_eps):
    raise NotImplementedError


HcTriplet = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
MHC_POST_MULT_VALUE = 2.0


class HcConfig(NamedTuple):
    mult: int
    sinkhorn_iters: int
    eps: float
    rms_eps: float
    hidden: int
    pre_from_prev: bool
    cp_prefill: bool


class HcSubLayer(NamedTuple):
    cfg: HcConfig
    fn: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor
    norm: Any
    tf32_parts: Any | None = None
    bf16_parts: Any | None = None


class HcNormed(NamedTuple):
    rows: torch.Tensor


@dataclasses.dataclass
class HcState:
    streams: Any
    pre: torch.Tensor | None = None
    input: Any | None = None
    stats: HcTriplet | None = None


class HcNextBoundary(NamedTuple):
    norm: Any
    accepts_mxfp8: bool
    norm_fusable: bool
    hc: HcSubLayer | None = None
    accepts_mxfp8_deepgemm: bool = False
    mega_moe_input: Callable[[torch.Tensor], Any] | None = None


def _post_fusion(hc, y, residual, coefficients, next):
    raise NotImplementedError
