"""Put this package's residual path into a DeepSeek-V4 or V4.1 of NeMo Automodel, and take it out again.

    pip install --no-deps nemo_automodel==0.7.0 && pip install transformers==5.23.0
    python examples/patch_automodel.py             # 20 s on one CPU core
    python examples/patch_automodel.py --model v4

The model here is small and has random weights; one of a recipe is patched by the same line.  Parameters stay
the same objects under the same names, so optimizers and checkpoints of the original stay valid.
"""

from __future__ import annotations

import argparse
import sys


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    name, does = "python examples/patch_automodel.py", __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(name, description=does)
    parser.add_argument("--model", choices=("v4", "v41"), default="v41")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    return parser.parse_args(words)


if __name__ == "__main__":  # before torch is imported, which takes seconds
    parsed()

import torch

SIZES = dict(
    vocab_size=64, hidden_size=32, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
    head_dim=16, qk_rope_head_dim=8, q_lora_rank=16, o_lora_rank=8, o_groups=2, n_routed_experts=4,
    num_experts_per_tok=2, sliding_window=8, compress_ratios=[0, 0], index_n_heads=2, index_head_dim=8,
    index_topk=4, num_nextn_predict_layers=0,
)  # fmt: skip


def make_model(kind: str, dtype: torch.dtype) -> torch.nn.Module:
    from nemo_automodel.components.models.common.utils import BackendConfig
    from nemo_automodel.components.models.deepseek_v4.config import DeepseekV4Config
    from nemo_automodel.components.models.deepseek_v4.model import DeepseekV4ForCausalLM
    from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
    from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM

    backend = BackendConfig(
        attn="sdpa", linear="torch", rms_norm="torch_fp32", experts="torch", dispatcher="torch"
    )
    name = str(dtype).removeprefix("torch.")
    if kind == "v4":
        config = DeepseekV4Config(**SIZES, num_hash_layers=1, dtype=name)
        model = DeepseekV4ForCausalLM(config, backend=backend)
    else:
        schedule = dict(
            kv_source_layer_ids=[], index_source_layer_ids=[], candidate_source_layer_id=-1,
            engram_layer_ids=[], engram_num_embeddings=[], dspark_target_layer_ids=[],
            dspark_noise_token_id=0,
        )  # fmt: skip
        config = DeepseekV41Config({**SIZES, **schedule, "dtype": name}, {"num_hidden_layers": 0}, dtype=name)
        model = DeepseekV41ForCausalLM(config, backend=backend)
    model.initialize_weights(torch.device("cpu"), dtype)
    # as after training: at first all streams are alike, and most gradients of the sites are rounding
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 or "hc" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def loss_and_gradients(model: torch.nn.Module, tokens: torch.Tensor) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    result = model(tokens)
    logits = getattr(result, "logits", result).float()
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def main(words: list[str] | None = None) -> float:
    """Largest difference of a gradient before and after, over the largest entry of that gradient."""
    args = parsed(words)
    try:
        from helion_sinkhorn.integrations.automodel import patch, unpatch
    except ImportError as error:
        sys.exit(str(error))
    torch.manual_seed(0)
    model = make_model(args.model, getattr(torch, args.dtype))
    tokens = torch.randint(64, (2, 16))

    loss, gradients = loss_and_gradients(model, tokens)
    print(f"Automodel: loss {loss:.6f}")
    print(f"patched:   {patch(model)}")
    patched_loss, patched = loss_and_gradients(model, tokens)
    print(f"           loss {patched_loss:.6f}")
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
