"""Serve a small DeepseekV4 of transformers: prefill and decode, with this residual path and without.

    pip install transformers==5.23.0
    python examples/serve_transformers.py          # 10 s on one CPU core
    python examples/serve_transformers.py --device cuda --hidden 1024 --layers 8

The model has random weights; one from `from_pretrained` is patched by the same line.  On a GPU it is
bfloat16.  Python launches a token a step, so decoding has the host's speed: examples/serve_cuda_graph.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import NamedTuple


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    name, does = "python examples/serve_transformers.py", __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(name, description=does)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    for name, default in (("hidden", 128), ("layers", 4), ("batch", 4), ("prompt", 128), ("steps", 24)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(words)
    for name, value in vars(args).items():
        if isinstance(value, int) and value < 1:
            parser.error(f"argument --{name}: {value} is no int of at least 1")
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    parsed()

import torch

SYMBOLS = 512


class Served(NamedTuple):
    """What a run gave: the logits of each step, the tokens taken, and tokens a second."""

    logits: torch.Tensor
    tokens: torch.Tensor
    prefilled: float
    decoded: float


def make_model(hidden: int, layers: int, length: int) -> torch.nn.Module:
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    return DeepseekV4ForCausalLM(
        DeepseekV4Config(
            vocab_size=SYMBOLS, hidden_size=hidden, num_hidden_layers=layers,
            layer_types=["sliding_attention"] * layers, sliding_window=64, num_attention_heads=4, head_dim=32,
            partial_rotary_factor=0.5, q_lora_rank=32, o_groups=2, o_lora_rank=32,
            mlp_layer_types=["moe"] * layers, moe_intermediate_size=64, n_routed_experts=4,
            num_experts_per_tok=2, max_position_embeddings=length, experts_implementation="eager",
        )
    )  # fmt: skip


@torch.inference_mode()
def serve(model: torch.nn.Module, prompts: torch.Tensor, steps: int, follow: torch.Tensor | None) -> Served:
    """Prefill, then decode greedily, or along the tokens `follow`, to compare the logits of two runs."""
    begin = seconds(prompts)
    out = model(input_ids=prompts, use_cache=True)
    logits, taken = [out.logits[:, -1]], []
    middle = seconds(prompts)
    for step in range(steps):
        taken.append(logits[-1].argmax(-1, keepdim=True))
        given = taken[-1] if follow is None else follow[:, step : step + 1]
        out = model(input_ids=given, past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits[:, -1])
    end = seconds(prompts)
    rates = prompts.numel() / (middle - begin), steps * len(prompts) / (end - middle)
    return Served(torch.stack(logits).float(), torch.cat(taken, 1), *rates)


def seconds(x: torch.Tensor) -> float:
    """The time at which everything that was asked of a device is done."""
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def main(words: list[str] | None = None) -> tuple[float, float]:
    """Largest difference of a logit over the largest logit, and the part of the tokens that are the same."""
    args = parsed(words)
    try:
        from helion_sinkhorn.integrations.transformers import patch
    except ImportError:
        sys.exit("needs transformers: pip install transformers==5.23.0")
    torch.manual_seed(0)
    model = make_model(args.hidden, args.layers, args.prompt + args.steps).eval().to(args.device)
    if args.device == "cuda":
        model.to(torch.bfloat16)
    prompts = torch.randint(SYMBOLS, (args.batch, args.prompt), device=args.device)
    runs: list[Served] = []
    for name in ("transformers", "patched"):
        if name == "patched":
            print(patch(model))
        # the first calls compile kernels, and make memory
        serve(model, prompts, 2, None)
        runs.append(serve(model, prompts, args.steps, runs[0].tokens if runs else None))
        print(f"{name:13} prefill {runs[-1].prefilled:10,.0f} tokens/s, decode {runs[-1].decoded:8,.0f}")
    theirs, ours = runs
    apart = float((ours.logits - theirs.logits).abs().max() / theirs.logits.abs().max())
    same = float((ours.tokens == theirs.tokens).float().mean())
    print(f"logits differ by at most {apart:.1e} of the largest, {same:.1%} of the tokens are the same")
    return apart, same


if __name__ == "__main__":
    main()
