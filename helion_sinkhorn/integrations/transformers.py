"""patch(model): compute the mHC residual path of transformers' DeepseekV4 and GLM-5.3 by this package.

transformers is no dependency of the package: only this module imports it.
"""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.integrations.norms import entered, norm_of
from helion_sinkhorn.integrations.replacement import Known, Package, Patched, replace, restore
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


NORMS = {
    **norm_of(deepseek.DeepseekV4RMSNorm, True, "2bb6b7773e389841"),
    **norm_of(glm.Glm5NextTextRMSNorm, False, "63763e8c742dc599"),
}


# These are subclasses of the classes that they replace, so that transformers' `_init_weights` knows them, and
# the wrapping policies of accelerate and FSDP, which search by name, find them.
class DeepseekV4HyperConnection(HyperConnection, deepseek.DeepseekV4HyperConnection):
    """`nn.HyperConnection` on a module that transformers made."""


class DeepseekV4HyperHead(HyperHead, deepseek.DeepseekV4HyperHead):
    """`nn.HyperHead` on a module that transformers made."""


class DeepseekV4DecoderLayer(deepseek.DeepseekV4DecoderLayer):
    """A decoder layer whose streams are updated by `hc_post`: float32 coefficients, one rounding.

    Its sites compute one gradient of the streams (`hc_site`), while autograd would add three.

    The layer of transformers rounds post and comb to the dtype of the streams first, and then the product,
    the matrix product and their sum.
    """

    def forward(
        self, hidden_states: torch.Tensor, input_ids: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        site = entered(NORMS, self.input_layernorm, hidden_states, self.attn_hc.enter)
        attended, _ = self.self_attn(site.y, **kwargs)
        streams = hc_post(attended, site.residual, site.post, site.comb)
        site = entered(NORMS, self.post_attention_layernorm, streams, self.ffn_hc.enter)
        output = self.mlp(site.y, input_ids=input_ids)
        return hc_post(output, site.residual, site.post, site.comb)


class Glm5NextTextHyperConnection(HyperConnection, glm.Glm5NextTextHyperConnection):
    """`nn.HyperConnection` on a module that transformers made."""


class Glm5NextTextDecoderLayer(glm.Glm5NextTextDecoderLayer):
    """A decoder layer of GLM-5.3 whose streams are updated by `hc_post`, as in DeepseekV4DecoderLayer."""

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None, past_key_values: Any = None,
        use_cache: bool | None = False, position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        prev_topk_indices: torch.Tensor | None = None, **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        # the name since transformers 5.24; the attentions name it differently, and get it by position
        cache = kwargs.pop("cache", past_key_values)
        site, chosen = entered(NORMS, self.input_layernorm, hidden_states, self.attn_hc.enter), None
        if self.block_type == "linear_attention":
            attended = self.self_attn(site.y, cache, attention_mask, **kwargs)
        else:
            attended, _, chosen = self.self_attn(
                site.y, attention_mask, cache, prev_topk_indices, position_ids=position_ids,
                use_cache=use_cache, position_embeddings=position_embeddings, **kwargs,
            )  # fmt: skip
        streams = hc_post(attended, site.residual, site.post, site.comb)
        site = entered(NORMS, self.post_attention_layernorm, streams, self.ffn_hc.enter)
        output = self.mlp(site.y)
        return hc_post(output, site.residual, site.post, site.comb), chosen


def connection_like(module: Any, **options: Any) -> HyperConnection:
    """An `nn.HyperConnection` on "meta" that computes what a module of transformers does."""
    n, iters, eps = module.hc_mult, module.hc_sinkhorn_iters, module.hc_eps
    width, norm_eps = module.fn.size(1) // n, module.input_norm.eps
    return HyperConnection(width, n, iters, eps, norm_eps, device="meta", **options)


def head_like(module: Any, **options: Any) -> HyperHead:
    """An `nn.HyperHead` on "meta" that computes what a module of transformers does."""
    n, norm_eps = module.hc_mult, module.input_norm.eps
    return HyperHead(module.hc_fn.size(1) // n, n, module.eps, norm_eps, device="meta", **options)


CONNECTION, HEAD, NORM = (
    {"forward": (digest,)} for digest in ("b42919bad4c937d7", "81e9adf9c02b338a", "db1bcbbbbe91c788")
)
PACKAGE = Package(
    "transformers",
    transformers.__version__,
    TESTED,
    "a DeepseekV4 or GLM-5.3 model of transformers",
    connections=(
        Known(deepseek.DeepseekV4HyperConnection, DeepseekV4HyperConnection, CONNECTION, connection_like),
        Known(glm.Glm5NextTextHyperConnection, Glm5NextTextHyperConnection, CONNECTION, connection_like),
    ),
    # the head of GLM-5.3, the mean of the streams, stays: one operator of PyTorch, without parameters
    heads=(Known(deepseek.DeepseekV4HyperHead, DeepseekV4HyperHead, HEAD, head_like),),
    layers=(
        Known(deepseek.DeepseekV4DecoderLayer, DeepseekV4DecoderLayer, {"forward": ("13b7e174d870e669",)}),
        Known(
            glm.Glm5NextTextDecoderLayer,
            Glm5NextTextDecoderLayer,
            {"forward": ("3c2857b4155688df", "d7a6690c442a3cfb")},
        ),
    ),
    norms=(
        Known(deepseek.DeepseekV4UnweightedRMSNorm, None, NORM),
        Known(glm.Glm5NextTextUnweightedRMSNorm, None, NORM),
    ),
    others={
        **dict.fromkeys(
            ("HYV4HyperConnection", "HYV4VLHyperConnection"),
            "the sites of Hy-V4 have no comb; hc_mixes, hc_pre and hc_post(..., comb=None) compute them",
        ),
        "Qwen4ExpTextGatedResidual": (
            "the sites of Qwen3.8-Flash-Next have a gate for each column, and no comb"
        ),
    },
)


def patch(
    model: torch.nn.Module,
    *,
    layers: bool = True,
    precision: str = "float32",
    implementation: str = "auto",
) -> Patched:
    """Turn the mHC modules of a DeepseekV4 or GLM-5.3 model into modules of this package, in place.

    Every DeepseekV4HyperConnection or Glm5NextTextHyperConnection becomes an `nn.HyperConnection` and every
    DeepseekV4HyperHead an `nn.HyperHead`; the head of GLM-5.3 is the mean of the streams and stays.  They
    stay the same objects with the same Parameter objects, so optimizers, state dicts, hooks and transformers'
    `init_weights` stay valid.  Every DeepseekV4DecoderLayer or Glm5NextTextDecoderLayer then updates its
    streams by `hc_post`, and its two norms are computed in the collapse before them (`hc_pre`); a norm with a
    hook, a wrapper or another class is called as before.  `unpatch` undoes all of it.

    A forward that is wrapped on the instance, as by accelerate's `dispatch_model`, stays wrapped.  Within
    such a layer a wrapper or hook of a site sees four results: post, comb, collapsed (after the norm, if it
    is computed there), and the residual.

    Args:
        model: a module that contains them, on any device, such as a DeepseekV4ForCausalLM or a
            Glm5NextForConditionalGeneration.
        layers: False leaves the update of the streams to transformers, with its roundings.
        precision: the precision of the projection, as in `hc_mixes`.
        implementation: "auto", "helion" or "pytorch", for the modules.

    Returns:
        How many modules of each kind were changed.

    Numerical policy: in float32 the results equal the original's except for the order of sums.  In
        bfloat16 they are closer to float64, since the original rounds coefficients, products and sums, and
        `hc_post` rounds once.  Under autocast the projection stays in float32; the original's does not.

    Raises:
        TypeError: model is no module.
        ValueError: there is no such module, or one is patched already, is sharded by FSDP, has other code
            than in transformers 5.23.0 and 5.24.0, or has a wrapper or hook that would be lost.  Nothing is
            changed then.
    """
    options = {"precision": precision, "implementation": implementation}
    deviation = _initializer_range(model)
    if deviation is not None:
        options["initializer_range"] = deviation
    return replace(PACKAGE, model, layers, **options)


def unpatch(model: torch.nn.Module) -> Patched:
    """Undo `patch`: give the modules the classes of transformers again, with their present Parameter objects.

    Returns:
        How many modules of each kind were changed.

    Raises:
        TypeError: model is no module.
        ValueError: the model is not patched, or one of its modules is sharded by FSDP or has a wrapper that
            would be lost.  Nothing is changed then.
    """
    return restore(PACKAGE, model)


def _initializer_range(model: torch.nn.Module) -> float | None:
    """The standard deviation of a new projection by the model's config."""
    # GLM-5.3 uses the default, whatever its config says
    is_glm = isinstance(model, glm.Glm5NextPreTrainedModel)
    return None if is_glm else getattr(getattr(model, "config", None), "initializer_range", None)
