"""A stand-in for vLLM 0.33.0: the registry of classes that replace others, and layers/mhc.py, its methods'
signatures, and whom they call."""

from __future__ import annotations

import torch

op_registry_oot: dict[str, type] = {}


class CustomOp(torch.nn.Module):
    def __new__(cls, *args, **kwargs):
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    def forward(self, *args, **kwargs):
        return self.forward_cuda(*args, **kwargs)

    @classmethod
    def register_oot(cls, _decorated_op_cls=None, name: str | None = None):
        assert name not in op_registry_oot, f"Duplicate op name: {name}"
        op_registry_oot[name] = _decorated_op_cls


class MHCPreOp(CustomOp):
    def forward_cuda(
        self, residual, fn, hc_scale, hc_base, rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value,
        sinkhorn_repeat, n_splits=1, norm_weight=None, norm_eps=0.0,
    ):  # fmt: skip
        return torch.ops.vllm.mhc_pre_tilelang(
            residual, fn, hc_scale, hc_base, rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value,
            sinkhorn_repeat, n_splits, norm_weight, norm_eps,
        )  # fmt: skip


class MHCPreDelayedOp(CustomOp):
    def __init__(self):
        super().__init__()
        self._post = MHCPostOp()

    def forward_cuda(
        self, residual, fn, hc_scale, hc_base, rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value,
        sinkhorn_repeat, pre_mix=None, x=None, norm_weight=None, norm_eps=1e-6, sublayer_out=None,
        post_layer_mix=None, comb_res_mix=None,
    ):  # fmt: skip
        if sublayer_out is not None:
            residual = self._post(sublayer_out, residual, post_layer_mix, comb_res_mix)
        return residual, *torch.ops.vllm.mhc_pre_delayed_tilelang(
            residual, fn, hc_scale, hc_base, rms_eps, hc_pre_eps, hc_sinkhorn_eps, hc_post_mult_value,
            sinkhorn_repeat, pre_mix, x, norm_weight, norm_eps,
        )  # fmt: skip


class MHCPostOp(CustomOp):
    def forward_cuda(self, x, residual, post_layer_mix, comb_res_mix):
        return torch.ops.vllm.mhc_post_tilelang(x, residual, post_layer_mix, comb_res_mix)


class HCHeadOp(CustomOp):
    def forward_cuda(self, hidden_states, hc_fn, hc_scale, hc_base, rms_norm_eps, hc_eps):
        return torch.ops.vllm.hc_head_fused_kernel_tilelang(
            hidden_states, hc_fn, hc_scale, hc_base, rms_norm_eps, hc_eps
        )


class MHCFusedPostPreOp(CustomOp):
    def forward_cuda(
        self, x, residual, post_layer_mix, comb_res_mix, fn, hc_scale, hc_base, rms_eps, hc_pre_eps,
        hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat, n_splits=1, tile_n=1, norm_weight=None,
        norm_eps=0.0,
    ):  # fmt: skip
        return torch.ops.vllm.mhc_fused_post_pre_tilelang(
            x, residual, post_layer_mix, comb_res_mix, fn, hc_scale, hc_base, rms_eps, hc_pre_eps,
            hc_sinkhorn_eps, hc_post_mult_value, sinkhorn_repeat, n_splits, tile_n, norm_weight, norm_eps,
        )  # fmt: skip
