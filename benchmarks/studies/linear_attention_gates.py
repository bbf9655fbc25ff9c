"""Gradients of gates of any strength: their errors beside a running sum's and autograd's, and times.

On a CPU it prints the errors, the table of docs/dev/linear_attention.md; on a GPU both methods' kernels.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator

import torch

from benchmarks.linear_attention import SHAPE, SIZES, backward, forward, inputs, loaded, microseconds
from helion_sinkhorn import recurrent_linear_attention, reference
from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.model import UNDERFLOW, Named
from helion_sinkhorn.ops.linear_attention.chunked import launch as linear_attention_chunked_launch

STRENGTHS = 0.1, 1.0, 10.0, 30.0
CASES = (
    ("recurrent", 256, "gk"), ("recurrent", 256, "g"), ("recurrent", 256, "g gk gv"),
    ("recurrent", 32, "g gk gv"), ("chunked", 256, "gk"), ("chunked", 256, "g"),
)  # fmt: skip


def problem(gates: str, strength: float, steps: int, dtype: torch.dtype, device: str) -> Case:
    """Standard normal vectors, log decays uniform in [-strength, 0]."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    heads, dk, dv = (4, 32, 32) if device == "cpu" else (SHAPE[2], *SIZES)
    keys, values = (1, steps, heads, dk), (1, steps, heads, dv)
    shapes = {"g": keys[:3], "gk": keys, "gv": values}
    inputs = {"q": drawn(*keys), "k": drawn(*keys), "v": drawn(*values)}
    for name in gates.split():
        inputs[name] = -strength * torch.rand(shapes[name], generator=generator)
    return Case({n: x.to(dtype) for n, x in inputs.items()}, drawn(*values).to(dtype)).to(device)


def running_sums(case: Case, results: Named) -> Named:
    """What follows from the other results without any state, as flash-linear-attention has it."""

    def later(terms: torch.Tensor) -> torch.Tensor:
        return terms.flip(1).cumsum(1).flip(1)

    x = {n: t.float() for n, t in {**case.inputs, **results, "do": case.do}.items()}
    dgk = later(x["q"] * x["dq"] - x["k"] * x["dk"])
    return {"dgk": dgk, "dgv": later(x["do"] * x["o"] - x["v"] * x["dv"]), "dg": dgk.sum(-1)}


def worst(gradient: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error of an entry, relative to the largest entry of its row."""
    row = exact.abs().amax(-1, keepdim=True).clamp(min=UNDERFLOW)
    return ((gradient.to(exact) - exact).abs() / row)[:, 1:].max().item()


def errors(device: str, dtype: torch.dtype, asked: list[str]) -> Iterator[str]:
    """A line for each case and gate; of the first step, which owes nothing, none is counted."""
    yield f"{dtype} on {device}: worst entry relative to its row: a running sum / ours / autograd in float32"
    for method, steps, gates in CASES:
        if gates not in asked:
            continue
        own = functools.partial(recurrent_linear_attention, method=method)
        for strength in STRENGTHS:
            case = problem(gates, strength, steps, dtype, device)
            interpreted = device == "cpu" and method == "chunked"
            ours = case.run_module(linear_attention_chunked_launch) if interpreted else case.run(own)
            baseline = case.cast(torch.float32).run(reference.recurrent_linear_attention)
            sums = running_sums(case, ours)
            for name in (f"d{gate}" for gate in gates.split()):
                exact = case.exact[name]
                three = (sums[name], ours[name], baseline[name].to(ours[name].dtype))
                said = [worst(x, exact) for x in three]
                yield (
                    f"{method} T {steps} {gates}, s = {strength:g}, {name}: "
                    f"{' / '.join(f'{e:.0e}' for e in said)}, ours over autograd {said[1] / said[2]:.2f}"
                )


def times() -> Iterator[str]:
    """Microseconds of forward and backward at the size of the documentation, gk in bfloat16."""
    yield f"B, T, H = {SHAPE}, Dk, Dv = {SIZES}, bfloat16, gk; us called one by one with cold caches"
    device = torch.device("cuda")
    q, k, v, gk, do = inputs(SHAPE, torch.bfloat16, device)
    strong = -10.0 * torch.randn(gk.shape, device=device).abs()
    for what, gate in (("logsigmoid / 8", gk), ("-10 |x|", strong.bfloat16())):
        for method in ("recurrent", "chunked"):
            runs = (make(loaded(method), q, k, v, gate, do) for make in (forward, backward))
            us = " + ".join(f"{microseconds(run, device):.0f}" for run in runs)
            yield f"{method}, gk = {what}: {us} us"


def main(options: argparse.Namespace) -> None:
    device = options.device
    gates = options.gates or (["gk"] if device == "cuda" else [gates for _, _, gates in CASES])
    for dtype in (torch.float32,) if device == "cpu" else (torch.float32, torch.bfloat16):
        for line in errors(device, dtype, gates):
            print(line, flush=True)
    if device == "cuda":
        for line in times():
            print(line, flush=True)
