"""A DeepseekV4 of transformers small enough to train on a CPU, and a Markov chain for it to learn."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

EXPERTS, CHOSEN = 4, 2


def config(vocabulary: int, hidden: int, streams: int, **options: Any) -> DeepseekV4Config:
    """Two layers, one with a sliding window and hashed experts, one with compressed keys and a router."""
    return DeepseekV4Config(
        vocab_size=vocabulary, hidden_size=hidden, hc_mult=streams, num_hidden_layers=2,
        layer_types=["sliding_attention", "heavily_compressed_attention"], sliding_window=16,
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        num_attention_heads=4, head_dim=16, partial_rotary_factor=0.5, q_lora_rank=16, o_groups=2,
        o_lora_rank=16, mlp_layer_types=["hash_moe", "moe"], moe_intermediate_size=32,
        n_routed_experts=EXPERTS, num_experts_per_tok=CHOSEN, max_position_embeddings=256,
        experts_implementation="eager", **options,
    )  # fmt: skip


@torch.no_grad()
def make_model(
    vocabulary: int, hidden: int = 32, streams: int = 4, seed: int = 0, **options: Any
) -> DeepseekV4ForCausalLM:
    """The model with random weights, float32 on the CPU.

    The experts of a token are drawn for the hashed layer, where transformers has zeros until a checkpoint is
    loaded.  base and scale of the mHC modules are drawn too: transformers begins with a comb of nearly equal
    entries, which hides what is its first index.
    """
    torch.manual_seed(seed)
    made = DeepseekV4ForCausalLM(config(vocabulary, hidden, streams, **options))
    table = made.model.layers[0].mlp.gate.tid2eid
    table.copy_(torch.rand(vocabulary, EXPERTS).argsort(-1)[:, :CHOSEN])
    for name, parameter in made.named_parameters():
        if name.endswith(("_hc.base", "_hc.scale", "hc_head.hc_base", "hc_head.hc_scale")):
            parameter.add_(torch.randn(parameter.shape))
    return made


class Chain:
    """A stationary Markov chain on tokens with random transitions."""

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        logits = 2.5 * torch.randn(vocabulary, vocabulary, generator=generator, dtype=torch.float64)
        self.transitions = logits.softmax(-1)
        self.stationary = torch.linalg.matrix_power(self.transitions, 1024)[0]

    @property
    def entropy(self) -> float:
        """The loss of a model that knows the transitions, in nats a token."""
        each = (self.transitions * self.transitions.log()).sum(-1)
        return -float(self.stationary @ each)

    def draw(self, batch: int, length: int, generator: torch.Generator) -> torch.Tensor:
        """(batch, length) token ids, each row a path of the chain."""
        tokens = [torch.multinomial(self.stationary, batch, replacement=True, generator=generator)]
        while len(tokens) < length:
            tokens.append(torch.multinomial(self.transitions[tokens[-1]], 1, generator=generator)[:, 0])
        return torch.stack(tokens, 1)
