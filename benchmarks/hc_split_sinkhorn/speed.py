"""Time hc_split_sinkhorn on a GPU beside eager PyTorch, Inductor and a copy of the same bytes.

    python -m benchmarks.hc_split_sinkhorn.speed [--tokens 128 8192] [--no-compile] [--out FILE]
                                                 # some minutes on an H200

Forward without gradients, of mixes and of partial sums in 8 splits, and backward alone, in float32 for four
streams.  Median us of single calls behind a write that clears the cache, and of a call in a CUDA graph, where
inputs stay in the cache while they fit.  The floor is a copy of the bytes that moving each tensor of tokens
once makes: 192 a token forward, 1000 of partial sums, 288 backward.  Errors are the largest against float64
over all tokens, relative to the largest entry of a result, in units of 2^-24; kept are the bytes a token that
wait for backward, the mixes left out.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch._dynamo import mark_dynamic
from torch._functorch import config as functorch

from benchmarks import command, timing
from helion_sinkhorn import Reduce, hc_split_sinkhorn, reference
from helion_sinkhorn.tuning import markdown
from helion_sinkhorn.tuning.timing import with_cold_cache
from helion_sinkhorn.workloads import WORKLOADS

MODEL = WORKLOADS["hc_fp32_b1048576"]
TOKENS = [1 << 7, 1 << 13, 1 << 17, 1 << 20]
SPLITS = 8
PASSES = {"forward": 2.0, "partial sums": SPLITS + 2 + (SPLITS + 2) / 24, "backward": 3.0}
"""Tensors of the size of the mixes that each moves at least; partial sums leave mixes and two factors."""
PIECE = 1 << 15
"""Tokens computed in float64 at a time."""
MILLISECONDS = 30.0
"""Spent on the replays of a graph."""
NAMES = ("pre", "post", "comb", "dmixes", "dscale", "dbase")
Run = Callable[[], object]
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]


def drawn(tokens: int) -> tuple[Tensors, Tensors]:
    """(mixes, scale, base) and the upstream gradients of so many tokens, drawn on the device."""
    _, scale, base, *_ = dataclasses.replace(MODEL, batch=1).make_inputs(device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = (MODEL.columns,), (MODEL.n,), (MODEL.n,), (MODEL.n, MODEL.n)
    mixes, *grads = (torch.randn(tokens, *s, device="cuda", generator=generator) for s in shapes)
    return (mixes, scale, base), tuple(grads)


def eager(mixes, scale, base, **more) -> Tensors:
    return reference.hc_split_sinkhorn(mixes, scale, base, **MODEL.options, **more)


def ours(mixes, scale, base, **more) -> Tensors:
    return hc_split_sinkhorn(mixes, scale, base, **MODEL.options, **more)


def leaves_of(inputs: Tensors) -> list[torch.Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    # one compilation for all numbers of tokens
    mark_dynamic(leaves[0], 0)
    return leaves


def forward_of(f: Function, inputs: Tensors, grads: Tensors) -> Run:
    given = [t.detach() for t in inputs]
    mark_dynamic(given[0], 0)
    return lambda: f(*given)


def reduced_of(f: Function, inputs: Tensors, grads: Tensors) -> Run:
    """With the tokens first in memory, as hc_mixes leaves them."""
    mixes, scale, base = (t.detach() for t in inputs)
    partials = (mixes / SPLITS).unsqueeze(1).repeat(1, SPLITS, 1).movedim(1, 0)
    squares = torch.ones(len(mixes), SPLITS, device=mixes.device).movedim(1, 0)
    mark_dynamic(partials, 1)
    mark_dynamic(squares, 1)
    return lambda: f(partials, scale, base, reduce=Reduce(squares, SPLITS))


def backward_of(f: Function, inputs: Tensors, grads: Tensors) -> Run:
    leaves = leaves_of(inputs)
    out = f(*leaves)
    return lambda: torch.autograd.grad(out, leaves, grads, retain_graph=True)


MAKERS = {"forward": forward_of, "partial sums": reduced_of, "backward": backward_of}


def cold(run: Run) -> float:
    run()
    torch.cuda.synchronize()
    return with_cold_cache(run)()


def floors(tokens: int, tensors: float) -> tuple[float, float]:
    """A copy of the bytes of so many tensors, read and written together: (cold, in a graph)."""
    source = torch.empty(int(tokens * MODEL.columns * 4 * tensors) // 2, dtype=torch.uint8, device="cuda")
    copy = functools.partial(torch.empty_like(source).copy_, source)
    return cold(copy), timing.graph(lambda: copy, MILLISECONDS)[0]


def kept(f: Function, inputs: Tensors) -> float:
    """Bytes a token that stay allocated for backward."""
    leaves = leaves_of(inputs)
    f(*leaves)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out = f(*leaves)
    return (torch.cuda.memory_allocated() - before - sum(t.nbytes for t in out)) / len(inputs[0])


def exact_pieces(inputs: Tensors, grads: Tensors) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """NAMES in float64 of some tokens at a time; sums are those of these tokens."""
    for first in range(0, len(inputs[0]), PIECE):
        at = slice(first, first + PIECE)
        leaves = [t.double().requires_grad_() for t in (inputs[0][at], *inputs[1:])]
        out = eager(*leaves)
        found = torch.autograd.grad(out, leaves, [t[at].double() for t in grads])
        yield at, [*(t.detach() for t in out), *found]


def errors(f: Function, inputs: Tensors, grads: Tensors) -> dict[str, float]:
    """The largest error of each result relative to its largest entry, in units of 2^-24."""
    leaves = leaves_of(inputs)
    out = f(*leaves)
    found = [*(t.detach() for t in out), *torch.autograd.grad(out, leaves, grads)]
    tokens, sums, size, wrong = len(NAMES) - 2, [0.0, 0.0], [0.0] * 4, [0.0] * 4
    for at, exact in exact_pieces(inputs, grads):
        for k in range(tokens):
            size[k] = max(size[k], exact[k].abs().max().item())
            wrong[k] = max(wrong[k], (found[k][at].double() - exact[k]).abs().max().item())
        sums = [a + b for a, b in zip(sums, exact[tokens:], strict=True)]
    size += [t.abs().max().item() for t in sums]
    wrong += [(a.double() - b).abs().max().item() for a, b in zip(found[tokens:], sums, strict=True)]
    return {name: 2.0**24 * w / s for name, w, s in zip(NAMES, wrong, size, strict=True)}


def times(callers: dict[str, Function], tokens: int) -> Iterator[str]:
    inputs, grads = drawn(tokens)
    for name, tensors in PASSES.items():
        least = floors(tokens, tensors)
        yield markdown.line((tokens, name, "copy", f"{least[0]:.1f}", "1.00", f"{least[1]:.2f}", "1.00"))
        for who, f in callers.items():
            try:
                make = functools.partial(MAKERS[name], f, inputs, grads)
                single, graph = cold(make()), timing.graph(make, MILLISECONDS)[0]
                figures = (single, 1), (single / least[0], 2), (graph, 2), (graph / least[1], 2)
                found = [f"{figure:.{digits}f}" for figure, digits in figures]
            except Exception as problem:  # the other rows are still worth their time on the device
                found = [f"{type(problem).__name__}: {str(problem)[:80]!r}", "", "", ""]
            yield markdown.line((tokens, name, who, *found))
            torch.cuda.empty_cache()


def accuracies(callers: dict[str, Function], tokens: int) -> Iterator[str]:
    inputs, grads = drawn(tokens)
    for who, f in callers.items():
        try:
            found = [f"{v:.2f}" for v in errors(f, inputs, grads).values()]
            found.append(f"{kept(f, inputs):.0f}")
        except Exception as problem:
            found = [f"{type(problem).__name__}: {str(problem)[:80]!r}", *[""] * len(NAMES)]
        yield markdown.line((tokens, who, *found))
        torch.cuda.empty_cache()


def main() -> None:
    parser = command.parser("hc_split_sinkhorn.speed", __doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--out", type=Path, help="also write the tables there")
    options = parser.parse_args()
    command.need_gpu(parser)
    begin, lines = time.perf_counter(), []
    # the backward pass alone is run again and again on one forward pass
    functorch.donated_buffer = False
    callers = {"hc_split_sinkhorn": ours, "eager": eager}
    if not options.no_compile:
        callers["Inductor"] = torch.compile(eager)

    def note(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    def conditions() -> None:
        note(", ".join(f"{k} {v}" for k, v in timing.conditions(torch.device("cuda")).items()))

    conditions()
    note("")
    note(markdown.head(("tokens", "pass", "", "us", "x copy", "us in a graph", "x copy")))
    for tokens in options.tokens:
        for line in times(callers, tokens):
            note(line)
    note("")
    note(markdown.head(("tokens", "", *NAMES, "bytes kept")))
    for tokens in options.tokens:
        for line in accuracies(callers, tokens):
            note(line)
    note("")
    conditions()
    note(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
