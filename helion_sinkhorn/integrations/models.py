"""The models of transformers that `patch` takes: their classes, what takes their place, and digests.

transformers is no dependency of the package: this module alone imports it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from helion_sinkhorn.nn import HyperConnection, HyperHead
from helion_sinkhorn.ops.mhc.post.api import hc_post

TESTED = ("5.23.0", "5.24.0")
try:
    import transformers
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek
    from transformers.models.glm5_next import modeling_glm5_next as glm
except ImportError as error:
    raise ImportError(
        "helion_sinkhorn.integrations.transformers needs a transformers that has DeepseekV4 and GLM-5.3: "
        f"pip install transformers=={TESTED[-1]}"
    ) from error
INSTALLED = transformers.__version__


# These are subclasses of what they replace: transformers' `_init_weights` knows them, and the wrapping
# policies of accelerate and FSDP, which look for names, find them.
class DeepseekV4HyperConnection(HyperConnection, deepseek.DeepseekV4HyperConnection):
    """`nn.HyperConnection` on a module that transformers made."""


class DeepseekV4HyperHead(HyperHead, deepseek.DeepseekV4HyperHead):
    """`nn.HyperHead` on a module that transformers made."""


class DeepseekV4DecoderLayer(deepseek.DeepseekV4DecoderLayer):
    """A decoder layer whose streams are updated by `hc_post`: float32 coefficients, one rounding.

    Its sites make one gradient of the streams (`hc_site`), where autograd would add three.

    The layer of transformers rounds post and comb to the dtype of the streams first, and then the product,
    the matrix product and their sum.
    """

    def forward(
        self, hidden_states: torch.Tensor, input_ids: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        site = self.attn_hc.enter(hidden_states)
        attended, _ = self.self_attn(self.input_layernorm(site.y), **kwargs)
        streams = hc_post(attended, site.residual, site.post, site.comb)
        site = self.ffn_hc.enter(streams)
        output = self.mlp(self.post_attention_layernorm(site.y), input_ids=input_ids)
        return hc_post(output, site.residual, site.post, site.comb)


class Glm5NextTextHyperConnection(HyperConnection, glm.Glm5NextTextHyperConnection):
    """`nn.HyperConnection` on a module that transformers made."""


class Glm5NextTextDecoderLayer(glm.Glm5NextTextDecoderLayer):
    """A decoder layer of GLM-5.3 whose streams are updated by `hc_post`, as in DeepseekV4DecoderLayer."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        prev_topk_indices: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        # the name since transformers 5.24; the attentions have others, and take it by position
        cache = kwargs.pop("cache", past_key_values)
        site, chosen = self.attn_hc.enter(hidden_states), None
        y = self.input_layernorm(site.y)
        if self.block_type == "linear_attention":
            attended = self.self_attn(y, cache, attention_mask, **kwargs)
        else:
            attended, _, chosen = self.self_attn(
                y, attention_mask, cache, prev_topk_indices, position_ids=position_ids, use_cache=use_cache,
                position_embeddings=position_embeddings, **kwargs,
            )  # fmt: skip
        streams = hc_post(attended, site.residual, site.post, site.comb)
        site = self.ffn_hc.enter(streams)
        output = self.mlp(self.post_attention_layernorm(site.y))
        return hc_post(output, site.residual, site.post, site.comb), chosen


class Known(NamedTuple):
    """A class of transformers whose forward method `patch` replaces."""

    theirs: type[torch.nn.Module]
    ours: type[torch.nn.Module] | None
    """The class that takes its place; None of a norm, which is computed where it was called."""
    digests: tuple[str, ...]
    """`digest` of the method in the versions TESTED."""


class Model(NamedTuple):
    """What `patch` changes in one model of transformers."""

    connection: Known
    head: Known | None
    layer: Known
    norm: Known


MODELS = (
    Model(
        Known(deepseek.DeepseekV4HyperConnection, DeepseekV4HyperConnection, ("b42919bad4c937d7",)),
        Known(deepseek.DeepseekV4HyperHead, DeepseekV4HyperHead, ("81e9adf9c02b338a",)),
        Known(deepseek.DeepseekV4DecoderLayer, DeepseekV4DecoderLayer, ("13b7e174d870e669",)),
        Known(deepseek.DeepseekV4UnweightedRMSNorm, None, ("db1bcbbbbe91c788",)),
    ),
    Model(
        Known(glm.Glm5NextTextHyperConnection, Glm5NextTextHyperConnection, ("b42919bad4c937d7",)),
        # the mean of the streams stays: one operator of PyTorch, without parameters
        None,
        Known(
            glm.Glm5NextTextDecoderLayer, Glm5NextTextDecoderLayer, ("3c2857b4155688df", "d7a6690c442a3cfb")
        ),
        Known(glm.Glm5NextTextUnweightedRMSNorm, None, ("db1bcbbbbe91c788",)),
    ),
)
KNOWN = {known.theirs: known for model in MODELS for known in model if known}
BACK = {known.ours: theirs for theirs, known in KNOWN.items() if known.ours}
CONNECTIONS, HEADS, LAYERS = (
    tuple(known.theirs for known in column if known) for column in list(zip(*MODELS, strict=True))[:3]
)

OTHERS = {
    **dict.fromkeys(
        ("HYV4HyperConnection", "HYV4VLHyperConnection"),
        "the sites of Hy-V4 have no comb; hc_mixes, hc_pre and hc_post(..., comb=None) compute them",
    ),
    "Qwen4ExpTextGatedResidual": "the sites of Qwen3.8-Flash-Next have a gate for each column, and no comb",
}
"""Why `patch` does not take a model that has such a module."""
