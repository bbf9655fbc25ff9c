"""A stand-in for SGLang 0.5.23's kernels/ops/layernorm/mhc.py: the signatures of the hooked functions."""

from __future__ import annotations


def mhc_pre(
    residual, fn, hc_scale, hc_base, rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value,
    sinkhorn_repeat, n_splits=1, n_splits_pre=32, *, norm_weight=None, norm_eps=None,
):  # fmt: skip
    raise NotImplementedError


def mhc_post(x, residual, post_layer_mix, comb_res_mix):
    raise NotImplementedError
