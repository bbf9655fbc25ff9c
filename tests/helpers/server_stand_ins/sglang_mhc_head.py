"""A stand-in for SGLang 0.5.23's kernels/ops/layernorm/mhc_head.py: the signature of the hooked function."""

from __future__ import annotations

import torch


def fused_hc_head(
    x: torch.Tensor,
    hc_fn: torch.Tensor,
    hc_scale: torch.Tensor,
    hc_base: torch.Tensor,
    norm_eps: float,
    hc_eps: float,
) -> torch.Tensor:
    raise NotImplementedError
