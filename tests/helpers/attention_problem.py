"""problem(...): a case of linear attention with gates of any strength."""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.linear_attention.budget import Case

SCALE = 0.3


def problem(
    batch,
    steps,
    heads,
    dk,
    dv,
    gates="gk",
    strength=1.0,
    states=True,
    dtype=torch.float32,
    seed=0,
    reverse=False,
):
    """A case with gates as of a sigmoid, `strength` times."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(shape, generator=generator)

    keys, values = (batch, steps, heads, dk), (batch, steps, heads, dv)
    inputs = {"q": drawn(*keys), "k": drawn(*keys), "v": drawn(*values)}
    shapes = {"g": keys[:3], "g_gamma": keys[2:3], "gk": keys}
    for name in gates.split():
        inputs[name] = strength * torch.nn.functional.logsigmoid(drawn(*shapes[name]))
    inputs = {name: x.to(dtype) for name, x in inputs.items()}
    do, dend = drawn(*values).to(dtype), None
    if states:
        inputs["initial_state"], dend = (drawn(batch, heads, dk, dv) for _ in range(2))
    return Case(inputs, do, dend, SCALE, reverse)
