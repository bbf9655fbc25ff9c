"""The equations of linear attention, step by step and in chunks, with a call wherever a kernel rounds."""

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


def outer(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return k.unsqueeze(-1) * v.unsqueeze(-2)


def step_by_step(x: Span, rounding: Errors) -> Named:
    """o, end and the gradients of q, k, v, rows, columns, start, one step after another."""
    # expanded, for errors of their own in every sample
    rows, columns = (
        None if w is None else rounding.exp(w.expand(*x.q.shape[:-2], *w.shape[-2:])).to(x.q.dtype)
        for w in (x.rows, x.columns)
    )

    def decayed(h: torch.Tensor, t: int) -> torch.Tensor:
        if rows is not None:
            h = rounding(h * rows[..., t, :].unsqueeze(-1))
        return h if columns is None else rounding(h * columns[..., t, :].unsqueeze(-2))

    steps = range(x.q.size(-2))
    q, k, v, do = (tensor.unbind(-2) for tensor in (x.q, x.k, x.v, x.do))
    h, o, dq, befores = x.start, [], [], []
    for t in steps:
        befores.append(decayed(h, t))
        h = rounding.state(befores[t] + rounding(outer(k[t], v[t])))
        o.append(rounding(x.scale * rounding.sum(q[t].unsqueeze(-1) * h, -2)))
        dq.append(rounding(x.scale * rounding.sum(do[t].unsqueeze(-2) * h, -1)))
    dh = x.dend
    dk, dv, dgk, dgv = ([None] * len(steps) for _ in range(4))
    for t in reversed(steps):
        dh = rounding.state(dh + rounding(outer(q[t], x.scale * do[t]), 2.0))
        dk[t], dv[t] = (
            rounding.sum(dh * y, a) for y, a in ((v[t].unsqueeze(-2), -1), (k[t].unsqueeze(-1), -2))
        )
        meeting = rounding.gathered(dh * befores[t])
        dgk[t], dgv[t] = rounding.sum(meeting, -1), rounding.sum(meeting, -2)
        dh = decayed(dh, t)
    vectors = {
        "o": (o, x.v),
        "dq": (dq, x.q),
        "dk": (dk, x.k),
        "dv": (dv, x.v),
        "dgk": (dgk, x.k),
        "dgv": (dgv, x.v),
    }
    stacks = {name: torch.stack(parts, -2) if parts else like for name, (parts, like) in vectors.items()}
    return {**stacks, "end": h, "dinitial_state": dh}


def in_chunks(x: Span, rounding: Errors) -> Named:
    """The results of `step_by_step` without columns, by the chunks of docs/dev/linear_attention.md."""
    steps, chunk, least = x.q.size(-2), rounding.chunk, rounding.least
    half, missing = chunk // 2, -steps % chunk
    ends = (missing, 0) if x.backwards else (0, missing)

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (0, 0, *ends)).unflatten(-2, (-1, chunk))

    def joined(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flatten(-3, -2)[..., ends[0] : ends[0] + steps, :]

    def exp(w: torch.Tensor) -> torch.Tensor:
        # expanded, so that every sample gets its own errors
        return rounding.exp(w.expand(*q.shape[:-2], *w.shape[-2:]), chunk).to(q.dtype)

    q, k, v, do = (cut(tensor) for tensor in (x.q * x.scale, x.k, x.v, x.do))
    w = x.q.new_zeros(steps, 1) if x.rows is None else x.rows.clamp(min=FORGOTTEN)
    upto = cut(w.double()).cumsum(-2)
    whole = upto[..., -1:, :]
    # of a query and of a key, relative to the middle of the chunk
    far = upto - upto[..., half - 1 : half, :]
    query, key = (y.clamp(math.log(least), -math.log(least)) for y in (far, -far))
    xs, ys = q * exp(query), k * exp(key)
    before, after, decay = exp(upto - query), exp(whole - upto - key), exp(whole).squeeze(-2).unsqueeze(-1)
    qs, ks = (
        rounding.operand(rounding(xs * before), "queries"),
        rounding.operand(rounding(ys * after), "keys"),
    )
    near, xs, ys = ys, rounding.operand(xs, "pairs"), rounding.operand(ys, "pairs")
    # of a pair, what its two factors leave out
    rest = upto.unsqueeze(-2) - upto.unsqueeze(-3) - query.unsqueeze(-2) - key.unsqueeze(-3)
    lower = torch.ones(chunk, chunk, device=q.device, dtype=torch.bool).tril()
    rest = rest.masked_fill(~lower.unsqueeze(-1), 0).exp().to(x.q.dtype)
    a = torch.stack(
        [rounding.sum(xs[..., i : i + 1, :] * ys * rest[..., i, :, :], -1) for i in range(chunk)], -2
    )
    a = rounding.operand(a.where(lower, 0.0), "scores")

    def walked(s, xs, ys, a, v, order):
        """(outputs, the state before every chunk as an operand, the last state)."""
        out, states = {}, {}
        for c in order:
            states[c] = rounding.operand(s, "states")
            out[c] = rounding(
                rounding.product(xs[..., c, :, :], states[c])
                + rounding.product(a[..., c, :, :], v[..., c, :, :])
            )
            taken = rounding.product(ys[..., c, :, :].mT, v[..., c, :, :])
            s = rounding.state(rounding(s * decay[..., c, :, :]) + taken)
        return *(torch.stack([y[c] for c in sorted(y)], -3) for y in (out, states)), s

    order = range(q.size(-3))
    o, h, end = walked(x.start, qs, ks, a, v, order)
    dv, dh, dstart = walked(x.dend, ks, qs, a.mT, do, order[::-1])
    da = rounding.operand(rounding.product(do, v.mT).where(lower, 0.0), "pairs")
    dq, dk = rounding(rounding.product(do, h.mT) * before), rounding(rounding.product(v, dh.mT) * after)

    def summed(terms: torch.Tensor) -> torch.Tensor:
        """Sums up to each row."""
        return rounding.running(rounding.gathered(terms), chunk).cumsum(-2)

    # the gradient of a gate from pairs of steps of which one or both are outside of the chunk
    dw = decay.squeeze(-1) * rounding.sum(h * dh, -1)
    dw = dw.unsqueeze(-2) + summed((q * exp(query) * dq).flip(-2)).flip(-2)
    later = summed(near * dk)
    dw[..., 1:, :] += later[..., :-1, :]
    for i in range(chunk):
        pair = rounding.running(da[..., i, :].unsqueeze(-1) * rest[..., i, :, :], chunk)
        within = pair * ys
        dq[..., i, :] += within.sum(-2)
        dk += pair * xs[..., i : i + 1, :]
        # from pairs within the chunk: of step i and all steps before the gate
        dw[..., 1 : i + 1, :] += summed(within * xs[..., i : i + 1, :])[..., :i, :]
    dq, dk, dw = rounding(dq * exp(query)), rounding(dk * exp(key)), rounding(dw)
    by_chunk = {"o": o, "dv": dv, "dq": x.scale * dq, "dk": dk, "dgk": dw}
    return {name: joined(y) for name, y in by_chunk.items()} | {"end": end, "dinitial_state": dstart}


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
    results = {}
    for name, of in parts.items():
        if name in ("end", "dinitial_state"):
            results[name] = torch.cat(of, -4)
        else:
            x = torch.cat(of[::-1] if reverse else of, -2)
            results[name] = (x.flip(-2) if reverse else x).transpose(-3, -2)
    results["dg"] = rounding.sum(results["dgk"], -1)
    results["dg_gamma"] = rounding.sum(results["dg"].flatten(-3, -2), -2, TOKENS)
    return {name: x for name, x in results.items() if name in ("o", "end") or name[1:] in inputs}
