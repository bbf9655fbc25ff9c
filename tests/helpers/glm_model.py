"""A GLM-5.3 of transformers small enough for a CPU."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration


@torch.no_grad()
def make_model(vocabulary: int, **options: Any) -> Glm5NextForConditionalGeneration:
    """Two layers, one of linear attention and an MLP, one of indexed attention and experts.

    base and scale of the sites are drawn, or comb would have nearly equal entries.
    """
    torch.manual_seed(0)
    text = {
        "vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "indexed_attention"],
        "mlp_layer_types": ["dense", "sparse"], "indexer_types": ["full", "full"], "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "kv_lora_rank": 16,
        "q_lora_rank": 16, "v_head_dim": 8, "qk_nope_head_dim": 8, "index_topk": 8, "index_head_dim": 8,
        "index_n_heads": 2, "index_kpool": 4, "linear_head_dim": 8, "linear_num_heads": 4,
        "pad_token_id": 0, "max_position_embeddings": 64, **options,
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32,
        "projection_intermediate_size": 16,
    }  # fmt: skip
    config = Glm5NextConfig(text_config=text, vision_config=vision, experts_implementation="eager")
    made = Glm5NextForConditionalGeneration(config)
    for name, parameter in made.named_parameters():
        if name.endswith(("_hc.base", "_hc.scale")):
            parameter.add_(torch.randn(parameter.shape))
    return made
