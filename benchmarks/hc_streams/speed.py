"""Time hc_pre and hc_post on a GPU beside eager PyTorch, Inductor and a copy of the same bytes.

    python -m benchmarks.hc_streams.speed [--only hc_pre hc_post] [--tokens 8192 65536]
                                          [--hidden 4096 5120 7168] [--no-compile] [--out FILE]
                                          # some minutes on an H200

Forward without gradients, and backward alone, of bfloat16 streams, n = 4, with float32 weights.  Median us
and the 20 and 80 % quantiles of single calls that the host has queued ahead, and the median of a call in a
CUDA graph.  Calls go round over inputs of a gigabyte together, so that none finds its own in the cache.  The
bytes are those of every tensor moved once, and the copy moves as many.  PyTorch computes in float32 and
rounds once, as these operators do.  Errors are against float64 over all tokens: of a bfloat16 result the root
mean square relative to that of one rounding of the exact one, of a float32 result the largest relative to its
root mean square.  The peak is what backward allocates at most, relative to the gradients.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch._dynamo import mark_dynamic
from torch._functorch import config as functorch

from benchmarks import command, memory, timing
from helion_sinkhorn import hc_post, hc_pre, reference
from helion_sinkhorn.ops.hc_post import budget as hc_post_budget
from helion_sinkhorn.ops.hc_pre import budget as hc_pre_budget
from helion_sinkhorn.tuning import markdown

STREAMS = 4
TOKENS, HIDDEN = [1 << 13, 1 << 16], [4096, 5120, 7168]
ROTATED_BYTES = 1 << 30
"""Streams of all inputs together: twenty times an H200's cache."""
PIECE = 1 << 10
"""Tokens computed in float64 at a time."""
Tensors = tuple[torch.Tensor, ...]
Row = tuple[object, ...]
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """One of the two operators, its inputs and its truth."""

    ours: Function
    specification: Function
    draw: Callable[[int, int, torch.Generator], Tensors]
    """(tokens, C, generator) -> the inputs, and last the upstream gradient."""
    exact: Callable[..., dict[str, torch.Tensor]]
    """The result and its gradients in float64, by name."""

    def in_float32(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The specification in float32, rounded once; every operator has x among its bfloat16 inputs."""
        return self.specification(*(t.float() for t in inputs)).bfloat16()


def of_pre(tokens: int, hidden: int, generator: torch.Generator) -> Tensors:
    """(x, pre, dy)."""
    normal, uniform = drawing(generator)
    return normal(tokens, STREAMS, hidden), uniform(tokens, STREAMS), normal(tokens, hidden)


def of_post(tokens: int, hidden: int, generator: torch.Generator) -> Tensors:
    """(f, x, post, comb, upstream gradient)."""
    normal, uniform = drawing(generator)
    f, x = normal(tokens, hidden), normal(tokens, STREAMS, hidden)
    post, comb = 2 * uniform(tokens, STREAMS), 2 / STREAMS * uniform(tokens, STREAMS, STREAMS)
    return f, x, post, comb, normal(tokens, STREAMS, hidden)


def drawing(generator: torch.Generator) -> tuple[Callable[..., torch.Tensor], ...]:
    """Standard normal numbers in bfloat16, and numbers between 0 and 1 in float32."""
    options = {"generator": generator, "device": generator.device}
    return (
        lambda *shape: torch.randn(shape, dtype=torch.bfloat16, **options),
        lambda *shape: torch.rand(shape, **options),
    )


def exact_post(*given: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tokens as one element, as the budget has them."""
    return {name: t[0] for name, t in hc_post_budget.exact(*(t[None] for t in given)).items()}


OPERATIONS = {
    "hc_pre": Operation(hc_pre, reference.hc_pre, of_pre, hc_pre_budget.exact),
    "hc_post": Operation(hc_post, reference.hc_post, of_post, exact_post),
}
NAMES = {"hc_pre": hc_pre_budget.RESULTS, "hc_post": hc_post_budget.RESULTS[:-1]}


def drawn(operation: Operation, tokens: int, hidden: int, seed: int = 0) -> Tensors:
    return operation.draw(tokens, hidden, torch.Generator("cuda").manual_seed(seed))


def callers(operation: Operation, with_compiler: bool) -> dict[str, Function]:
    found = {"ours": operation.ours, "eager": operation.in_float32}
    # one compilation for all numbers of tokens
    return found | ({"Inductor": torch.compile(operation.in_float32)} if with_compiler else {})


def with_free_tokens(tensors: Tensors) -> Tensors:
    for t in tensors:
        mark_dynamic(t, 0)
    return tensors


def leaves_of(given: Tensors) -> Tensors:
    """The inputs of a call, to be differentiated; the upstream gradient is the last of `given`."""
    return with_free_tokens(tuple(t.detach().requires_grad_() for t in given[:-1]))


def forward_of(f: Function, given: Tensors) -> timing.Run:
    inputs = with_free_tokens(tuple(t.detach() for t in given[:-1]))
    return lambda: f(*inputs)


def backward_of(f: Function, given: Tensors) -> timing.Run:
    leaves = leaves_of(given)
    out = f(*leaves)
    return lambda: torch.autograd.grad(out, leaves, given[-1], retain_graph=True)


MAKERS = {"forward": forward_of, "backward": backward_of}


def bytes_of(name: str, given: Tensors) -> int:
    """Inputs and the result, which is like the upstream gradient; that, inputs and their gradients."""
    inputs = sum(t.nbytes for t in given[:-1])
    return (1 if name == "forward" else 2) * inputs + given[-1].nbytes


def copies(moved: int, count: int, device: str = "cuda") -> timing.Run:
    """Copies that read and write so many bytes together."""
    sources = [torch.empty(moved // 2, dtype=torch.uint8, device=device) for _ in range(count)]
    return timing.in_turn([functools.partial(torch.empty_like(s).copy_, s) for s in sources])


def rows_of_times(name: str, who: dict[str, Function], tokens: int, hidden: int) -> Iterator[Row]:
    """A row for the copy and for each caller, forward and backward."""
    count = max(1, ROTATED_BYTES // (2 * tokens * STREAMS * hidden))
    inputs = [drawn(OPERATIONS[name], tokens, hidden, seed) for seed in range(count)]
    for of, maker in MAKERS.items():
        moved = bytes_of(of, inputs[0])
        least = timing.queued_and_graph(functools.partial(copies, moved, count))
        where = name, tokens, hidden, of
        yield *where, "copy", *times(least, least, moved)
        torch.cuda.empty_cache()
        for caller, f in who.items():
            try:
                found = timing.queued_and_graph(
                    lambda f=f, maker=maker: timing.in_turn([maker(f, given) for given in inputs])
                )
                yield *where, caller, *times(found, least, moved)
            except Exception as problem:  # the other rows are still worth their time on the device
                yield *where, caller, said(problem), *[""] * 5
            torch.cuda.empty_cache()


def times(found: tuple[timing.Times, float], least: tuple[timing.Times, float], moved: int) -> Row:
    (median, low, high), graph = found
    return (
        f"{median:.1f}", f"{low:.1f} to {high:.1f}", f"{median / least[0][0]:.2f}", f"{graph:.1f}",
        f"{graph / least[1]:.2f}", f"{1e-6 * moved / graph:.2f}",
    )  # fmt: skip


def said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem)[:80]!r}"


def errors(name: str, f: Function, given: Tensors) -> list[str]:
    """The error of each result, in words."""
    leaves = leaves_of(given)
    out = f(*leaves)
    found = dict(zip(NAMES[name], (out.detach(), *torch.autograd.grad(out, leaves, given[-1])), strict=True))
    largest, wrong, rounding, squares = ({result: 0.0 for result in found} for _ in range(4))
    for first in range(0, len(given[-1]), PIECE):
        at = slice(first, first + PIECE)
        for result, exact in OPERATIONS[name].exact(*(t[at] for t in given)).items():
            error = found[result][at].double() - exact
            largest[result] = max(largest[result], error.abs().max().item())
            wrong[result] += error.square().sum().item()
            rounding[result] += (exact.to(found[result].dtype).double() - exact).square().sum().item()
            squares[result] += exact.square().sum().item()
    words = []
    for result, t in found.items():
        if t.dtype == torch.float32:
            size = (squares[result] / t.numel()) ** 0.5
            words.append(f"{result} {largest[result] / size:.1e}")
        else:
            words.append(f"{result} {(wrong[result] / rounding[result]) ** 0.5:.4f} x")
    return words


def rows_of_errors(name: str, who: dict[str, Function], tokens: int, hidden: int) -> Iterator[Row]:
    given = drawn(OPERATIONS[name], tokens, hidden)
    for caller, f in who.items():
        where = name, tokens, hidden, caller
        try:
            yield (
                *where,
                ", ".join(errors(name, f, given)),
                f"{memory.peak(f, leaves_of(given), given[-1]):.3f}",
            )
        except Exception as problem:
            yield *where, said(problem), ""
        torch.cuda.empty_cache()


def main() -> None:
    parser = command.parser("hc_streams.speed", __doc__)
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--hidden", type=int, nargs="+", default=HIDDEN)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--out", type=Path, help="also write the tables there")
    options = parser.parse_args()
    command.need_gpu(parser)
    begin, lines = time.perf_counter(), []
    # the backward pass alone is run again and again on one forward pass
    functorch.donated_buffer = False
    who = {name: callers(OPERATIONS[name], not options.no_compile) for name in options.only}
    cases = list(itertools.product(options.only, options.tokens, options.hidden))

    def note(*said: str) -> None:
        for line in said:
            print(line, flush=True)
            lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    def conditions() -> None:
        note(", ".join(f"{k} {v}" for k, v in timing.conditions(torch.device("cuda")).items()))

    conditions()
    timed = "us", "20 to 80 %", "x copy", "us in a graph", "x copy", "TB/s"
    note("", markdown.head(("", "tokens", "C", "pass", "", *timed)))
    for name, tokens, hidden in cases:
        for row in rows_of_times(name, who[name], tokens, hidden):
            note(markdown.line(row))
    note("", markdown.head(("", "tokens", "C", "", "errors", "backward's peak")))
    for name, tokens, hidden in cases:
        for row in rows_of_errors(name, who[name], tokens, hidden):
            note(markdown.line(row))
    note("")
    conditions()
    note(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
