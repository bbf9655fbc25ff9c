"""HyperConnectionModule: the mHC site of Megatron Core's layers, computed by this package.

megatron-core is no dependency of the package: only this module imports it.
"""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.mhc.float32 import Float32Parameters
from helion_sinkhorn.mhc.functional import hc_expand
from helion_sinkhorn.mhc.main_grad import into_main_grad, mark_sequence_parallel
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.post.api import hc_post
from helion_sinkhorn.ops.mhc.pre.api import hc_pre
from helion_sinkhorn.ops.mhc.site.crossing import check_site, coefficients, crossing
from helion_sinkhorn.runtime.checks import check_implementation, check_tensor

try:
    from megatron.core.transformer.module import MegatronModule
except ImportError as error:
    raise ImportError(
        "helion_sinkhorn.integrations.megatron needs Megatron Core: pip install megatron-core"
    ) from error

EPS = 1e-6
"""What is added in Sinkhorn, to pre, and to the root of the norm, unless the config says otherwise."""


class Projection(Float32Parameters):
    """The weight (n^2 + 2n, n C) of Megatron's `mapping_proj`, under its name."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(rows, columns, dtype=torch.float32))
        torch.nn.init.xavier_uniform_(self.weight)


class HyperConnectionModule(MegatronModule, Float32Parameters):
    """A site of the mHC residual path with the methods that Megatron Core's layers call.

    It replaces Megatron's class of the same name in the spec of a layer, under the keys
    `self_attention_hyper_connection` and `mlp_hyper_connection`, and its parameters have the same names.
    Streams are merged, (s, b, n C).
    In the form of DeepSeek-V4, r = 1 / (rms + 1e-6).  With config.mhc_single_pass, the form of V4.1,
    r = 1 / sqrt(q + config.layernorm_epsilon), and each collapse takes the weights of the site before.

    Args:
        config: a TransformerConfig with hidden_size, num_residual_streams, mhc_sinkhorn_iterations,
            mhc_init_gating_factor, sequence_parallel and, in newer versions, mhc_single_pass, mhc_epsilon and
            layernorm_epsilon.
        layer_number: accepted as by Megatron's class; not used.
        precision: the precision of the projection, as in `hc_mixes`.
        implementation: "auto", "helion" or "pytorch".

    Parameters, float32 in a Float16Module too: mapping_proj.weight (n^2 + 2n, n C), alpha_pre, alpha_post and
        alpha_res (1,), bias (n^2 + 2n,).  With config.sequence_parallel each has the attribute
        `sequence_parallel`, by which Megatron sums its gradient over the ranks.  Gradients are written to
        `grad`, from which Megatron's DistributedDataParallel adds them to `main_grad`.  With
        config.gradient_accumulation_fusion the gradient of the weight is added to main_grad directly.

    Numerical policy: as for `hc_site` and `hc_post`: coefficients stay float32, which Megatron rounds to the
        dtype of the streams.

    Raises:
        ValueError: streams are not (s, b, n C), or a manager of recomputation is given; use
            `recompute_streams` to keep fewer streams.

    Source: NVIDIA's Megatron-LM, branch dev, megatron/core/transformer/hyper_connection.py, whose interface
        this is.
    """

    def __init__(
        self, config: Any, layer_number: int = 1, *, precision: str = "float32", implementation: str = "auto"
    ) -> None:
        super().__init__(config)
        self.layer_number = layer_number
        self.n, self.hidden_size = config.num_residual_streams, config.hidden_size
        self.single_pass = getattr(config, "mhc_single_pass", False)
        eps = config.mhc_epsilon if self.single_pass else EPS
        norm_eps = config.layernorm_epsilon if self.single_pass else EPS
        own = {"precision": precision, "eps_outside": not self.single_pass}
        self.options = SiteOptions(config.mhc_sinkhorn_iterations, eps, norm_eps, **own).checked()
        self.implementation = check_implementation(implementation)
        rows = self.n * (self.n + 2)
        self.mapping_proj = Projection(rows, self.n * self.hidden_size)
        factor = torch.full((1,), config.mhc_init_gating_factor, dtype=torch.float32)
        self.alpha_pre, self.alpha_post, self.alpha_res = (
            torch.nn.Parameter(factor.clone()) for _ in range(3)
        )
        self.bias = torch.nn.Parameter(torch.zeros(rows, dtype=torch.float32))
        for parameter in self.parameters():
            # the Float16Module of branch dev reads this attribute, and a release's asks the module
            parameter.keep_in_fp32 = True
        if config.sequence_parallel:
            mark_sequence_parallel(self.parameters())
        self.fuse_wgrad_accumulation = getattr(config, "gradient_accumulation_fusion", False)

    @property
    def site(self) -> SiteParameters:
        scale = torch.cat([self.alpha_pre, self.alpha_post, self.alpha_res])
        fn = self.mapping_proj.weight
        return SiteParameters(into_main_grad(fn) if self.fuse_wgrad_accumulation else fn, scale, self.bias)

    def forward(
        self, hidden_states: torch.Tensor, mhc_recompute_manager: Any = None, output_slot: Any = None,
        mhc_state: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
        """The input of a sublayer, and what `fused_h_res_h_post_bda` takes.

        Args:
            hidden_states: (s, b, n C), the streams.
            mhc_recompute_manager: None.
            output_slot: None.
            mhc_state: with mhc_single_pass, a record whose `pre_mix` has the weights of the site before, or
                None at the first site, which takes stream 0.  This site stores its weights there.

        Returns:
            The input (s, b, C), h_res (s, b, n, n), h_post (s, b, n) and the residual (s, b, n C).
        """
        _refuse_recomputation(mhc_recompute_manager, output_slot)
        streams, weights = self._streams(hidden_states), None
        if self.single_pass:
            if mhc_state is None:
                raise ValueError(
                    "mhc_state is None; with mhc_single_pass pass the record of the running forward"
                )
            if torch._C._current_graph_task_id() != -1:
                raise RuntimeError(
                    "mhc_single_pass runs again in a backward, where mhc_state has the weights of the last "
                    "site; leave this site out of activation checkpointing, or use recompute_streams"
                )
            weights = mhc_state.pre_mix
            if weights is None:
                weights = torch.eye(1, self.n, device=streams.device).expand(*streams.shape[:-1])
        site = self.site
        check_site(streams, site, weights)
        y, pre, post, comb, residual = crossing(
            None, streams, site, weights, self.options, self.implementation
        )
        if self.single_pass:
            mhc_state.pre_mix = pre
        return y, comb, post, residual.flatten(-2)

    def compute_mappings(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """h_pre (s, b, n), h_post (s, b, n) and h_res (s, b, n, n) of streams (s, b, n C)."""
        streams, site = self._streams(x), self.site
        check_site(streams, site)
        return coefficients(streams, site, self.options, self.implementation)

    def aggregate(
        self, x: torch.Tensor, h_pre: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The sum (s, b, C) of streams (s, b, n C), weighted by h_pre (s, b, n)."""
        _refuse_recomputation(None, out)
        return hc_pre(x, h_pre, merged=True, implementation=self.implementation)

    def fused_h_res_h_post_bda(
        self, h_res: torch.Tensor, original_residual: torch.Tensor, h_post: torch.Tensor,
        layer_output_with_bias: tuple[torch.Tensor, torch.Tensor | None], dropout_prob: float,
        training: bool, fused: bool, manager: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        """The new streams (s, b, n C): h_res^T residual + dropout(h_post (output + bias)).

        Args:
            h_res: (s, b, n, n).
            original_residual: (s, b, n C), the residual that `forward` returned.
            h_post: (s, b, n).
            layer_output_with_bias: (s, b, C), and (C,) or None.
            dropout_prob: if it is not 0 and training is set, PyTorch computes the sublayer's part.
            training: whether dropout is applied.
            fused: accepted as by Megatron's method; not used.
            manager: None.
        """
        _refuse_recomputation(manager, None)
        output, bias = layer_output_with_bias
        given = original_residual, h_post, h_res
        how = {"merged": True, "implementation": self.implementation}
        if not (training and dropout_prob):
            return hc_post(output, *given, bias, **how)
        mixed = hc_post(torch.zeros_like(output), *given, **how)
        added = h_post[..., None] * (output if bias is None else output + bias)[..., None, :]
        dropped = torch.nn.functional.dropout(added.flatten(-2), dropout_prob)
        return (mixed + dropped).to(mixed.dtype)

    @staticmethod
    def input_expand(x: torch.Tensor, n: int) -> torch.Tensor:
        """n copies (s, b, n C) of hidden states (s, b, C)."""
        return hc_expand(x, n, merged=True)

    @staticmethod
    def output_contract(x: torch.Tensor, n: int) -> torch.Tensor:
        """The mean (s, b, C) of n streams (s, b, n C)."""
        return x.unflatten(-1, (n, -1)).mean(-2)

    def _streams(self, x: torch.Tensor) -> torch.Tensor:
        """(s, b, n C) as (s, b, n, C)."""
        check_tensor("hidden_states", x, "(s, b, n C)")
        if x.dim() != 3 or x.shape[-1] != self.n * self.hidden_size:
            raise ValueError(
                f"hidden_states has shape {tuple(x.shape)}; pass (s, b, {self.n * self.hidden_size}), "
                f"{self.n} merged streams of {self.hidden_size}"
            )
        return x.unflatten(-1, (self.n, self.hidden_size))


def _refuse_recomputation(manager: Any, slot: Any) -> None:
    if manager is not None or slot is not None:
        raise ValueError(
            "a manager or a slot of mHC's recomputation is given; leave 'mhc' out of recompute_modules, and "
            "run the forward in helion_sinkhorn.recompute_streams, which keeps fewer streams"
        )
