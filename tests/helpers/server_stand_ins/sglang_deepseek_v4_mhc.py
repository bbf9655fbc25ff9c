"""A stand-in for SGLang 0.5.23's models/deepseek_v4_mhc.py: its records, and the signature of a seam."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

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
