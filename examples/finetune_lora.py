"""Fine-tune a DeepseekV4 of transformers by LoRA: all its weights, also in the residual path, stay frozen.

    pip install transformers==5.23.0
    python examples/finetune_lora.py          # a minute on one CPU core

The model is small and has random weights; one from `from_pretrained` is patched by the same line.  LoRA adds
a product of two narrow matrices to each projection of attention, and trains these alone; gradients pass
through the frozen sites to the layers before.  The task is to guess the next token, a function of the last.
"""

from __future__ import annotations

import argparse
import sys


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python examples/finetune_lora.py", description=__doc__.splitlines()[0])
    for name, default in (("steps", 200), ("hidden", 64), ("rank", 8), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(words)
    for name, value in vars(args).items():
        if value < 1:
            parser.error(f"argument --{name}: {value} is no int of at least 1")
    return args


if __name__ == "__main__":  # before torch is imported, which takes seconds
    parsed()

import torch

SYMBOLS, LENGTH = 16, 24


class LoRA(torch.nn.Module):
    """A frozen linear map plus a trained one of a low rank, which begins at zero."""

    def __init__(self, linear: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        self.down = torch.nn.Linear(linear.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, linear.out_features, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.up(self.down(x))


def adapt(model: torch.nn.Module, rank: int) -> list[torch.nn.Parameter]:
    """Freeze a model and put LoRA around the projections of its attention; return what is trained."""
    model.requires_grad_(False)
    for layer in model.model.layers:
        for module in list(layer.self_attn.modules()):
            for name, child in list(module.named_children()):
                if type(child) is torch.nn.Linear:
                    setattr(module, name, LoRA(child, rank))
    return [p for p in model.parameters() if p.requires_grad]


def draw(batch: int) -> torch.Tensor:
    """(batch, LENGTH) token ids; each is three more than five times the last, modulo SYMBOLS."""
    tokens = [torch.randint(SYMBOLS, (batch,))]
    while len(tokens) < LENGTH:
        tokens.append((5 * tokens[-1] + 3) % SYMBOLS)
    return torch.stack(tokens, 1)


def make_model(hidden: int) -> torch.nn.Module:
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    return DeepseekV4ForCausalLM(
        DeepseekV4Config(
            vocab_size=SYMBOLS, hidden_size=hidden, num_hidden_layers=2,
            layer_types=["sliding_attention"] * 2, sliding_window=16, num_attention_heads=4, head_dim=16,
            partial_rotary_factor=0.5, q_lora_rank=16, o_groups=2, o_lora_rank=16,
            mlp_layer_types=["moe"] * 2, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2,
            max_position_embeddings=64, experts_implementation="eager",
        )
    )  # fmt: skip


def main(words: list[str] | None = None) -> list[float]:
    """The loss of each step, in nats a token."""
    args = parsed(words)
    try:
        from helion_sinkhorn.integrations.transformers import patch
    except ImportError:
        sys.exit("needs transformers: pip install transformers==5.23.0")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = make_model(args.hidden)
    print(patch(model))
    trained = adapt(model, args.rank)
    whole = sum(p.numel() for p in model.parameters())
    print(f"trained: {sum(p.numel() for p in trained):,} of {whole:,} parameters")
    model.to(device)
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for step in range(args.steps):
        tokens = draw(args.batch).to(device)
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step:4}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
