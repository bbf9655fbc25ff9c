"""The modules of NeMo Automodel that `patch` takes: their classes, our replacements, and digests.

nemo_automodel is no dependency of the package: only this module imports it.
"""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.integrations.norms import entered, norm_of
from helion_sinkhorn.integrations.replacement import Known, Package, digest
from helion_sinkhorn.mhc.modules import apart_for
from helion_sinkhorn.nn import HyperBoundary, HyperConnection, HyperHead
from helion_sinkhorn.ops.mhc.post.api import hc_post
from helion_sinkhorn.ops.mhc.pre.api import hc_pre
from helion_sinkhorn.ops.mhc.site.crossing import Crossing, check_site, coefficients

TESTED = ("0.7.0",)
try:
    import nemo_automodel
    from nemo_automodel.components.models.common.utils import Float32RMSNorm
    from nemo_automodel.components.models.deepseek_v4 import layers as v4
    from nemo_automodel.components.models.deepseek_v4 import model as v4_model
    from nemo_automodel.components.models.deepseek_v4 import optimized_kernels
    from nemo_automodel.components.models.deepseek_v41 import layers as v41
    from nemo_automodel.components.models.deepseek_v41 import model as v41_model
except ImportError as error:
    raise ImportError(
        "helion_sinkhorn.integrations.automodel needs a NeMo Automodel that has DeepSeek-V4 and V4.1: "
        f"pip install nemo_automodel=={TESTED[-1]}"
    ) from error


NORMS = {
    **norm_of(torch.nn.RMSNorm, False, digest(torch.nn.RMSNorm.forward)),
    **norm_of(Float32RMSNorm, True, "8de3766f95c37557"),
    **norm_of(v41.DeepseekV41RMSNorm, True, "d61eab37dccb048d"),
}


# Automodel's classes come first among the bases, since they initialise the parameters.
class DeepseekV4HyperConnection(v4.DeepseekV4HyperConnection, HyperConnection):
    """`nn.HyperConnection` on a module of Automodel; called by itself it returns pre, post and comb."""

    def forward(
        self, hidden_streams: torch.Tensor, *, with_residual: bool = False,
        y_norm: torch.nn.Module | None = None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        if with_residual:
            return HyperConnection.forward(self, hidden_streams, with_residual=True, y_norm=y_norm)
        return self.compute_weights(hidden_streams)

    def compute_weights(
        self, hidden_streams: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return mix(self, hidden_streams)


class DeepseekV4HyperHead(v4.DeepseekV4HyperHead, HyperHead):
    """`nn.HyperHead` on a module that Automodel made."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return HyperHead.forward(self, x)


class DeepseekV4Block(v4_model.DeepseekV4Block):
    """A layer whose streams are updated by `hc_post`: float32 coefficients, one rounding."""

    def forward(
        self, x: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor],
        position_ids: torch.Tensor | None = None,
        position_embeddings_compress: tuple[torch.Tensor, torch.Tensor] | None = None,
        rotary_compress: torch.nn.Module | None = None, attention_mask: torch.Tensor | None = None,
        padding_mask: torch.Tensor | None = None, input_ids: torch.Tensor | None = None,
        vision_token_types: torch.Tensor | None = None, **kwargs: Any,
    ) -> torch.Tensor:  # fmt: skip
        # a mask of two dimensions says which tokens are real; one of four is added to the scores
        if padding_mask is None and attention_mask is not None and attention_mask.dim() == 2:
            padding_mask = ~attention_mask.bool()
        site = entered(NORMS, self.input_layernorm, x, self.attn_hc.enter)
        attended, _ = self.self_attn(
            hidden_states=site.y, position_embeddings=position_embeddings,
            attention_mask=attention_mask, position_embeddings_compress=position_embeddings_compress,
            rotary_compress=rotary_compress, position_ids=position_ids,
            vision_token_types=vision_token_types, **kwargs,
        )  # fmt: skip
        streams = hc_post(attended, site.residual, site.post, site.comb)
        site = entered(NORMS, self.post_attention_layernorm, streams, self.ffn_hc.enter)
        gate = getattr(self.mlp, "gate", None)
        if isinstance(gate, v4_model.DeepseekV4VisionGate):
            gate.set_routing_context(input_ids, vision_token_types)
        elif self.is_hash_routing_layer and isinstance(gate, v4_model.DeepseekV4HashGate):
            gate.set_input_ids(input_ids)
        output = self.mlp(site.y, padding_mask)
        return hc_post(output, site.residual, site.post, site.comb)


class DeepseekV41HyperConnection(v41.DeepseekV41HyperConnection, HyperBoundary):
    """`nn.HyperBoundary` on a module that Automodel made; called with only the streams it returns their mix.

    The layers of the draft model need this, which call its `collapse` and `expand`.
    """

    @property
    def hc_mult(self) -> int:
        return self.streams

    def forward(
        self, hidden_states: torch.Tensor, pre_mix: torch.Tensor | None = None,
        output: torch.Tensor | None = None, before: Crossing | None = None,
        y_norm: torch.nn.Module | None = None,
    ) -> v41.DeepseekV41Mix | Crossing:  # fmt: skip
        """The mix of the streams, or with pre_mix the input of a sublayer.

        The `output` of the sublayer `before` is added to the streams first.
        """
        if pre_mix is None:
            return v41.DeepseekV41Mix(*mix(self, hidden_states))
        post, comb = (None, None) if before is None else (before.post, before.comb)
        return HyperBoundary.forward(self, output, hidden_states, post, comb, pre_mix, y_norm=y_norm)

    @staticmethod
    def collapse(hidden_states: torch.Tensor, pre_mix: torch.Tensor) -> torch.Tensor:
        return hc_pre(hidden_states, pre_mix)

    @staticmethod
    def expand(output: torch.Tensor, residual: torch.Tensor, mix: v41.DeepseekV41Mix) -> torch.Tensor:
        return hc_post(output, residual, mix.post, mix.comb)


class DeepseekV41Block(v41_model.DeepseekV41Block):
    """A layer with `hc_boundary` between attention and experts, which reads the streams once."""

    def forward(
        self, hidden_states: torch.Tensor, pre_mix: torch.Tensor, state: Any, *, position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None, image_mask: torch.Tensor | None = None,
        engram_hash_ids: torch.Tensor | None = None, cp_group: Any = None,
        packed_seq_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:  # fmt: skip
        if pre_mix.dtype != torch.float32:
            raise TypeError(
                f"pre_mix is {pre_mix.dtype}; pass it in torch.float32, as it was returned: a policy of "
                "FSDP2 needs cast_forward_inputs=False and output_dtype=None"
            )
        there = None if attention_mask is None else attention_mask.bool()
        if self.engram is not None:
            if engram_hash_ids is None:
                raise ValueError(
                    "engram_hash_ids is None; pass the hashes that the Engram of this layer reads"
                )
            text = None if image_mask is None else ~image_mask
            masks = [mask for mask in (text, there) if mask is not None]
            both = None if not masks else masks[0] if len(masks) == 1 else masks[0] & masks[1]
            hidden_states = self.engram(hidden_states, engram_hash_ids, token_mask=both)
        site = entered(NORMS, self.attn_norm, hidden_states, self.attn_hc, pre_mix)
        attended = self.attn(
            site.y, position_ids=position_ids, state=state, attention_mask=attention_mask,
            cp_group=cp_group, packed_seq_ids=packed_seq_ids,
        )  # fmt: skip
        update = site.pre, attended.hidden_states, site
        site = entered(NORMS, self.ffn_norm, site.residual, self.ffn_hc, *update)
        gate = self.ffn.gate
        if isinstance(gate, v4_model.DeepseekV4VisionGate):
            # 0 for a token of an image, -1 for a token of text
            gate.set_routing_context(None, None if image_mask is None else image_mask.to(torch.int32) - 1)
        output = self.ffn(site.y, None if there is None else ~there)
        return hc_post(output, site.residual, site.post, site.comb), site.pre, attended.state


def mix(site: HyperConnection, streams: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(pre, post, comb) of a site."""
    streams = apart_for(site, streams)
    check_site(streams, site.site)
    return coefficients(streams, site.site, site.options, site.implementation)


def connection_like(module: Any, **options: Any) -> HyperConnection:
    """An `nn.HyperConnection` on "meta" that computes what a module of V4 does."""
    n, iters, eps = module.hc_mult, module.hc_sinkhorn_iters, module.hc_eps
    return HyperConnection(module.fn.size(1) // n, n, iters, eps, module.norm_eps, device="meta", **options)


def head_like(module: Any, **options: Any) -> HyperHead:
    """An `nn.HyperHead` on "meta" that computes what a module of V4 does."""
    n = module.hc_mult
    return HyperHead(module.hc_fn.size(1) // n, n, module.eps, module.norm_eps, device="meta", **options)


def boundary_like(module: Any, **options: Any) -> HyperBoundary:
    """An `nn.HyperBoundary` on "meta" that computes what a module of V4.1 does."""
    n = module.streams
    return HyperBoundary(
        module.fn.size(1) // n, n, module.iterations, module.eps, module.norm_eps, device="meta", **options
    )


PACKAGE = Package(
    "nemo_automodel",
    # the wheel of a release adds the commit that it was built from
    nemo_automodel.__version__.partition("+")[0],
    TESTED,
    "a DeepSeek-V4 or V4.1 of NeMo Automodel",
    connections=(
        Known(
            v4.DeepseekV4HyperConnection,
            DeepseekV4HyperConnection,
            {"forward": ("b7d9d82a395256ef",), "compute_weights": ("bcf1792588b70fb5",)},
            connection_like,
        ),
        Known(
            v41.DeepseekV41HyperConnection,
            DeepseekV41HyperConnection,
            {
                "forward": ("32f05a9de3a07c4c",),
                "collapse": ("8a26341911fb047b",),
                "expand": ("41ac04d15facd759",),
            },
            boundary_like,
        ),
    ),
    heads=(
        Known(v4.DeepseekV4HyperHead, DeepseekV4HyperHead, {"forward": ("d97bb4b60b06baa6",)}, head_like),
    ),
    layers=(
        Known(v4_model.DeepseekV4Block, DeepseekV4Block, {"forward": ("57c7d2c4ec4eaa34",)}),
        Known(v41_model.DeepseekV41Block, DeepseekV41Block, {"forward": ("c70887ef9adc9f2e",)}),
    ),
    functions=((optimized_kernels, "sinkhorn_normalize_torch", ("e2f067a607c03cf4",)),),
    others={
        "Glm5NextHyperConnection": (
            "the sites of GLM-5.3 have base and scale in a module of their own; hc_site and hc_post take them"
        ),
        "Qwen3_8_FlashNextHyperConnection": (
            "the sites of Qwen3.8-Flash-Next have a gate for each column, and no comb"
        ),
    },
)
