"""The calls of `recurrent_linear_attention`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from helion_sinkhorn.lab.draws import SHORT, draws, normal, unused_zero
from helion_sinkhorn.lab.row import Sized
from helion_sinkhorn.ops.linear_attention.chunked.space import why_not_chunked


@dataclass(frozen=True)
class AttentionWorkload(Sized):
    """One row of WORKLOADS: a call of `recurrent_linear_attention` and its gradient."""

    SIZES = ("steps", "heads", "dk", "dv")

    name: str
    sequences: int
    steps: int
    heads: int
    dk: int
    dv: int
    tags: frozenset[str]
    """The tags of SinkhornWorkload."""
    source: str
    gates: str = "gk"
    """Names with spaces between: "g g_gamma gk gv" at most."""
    dtype: torch.dtype = torch.bfloat16
    states: bool = False
    """Whether there is an initial state, and a gradient of the last one."""
    reverse: bool = False
    lengths: tuple[int, ...] = ()
    """Lengths of packed sequences, `steps` in all; `sequences` is 1 then."""
    scale: float | None = None
    """Factor of the queries, dk^-1/2 if left out."""
    unused: str = ""
    """The upstream gradient, "do" or "dend", that is None as nothing used the result."""
    strength: float = 1 / 8
    """Strength of the decays: 1/8 remembers some ten steps, 8 a step or less; below 0 states grow."""

    @property
    def entries(self) -> int:
        """Entries of the vectors of one sequence."""
        return 2 * self.steps * self.heads * (self.dk + self.dv)

    @property
    def options(self) -> dict[str, object]:
        """What else makes the call."""
        named = {} if self.scale is None else {"scale": self.scale}
        return {
            "gates": self.gates, "states": self.states, "reverse": self.reverse, "lengths": self.lengths,
            **named,
        }  # fmt: skip

    @property
    def chunks_serve(self) -> bool:
        """Whether method="chunked" takes the call."""
        return not why_not_chunked("gv" in self.gates.split(), bool(self.lengths), self.dk)

    @property
    def batch(self) -> int:
        """States that are walked independently."""
        return (len(self.lengths) or self.sequences) * self.heads

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor | None]:
        """(tensor arguments by name, gradient of o, gradient of the last state or None).

        Vectors are standard normal, decays exp(-strength |x|) of such x.
        """
        generator = draws(seed, device)
        tokens = self.sequences, self.steps, self.heads
        state = len(self.lengths) or self.sequences, self.heads, self.dk, self.dv
        shapes = {"g": tokens, "g_gamma": (self.heads,), "gk": (*tokens, self.dk), "gv": (*tokens, self.dv)}
        vectors = {"q": self.dk, "k": self.dk, "v": self.dv, "do": self.dv}
        inputs = {name: normal(generator, *tokens, d).to(self.dtype) for name, d in vectors.items()}
        for name in self.gates.split():
            inputs[name] = (normal(generator, *shapes[name]).abs() * -self.strength).to(self.dtype)
        dend = None
        if self.states:
            inputs["initial_state"], dend = normal(generator, *state), normal(generator, *state).to(device)
        if self.lengths:
            offsets = np.cumsum((0, *self.lengths), dtype=np.int32)
            inputs["cu_seqlens"] = torch.from_numpy(offsets)
        inputs = {name: x.to(device) for name, x in inputs.items()}
        upstream = unused_zero({"do": inputs.pop("do"), "dend": dend}, self.unused)
        return inputs, *upstream.values()


def _attention(name: str, shape: tuple[int, ...], tags: str, source: str, **options) -> AttentionWorkload:
    return AttentionWorkload(name, *shape, frozenset(tags.split()), source, **options)


_GLA = "gated linear attention, a layer of 16 heads (arXiv 2312.06635)"

_SMALL = (2, 33, 2, 8, 12)

ROWS = [
    *(
        _attention(f"attention_{gates.replace(' ', '_') or 'plain'}_{SHORT[dtype]}", (8, 2048, 16, 64, 128),
                   tags, _GLA, gates=gates, dtype=dtype)
        for gates, dtype, tags in (
            ("gk", torch.bfloat16, "tune bench"), ("gk", torch.float32, "tune"),
            ("g", torch.bfloat16, "tune"), ("g_gamma", torch.bfloat16, "tune"), ("", torch.bfloat16, "tune"),
        )
    ),
    _attention("attention_every_gate", _SMALL, "ci", "all options at once", gates="g g_gamma gk gv",
               dtype=torch.float32, states=True),
    _attention("attention_reverse", _SMALL, "ci", "the same walked backwards, states that grow",
               gates="g g_gamma gk gv", dtype=torch.float32, states=True, reverse=True, strength=-1 / 8),
    _attention("attention_packed", (1, 40, 2, 16, 8), "ci", "sequences of any length, one empty",
               gates="g gk", dtype=torch.float32, states=True, lengths=(17, 0, 1, 22)),
    _attention("attention_packed_reverse", (1, 40, 2, 8, 12), "ci", "the same walked backwards, with a scale",
               gates="g_gamma gk", dtype=torch.float32, states=True, reverse=True, lengths=(0, 9, 31),
               scale=-0.7),
    _attention("attention_scaled", (3, 70, 1, 8, 12), "ci", "a scale, an odd number of sequences",
               gates="g g_gamma", dtype=torch.float32, scale=3.0),
    _attention("attention_ungated", (2, 96, 2, 16, 16), "ci", "linear attention (arXiv 2006.16236)",
               gates="", dtype=torch.float32),
    _attention("attention_chunks", (2, 150, 2, 24, 20), "ci", "three chunks walked backwards, one short",
               gates="g g_gamma gk", dtype=torch.float32, states=True, reverse=True),
    _attention("attention_retention", (2, 100, 2, 16, 32), "ci", "one decay a head (arXiv 2307.08621)",
               gates="g_gamma", states=True),
    _attention("attention_gla_bf16", (2, 128, 1, 64, 128), "ci", _GLA),
    _attention("attention_forgetting", (2, 70, 2, 72, 12), "ci",
               "forget gates near 0, more channels than a tile has",
               gates="g gk gv", dtype=torch.float32, states=True, strength=8.0),
    _attention("attention_chunks_forgetting", (2, 150, 2, 24, 20), "ci", "the same in chunks, backwards",
               gates="g gk", dtype=torch.float32, states=True, reverse=True, strength=8.0),
    _attention("attention_scalar_forgetting", (2, 130, 2, 16, 16), "ci", "one strong decay a head and step",
               gates="g", strength=8.0),
    _attention("attention_gla_fp16", (1, 64, 2, 32, 48), "ci", _GLA, dtype=torch.float16, states=True),
    _attention("attention_chunks_growing", (2, 70, 2, 8, 12), "ci", "chunks of states that grow",
               gates="g gk", dtype=torch.float32, states=True, strength=-1 / 8),
    *(_attention(f"attention_unused_{name}", (2, 12, 1, 4, 8), "ci", "a result that nothing used",
                 gates="g gk", dtype=torch.float32, states=True, unused=f"d{name}")
      for name in ("o", "end")),
]  # fmt: skip
