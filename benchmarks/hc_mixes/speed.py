"""Time hc_mixes on a GPU beside PyTorch, eager and compiled, and a copy of the same bytes.

    python -m benchmarks.hc_mixes.speed [--tokens 8192 65536] [--hidden 4096 5120 7168] [--out FILE]
                                        [--only hc_mixes "eager TF32" ...]     # some minutes on an H200

Forward without gradients, and backward alone, of bfloat16 streams, n = 4, M = 24.  Median us and the 20 and
80 % quantiles of single calls that the host has queued ahead, and the median of a call in a CUDA graph.
Calls go round over inputs of a gigabyte together, so that none finds its own in the cache.  The bytes are
those of every tensor moved once, and the copy moves as many.  Errors are against float64 over all tokens: the
largest of mixes and dfn relative to the root mean square of the result, of dx the root mean square relative
to that of one rounding of the exact dx.  The peak is what backward allocates at most, relative to dx and dfn.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch._dynamo import mark_dynamic
from torch._functorch import config as functorch

from benchmarks import command, memory, timing
from helion_sinkhorn import hc_mixes, reference
from helion_sinkhorn.tuning import markdown

STREAMS, ROWS = 4, 24
TOKENS, HIDDEN = [1 << 13, 1 << 16], [4096, 5120, 7168]
ROTATED_BYTES = 1 << 30
"""Streams of all inputs together: twenty times an H200's cache."""
PIECE = 1 << 10
"""Tokens computed in float64 at a time."""
Tensors = tuple[torch.Tensor, ...]
Run = Callable[[], object]
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def drawn(tokens: int, hidden: int, seed: int = 0, device: str = "cuda") -> Tensors:
    """(x, fn, dmixes), drawn on the device."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator, dtype=dtype)

    x = normal(tokens, STREAMS, hidden, dtype=torch.bfloat16)
    return x, 0.02 * normal(ROWS, STREAMS * hidden), normal(tokens, ROWS)


def specification(x: torch.Tensor, fn: torch.Tensor) -> torch.Tensor:
    return reference.hc_mixes(x.float(), fn)


def callers() -> dict[str, tuple[Function, bool]]:
    """name -> (function, whether PyTorch's float32 products are TF32)."""
    compiled = torch.compile(specification)
    return {
        "hc_mixes": (hc_mixes, False),
        "hc_mixes, tf32": (functools.partial(hc_mixes, precision="tf32"), False),
        "eager": (specification, False),
        "eager TF32": (specification, True),
        "Inductor": (compiled, False),
        "Inductor TF32": (compiled, True),
    }


@contextlib.contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def leaves_of(x: torch.Tensor, fn: torch.Tensor) -> list[torch.Tensor]:
    leaves = [t.detach().requires_grad_() for t in (x, fn)]
    # one compilation for all numbers of tokens
    mark_dynamic(leaves[0], 0)
    return leaves


def forward_of(f: Function, x: torch.Tensor, fn: torch.Tensor, dmixes: torch.Tensor) -> Run:
    given = x.detach()
    mark_dynamic(given, 0)
    return lambda: f(given, fn)


def backward_of(f: Function, x: torch.Tensor, fn: torch.Tensor, dmixes: torch.Tensor) -> Run:
    leaves = leaves_of(x, fn)
    mixes = f(*leaves)
    return lambda: torch.autograd.grad(mixes, leaves, dmixes, retain_graph=True)


MAKERS = {"forward": forward_of, "backward": backward_of}


def bytes_of(name: str, x: torch.Tensor, fn: torch.Tensor, dmixes: torch.Tensor) -> int:
    """x, fn, mixes; x, dx, fn, dfn, mixes and dmixes."""
    return (x.nbytes + fn.nbytes + dmixes.nbytes) * (1 if name == "forward" else 2)


def rows_of_times(who: dict[str, tuple[Function, bool]], tokens: int, hidden: int) -> Iterator[str]:
    size = 2 * tokens * STREAMS * hidden
    inputs = [drawn(tokens, hidden, seed) for seed in range(max(1, ROTATED_BYTES // size))]
    for name, maker in MAKERS.items():
        moved = bytes_of(name, *inputs[0])

        def copies(moved=moved) -> Run:
            sources = [torch.empty(moved // 2, dtype=torch.uint8, device="cuda") for _ in inputs]
            return timing.in_turn([functools.partial(torch.empty_like(s).copy_, s) for s in sources])

        least, least_graph = timing.queued_and_graph(copies)
        yield row(tokens, hidden, name, "copy", moved, least, least_graph, least[0], least_graph)
        for caller, (f, tf32) in who.items():
            try:
                with tf32_products(tf32):
                    found, in_graph = timing.queued_and_graph(
                        lambda f=f, maker=maker: timing.in_turn([maker(f, *given) for given in inputs])
                    )
                yield row(tokens, hidden, name, caller, moved, found, in_graph, least[0], least_graph)
            except Exception as problem:  # the other rows are still worth their time on the device
                yield markdown.line((tokens, hidden, name, caller, said(problem), *[""] * 5))
            torch.cuda.empty_cache()


def row(tokens, hidden, name, who, moved, found, in_graph, least, least_graph) -> str:
    median, low, high = found
    return markdown.line((
        tokens, hidden, name, who, f"{median:.1f}", f"{low:.1f} to {high:.1f}", f"{median / least:.2f}",
        f"{in_graph:.1f}", f"{in_graph / least_graph:.2f}", f"{1e-6 * moved / in_graph:.2f}",
    ))  # fmt: skip


def said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {str(problem)[:80]!r}"


def exact_pieces(x, fn, dmixes) -> Iterator[tuple[slice, Tensors]]:
    """mixes, dx and dfn in float64 of some tokens at a time; dfn is theirs."""
    for first in range(0, len(x), PIECE):
        at = slice(first, first + PIECE)
        leaves = [t.double().requires_grad_() for t in (x[at], fn)]
        mixes = reference.hc_mixes(*leaves)
        yield at, (mixes.detach(), *torch.autograd.grad(mixes, leaves, dmixes[at].double()))


def errors(f: Function, x: torch.Tensor, fn: torch.Tensor, dmixes: torch.Tensor) -> list[float]:
    """(largest of mixes, of dfn, relative to the result; root mean square of dx relative to one rounding)."""
    leaves = leaves_of(x, fn)
    mixes = f(*leaves)
    dx, dfn = torch.autograd.grad(mixes, leaves, dmixes)
    mixes = mixes.detach()
    largest, squares, of_dx, of_rounding, sum_of_dfn = 0.0, 0.0, 0.0, 0.0, 0.0
    for at, (right, right_dx, part) in exact_pieces(x, fn, dmixes):
        largest = max(largest, (mixes[at] - right).abs().max().item())
        squares += right.square().sum().item()
        of_dx += (dx[at] - right_dx).square().sum().item()
        of_rounding += (right_dx.to(dx.dtype) - right_dx).square().sum().item()
        sum_of_dfn = sum_of_dfn + part
    wrong = (dfn - sum_of_dfn).abs().max() / sum_of_dfn.square().mean().sqrt()
    return [largest / (squares / mixes.numel()) ** 0.5, wrong.item(), (of_dx / of_rounding) ** 0.5]


def rows_of_errors(who: dict[str, tuple[Function, bool]], tokens: int, hidden: int) -> Iterator[str]:
    given = drawn(tokens, hidden)
    for caller, (f, tf32) in who.items():
        try:
            with tf32_products(tf32):
                mixes, dfn, dx = errors(f, *given)
                most = memory.peak(f, leaves_of(*given[:2]), given[2])
            found = f"{mixes:.1e}", f"{dfn:.1e}", f"{dx:.4f}", f"{most:.3f}"
        except Exception as problem:
            found = said(problem), "", "", ""
        yield markdown.line((tokens, hidden, caller, *found))
        torch.cuda.empty_cache()


def main() -> None:
    parser = command.parser("hc_mixes.speed", __doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--hidden", type=int, nargs="+", default=HIDDEN)
    every = callers()
    parser.add_argument("--only", nargs="+", choices=every, default=list(every), metavar="WHO")
    parser.add_argument("--out", type=Path, help="also write the tables there")
    options = parser.parse_args()
    command.need_gpu(parser)
    begin, lines, who = time.perf_counter(), [], {name: every[name] for name in options.only}
    # the backward pass alone is run again and again on one forward pass
    functorch.donated_buffer = False

    def note(*said: str) -> None:
        for line in said:
            print(line, flush=True)
            lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    def conditions() -> None:
        note(", ".join(f"{k} {v}" for k, v in timing.conditions(torch.device("cuda")).items()))

    shapes = list(itertools.product(options.tokens, options.hidden))
    conditions()
    timed = "us", "20 to 80 %", "x copy", "us in a graph", "x copy", "TB/s"
    note("", markdown.head(("tokens", "C", "pass", "", *timed)))
    for shape in shapes:
        for line in rows_of_times(who, *shape):
            note(line)
    note("", markdown.head(("tokens", "C", "", "mixes", "dfn", "dx, x one rounding", "backward's peak")))
    for shape in shapes:
        for line in rows_of_errors(who, *shape):
            note(line)
    note("")
    conditions()
    note(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
