"""The equations of linear attention with a call wherever a kernel rounds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.rounding import Rounding

Named = dict[str, torch.Tensor]
METHODS = ("recurrent", "chunked")
CHUNK = 64
CHUNKS = (16, 64)
"""Chunk sizes that have a budget: short chunks round states to the dtype of matrix units most often, long
ones add most gates up in an exponent, and sizes between have less of both."""
BFLOAT16 = {"operands": 2.0**15, "pairs": 2.0**7, "gates": 2.0**7, "least": 2.0**-56}
"""The Errors of chunks whose inputs are bfloat16."""
TENSORS = ("q", "k", "v", "g", "g_gamma", "gk", "gv", "initial_state")
"""The arguments that have gradients, in the order in which the operators return these."""
TOKENS = 64
"""Additions that a term of a sum over all tokens goes through, which is a tree."""
FORGOTTEN = -1e4
"""Decays with smaller logarithms are 0 in every dtype."""
UNDERFLOW = 2.0**-100
"""Decays lose digits below the normal range of float32, which entries near 1 do not bring back."""


@dataclass(frozen=True)
class Errors(Rounding):
    """Random errors of the size of their bounds, in units of roundoff."""

    operands: float = 4.0
    """Error of a matrix unit's operand: three TF32 parts without their smallest product, or bfloat16."""
    pairs: float = 4.0
    """Error of an operand within a chunk, where two bfloat16 numbers stand for one."""
    gates: float = 1.0
    """Error of a term of a gate's gradient, which is two bfloat16 numbers for bfloat16 inputs."""
    chunk: int = CHUNK
    least: float = 2.0**-4
    """How far half a chunk may decay for its steps to be taken relative to its middle."""

    @classmethod
    def of(cls, q: torch.Tensor, seed: int = 0) -> Errors:
        """The errors of the kernels for inputs like q."""
        options = BFLOAT16 if q.dtype == torch.bfloat16 else {}
        return cls(seed, generator=torch.Generator(q.device).manual_seed(seed), **options)

    def __call__(self, x: torch.Tensor, size: float | torch.Tensor = 1.0) -> torch.Tensor:
        signs = torch.randint(0, 2, x.shape, generator=self.generator, dtype=torch.int8, device=x.device)
        return x * (1.0 + self.unit * size * (2 * signs - 1))

    def state(self, h: torch.Tensor) -> torch.Tensor:
        """A state after its update."""
        return self(h)

    def operand(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """What a matrix unit takes, or memory keeps for it."""
        return self(x, self.pairs if name == "pairs" else self.operands)

    def exp(self, w: torch.Tensor, count: int = 1) -> torch.Tensor:
        """The exponential of a sum of gates at `count` steps."""
        return self(w.exp(), self.EXP + (self.ARGUMENT + count / math.sqrt(3.0)) * w.abs())

    def sum(self, terms: torch.Tensor, axis: int, count: int | None = None) -> torch.Tensor:
        return self.running(terms, count or terms.size(axis)).sum(axis)

    def running(self, terms: torch.Tensor, count: int) -> torch.Tensor:
        return self(terms, 1.0 + count / math.sqrt(3.0))

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a b of matrices; the errors of its sums go with the entries of a."""
        return self.running(a, a.size(-1)) @ b

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        """Terms that the gradients of gates sum up on a matrix unit."""
        return self(x, self.gates)


@dataclass(frozen=True)
class Span:
    """Sequences of one length in the order of their steps, (..., H, T, D), and their states."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor
    rows: torch.Tensor | None
    """Log decays of the rows of a state, (..., H, T, Dk or 1)."""
    columns: torch.Tensor | None
    """Log decays of the columns of a state, (..., H, T, Dv or 1)."""
    start: torch.Tensor
    dend: torch.Tensor
    scale: float
    backwards: bool
    """Whether the steps came in the opposite order: of chunks, the first one is then short."""


def spans(
    inputs: Named, do: torch.Tensor, dend: torch.Tensor | None, scale: float, reverse: bool
) -> Iterator[Span]:
    """The Span of all sequences at once, or one Span for each packed sequence."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2)
        return x.flip(2) if reverse else x

    named = {name: x for name, x in inputs.items() if name not in ("cu_seqlens", "initial_state", "g_gamma")}
    parts = {name: turned(x if x.dim() == 4 else x.unsqueeze(-1)) for name, x in {**named, "do": do}.items()}
    gates = [parts[name] for name in ("g", "gk") if name in parts]
    if "g_gamma" in inputs:
        gates.append(inputs["g_gamma"].view(-1, 1, 1).expand(*parts["q"].shape[:3], 1))
    parts["rows"] = functools.reduce(torch.add, gates) if gates else None
    steps, states = do.size(1), (do.size(0), do.size(2), inputs["q"].size(-1), do.size(-1))
    offsets = inputs["cu_seqlens"].tolist() if "cu_seqlens" in inputs else [0, steps]
    packed = "cu_seqlens" in inputs
    for n, (begin, end) in enumerate(itertools.pairwise(offsets)):
        at = slice(steps - end, steps - begin) if reverse else slice(begin, end)
        own = slice(n, n + 1) if packed else slice(None)
        start, last = (
            do.new_zeros(states) if x is None else x[own] for x in (inputs.get("initial_state"), dend)
        )
        tensors = (parts.get(name) for name in ("q", "k", "v", "do", "rows", "gv"))
        yield Span(*(x if x is None else x[:, :, at] for x in tensors), start, last, scale, reverse)


def evaluated(
    method: Callable[..., Named],
    inputs: Named,
    do: torch.Tensor,
    dend: torch.Tensor | None,
    scale: float,
    reverse: bool,
    rounding: Errors,
    samples: int = 0,
) -> Named:
    """Every result of a call by one of the two evaluations; with samples that many, on a first axis."""
    parts: dict[str, list[torch.Tensor]] = {}
    for span in spans(inputs, do, dend, scale, reverse):
        if samples:
            span = dataclasses.replace(span, **{
                name: getattr(span, name).expand(samples, *getattr(span, name).shape)
                for name in ("q", "k", "v", "do", "start", "dend")
            })  # fmt: skip
        for name, x in method(span, rounding).items():
            parts.setdefault(name, []).append(x)
    found = {}
    for name, of in parts.items():
        if name in ("end", "dinitial_state"):
            found[name] = torch.cat(of, -4)
        else:
            x = torch.cat(of[::-1] if reverse else of, -2)
            found[name] = (x.flip(-2) if reverse else x).transpose(-3, -2)
    found["dg"] = rounding.sum(found["dgk"], -1)
    found["dg_gamma"] = rounding.sum(found["dg"].flatten(-3, -2), -2, TOKENS)
    return {name: x for name, x in found.items() if name in ("o", "end") or name[1:] in inputs}
