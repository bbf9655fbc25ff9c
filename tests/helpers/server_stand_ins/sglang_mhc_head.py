"""A stand-in for SGLang 0.5.23's kernels/ops/layernorm/mhc_head.py: the signature of the hooked function."""

from __future__ import annotations


def fused_hc_head(x, hc_fn, hc_scale, hc_base, norm_eps, hc_eps):
    raise NotImplementedError
