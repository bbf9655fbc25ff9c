"""Put this package's residual path into a DeepseekV4 or a GLM-5.3 of transformers, and take it out again.

    pip install transformers==5.23.0
    python examples/patch_transformers.py          # 10 s on one CPU core
    python examples/patch_transformers.py --model glm-5.3

The model here is small and has random weights; one from `from_pretrained` is patched by the same line.
Parameters stay the same objects under the same names, so optimizers and checkpoints of the original stay
valid.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

MODELS = "deepseek-v4", "glm-5.3"


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    name, does = "python examples/patch_transformers.py", __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(name, description=does)
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--length", type=int, default=32)
    args = parser.parse_args(words)
    for name, value in vars(args).items():
        if isinstance(value, int) and value < 1:
            parser.error(f"argument --{name}: {value} is no int of at least 1")
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    parsed()

import torch


def deepseek(hidden: int) -> torch.nn.Module:
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    return DeepseekV4ForCausalLM(
        DeepseekV4Config(
            vocab_size=64, hidden_size=hidden, num_hidden_layers=2, layer_types=["sliding_attention"] * 2,
            sliding_window=16, num_attention_heads=4, head_dim=16, partial_rotary_factor=0.5, q_lora_rank=16,
            o_groups=2, o_lora_rank=16, mlp_layer_types=["moe"] * 2, moe_intermediate_size=32,
            n_routed_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
            experts_implementation="eager",
        )
    )  # fmt: skip


@torch.no_grad()
def glm(hidden: int, **text: Any) -> torch.nn.Module:
    """Two layers; base and scale of the sites are drawn, or comb would have nearly equal entries."""
    from transformers import Glm5NextConfig, Glm5NextForConditionalGeneration

    text = {
        "vocab_size": 64, "hidden_size": hidden, "intermediate_size": 48, "moe_intermediate_size": 16,
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "indexed_attention"],
        "mlp_layer_types": ["dense", "sparse"], "indexer_types": ["full", "full"], "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "kv_lora_rank": 16,
        "q_lora_rank": 16, "v_head_dim": 8, "qk_nope_head_dim": 8, "index_topk": 8, "index_head_dim": 8,
        "index_n_heads": 2, "index_kpool": 4, "linear_head_dim": 8, "linear_num_heads": 4,
        "pad_token_id": 0, "max_position_embeddings": 64, **text,
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": hidden,
        "projection_intermediate_size": 16,
    }  # fmt: skip
    config = Glm5NextConfig(text_config=text, vision_config=vision, experts_implementation="eager")
    made = Glm5NextForConditionalGeneration(config)
    for name, parameter in made.named_parameters():
        if name.endswith(("_hc.base", "_hc.scale")):
            parameter.add_(torch.randn(parameter.shape))
    return made


def loss_and_gradients(model: torch.nn.Module, tokens: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def main(words: list[str] | None = None) -> float:
    """Largest difference of a gradient before and after, over the largest entry of that gradient."""
    args = parsed(words)
    try:
        from helion_sinkhorn.integrations.transformers import patch, unpatch
    except ImportError:
        sys.exit("needs transformers: pip install transformers==5.23.0")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = (glm if args.model == "glm-5.3" else deepseek)(args.hidden).to(device)
    tokens = torch.randint(64, (2, args.length), device=device)

    loss, gradients = loss_and_gradients(model, tokens)
    print(f"transformers: loss {loss:.6f}")
    print(f"patched:      {patch(model)}")
    patched_loss, patched = loss_and_gradients(model, tokens)
    print(f"              loss {patched_loss:.6f}")
    apart = max(
        float((patched[name] - g).abs().max() / g.abs().max().clamp(min=1e-12))
        for name, g in gradients.items()
    )
    print(f"gradients of {len(gradients)} parameters differ by at most {apart:.1e} of their largest entry")
    unpatch(model)
    assert loss_and_gradients(model, tokens)[0] == loss
    return apart


if __name__ == "__main__":
    main()
