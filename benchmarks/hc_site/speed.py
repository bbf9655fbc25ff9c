"""Time the residual path around a sublayer on a GPU, beside its parts and a copy of its bytes.

    python -m benchmarks.hc_site.speed [--only site "boundary V4" "boundary V4.1"] [--tokens 8192]
                                       [--hidden 4096 7168] [--serving 1 16 128] [--no-compile] [--out FILE]
                                       # some minutes on an H200

`site` is hc_site and, behind the sublayer, hc_post; the sublayer's output f is given, and new streams and the
sublayer's input are made.  A boundary is hc_boundary, from one sublayer's output to the next one's input.
bfloat16 streams, n = 4, parameters in float32.  `parts` are hc_coeffs, hc_pre and hc_post, with the sums of
autograd; `Inductor` is the specification in float32 under torch.compile.  Forward without gradients, and
backward alone, as in benchmarks.hc_streams.speed: us of single calls that the host has queued ahead, and of a
call in a CUDA graph.  The copy moves the bytes that are counted for `ours`: rows of streams, and fn, which
backward reads and writes.  For a few tokens, forward in a CUDA graph with the inputs in the cache, as a
server has it.  Errors of dx are against float64, over 256 tokens, relative to one rounding; the peak is what
backward allocates at most, relative to the gradients; kernels are those that the profiler counts.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch._functorch import config as functorch
from torch.profiler import ProfilerActivity, profile

from benchmarks import command, memory, timing
from benchmarks.hc_streams.speed import Row, copies, drawing, said, times, with_free_tokens
from helion_sinkhorn import hc_boundary, hc_coeffs, hc_post, hc_pre, hc_site, reference
from helion_sinkhorn.tuning import markdown

STREAMS = 4
TOKENS, HIDDEN, SERVING = [1 << 13], [4096, 7168], [1, 16, 128]
ROTATED_BYTES = 1 << 30
"""Streams of all inputs together: twenty times an H200's cache."""
JUDGED = 256
Tensors = tuple[torch.Tensor, ...]
Caller = Callable[..., Tensors]


@dataclass(frozen=True)
class Work:
    """What is timed: (f, x, ...) to results, all of which have an upstream gradient."""

    draw: Callable[[int, int, torch.Generator], tuple[Tensors, Tensors]]
    """(tokens, C, generator) -> inputs and upstream gradients; f comes first and x second."""
    specification: Caller
    """The results in the dtype of the inputs."""
    callers: dict[str, Caller]
    rows: dict[str, int]
    """Rows of the streams that `ours` moves for a token (docs/hc_site.md)."""

    def drawn(self, tokens: int, hidden: int, seed: int = 0) -> tuple[Tensors, Tensors]:
        return self.draw(tokens, hidden, torch.Generator("cuda").manual_seed(seed))


def parameters(hidden: int, normal: Callable[..., torch.Tensor]) -> Tensors:
    """(fn, scale, base)."""
    m = STREAMS * (STREAMS + 2)
    return 0.02 * normal(m, STREAMS * hidden).float(), torch.ones(3, device="cuda"), normal(m).float()


def site_inputs(tokens: int, hidden: int, generator: torch.Generator) -> tuple[Tensors, Tensors]:
    """(f, x, fn, scale, base), and the gradients of y and of the new streams."""
    normal, _ = drawing(generator)
    row, streams = (tokens, hidden), (tokens, STREAMS, hidden)
    given = normal(*row), normal(*streams), *parameters(hidden, normal)
    return given, (normal(*row), normal(*streams))


def site(f, x, fn, scale, base) -> Tensors:
    y, post, comb, residual = hc_site(x, fn, scale, base)
    return y, hc_post(f, residual, post, comb)


def site_parts(f, x, fn, scale, base) -> Tensors:
    pre, post, comb = hc_coeffs(x, fn, scale, base)
    return hc_pre(x, pre), hc_post(f, x, post, comb)


def specified_site(f, x, fn, scale, base) -> Tensors:
    y, post, comb, _ = reference.hc_site(x, fn, scale, base)
    return y, reference.hc_post(f, x, post, comb)


def boundary_inputs(tokens: int, hidden: int, generator: torch.Generator) -> tuple[Tensors, Tensors]:
    """(f, x, post, comb, pre_next, fn, scale, base), and the gradients of (y, pre, post, comb, streams)."""
    normal, uniform = drawing(generator)
    row, streams = (tokens, hidden), (tokens, STREAMS, hidden)
    weights, square = (tokens, STREAMS), (tokens, STREAMS, STREAMS)
    given = normal(*row), normal(*streams), uniform(*weights), uniform(*square), uniform(*weights)
    small = (normal(*shape).float() for shape in (weights, weights, square))
    return (*given, *parameters(hidden, normal)), (normal(*row), *small, normal(*streams))


def boundary_inputs_v4(tokens: int, hidden: int, generator: torch.Generator) -> tuple[Tensors, Tensors]:
    """The same without pre_next."""
    given, upstream = boundary_inputs(tokens, hidden, generator)
    return given[:4] + given[5:], upstream


def boundary(*given) -> Tensors:
    return tuple(hc_boundary(*given))


def boundary_parts(f, x, post, comb, pre_next, fn, scale, base) -> Tensors:
    streams = hc_post(f, x, post, comb)
    pre, post, comb = hc_coeffs(streams, fn, scale, base)
    return hc_pre(streams, pre if pre_next is None else pre_next), pre, post, comb, streams


def specified_boundary(f, x, post, comb, pre_next, fn, scale, base) -> Tensors:
    streams = reference.hc_post(f, x, post, comb)
    pre, post, comb = reference.hc_split_sinkhorn(reference.hc_mixes(streams, fn), scale, base)
    return reference.hc_pre(streams, pre if pre_next is None else pre_next), pre, post, comb, streams


def without_pre_next(caller: Caller) -> Caller:
    def called(f, x, post, comb, *rest) -> Tensors:
        return caller(f, x, post, comb, None, *rest)

    return called


def rounded_once(specification: Caller) -> Caller:
    """The specification in float32, with results like x rounded to its dtype."""

    def called(f, x, *rest) -> Tensors:
        results = specification(f.float(), x.float(), *rest)
        return tuple(t.to(x.dtype) if t.shape[-1] == x.shape[-1] else t for t in results)

    return called


V41 = Work(
    boundary_inputs, specified_boundary, {"ours": boundary, "parts": boundary_parts},
    {"forward": 10, "backward": 32},
)  # fmt: skip
WORKS = {
    "site": Work(
        site_inputs, specified_site, {"ours": site, "parts": site_parts}, {"forward": 18, "backward": 32}
    ),
    "boundary V4": replace(
        V41, draw=boundary_inputs_v4, specification=without_pre_next(specified_boundary),
        callers={who: without_pre_next(caller) for who, caller in V41.callers.items()},
        rows=V41.rows | {"forward": 14},
    ),
    "boundary V4.1": V41,
}  # fmt: skip


def forward_of(caller: Caller, given: Tensors, upstream: Tensors) -> timing.Run:
    inputs = tuple(t.detach() for t in given)
    with_free_tokens(inputs[:2])

    def run():
        with torch.no_grad():
            return caller(*inputs)

    return run


def leaves_of(given: Tensors) -> Tensors:
    leaves = tuple(t.detach().requires_grad_() for t in given)
    with_free_tokens(leaves[:2])
    return leaves


def backward_of(caller: Caller, given: Tensors, upstream: Tensors) -> timing.Run:
    leaves = leaves_of(given)
    out = caller(*leaves)
    return lambda: torch.autograd.grad(out, leaves, upstream, retain_graph=True)


MAKERS = {"forward": forward_of, "backward": backward_of}


def bytes_of(work: Work, of: str, given: Tensors) -> int:
    """Rows of the streams, and fn once, or twice with its gradient."""
    return work.rows[of] * given[0].nbytes + given[-3].nbytes * (1 if of == "forward" else 2)


def kernels_of(run: timing.Run) -> int:
    """Kernels that a call launches, copies and fills among them."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in found.events())


def rows_of_times(name: str, who: dict[str, Caller], tokens: int, hidden: int) -> Iterator[Row]:
    """A row for the copy and for each caller, forward and backward."""
    work, count = WORKS[name], max(1, ROTATED_BYTES // (2 * tokens * STREAMS * hidden))
    drawn = [work.drawn(tokens, hidden, seed) for seed in range(count)]
    for of, maker in MAKERS.items():
        moved = bytes_of(work, of, drawn[0][0])
        least = timing.queued_and_graph(functools.partial(copies, moved, count))
        where = name, tokens, hidden, of
        yield *where, "copy", 1, *times(least, least, moved)
        torch.cuda.empty_cache()
        for caller, run in who.items():
            try:
                found = timing.queued_and_graph(
                    lambda run=run, maker=maker: timing.in_turn([maker(run, *given) for given in drawn])
                )
                kernels = kernels_of(maker(run, *drawn[0]))
                yield *where, caller, kernels, *times(found, least, moved)
            except Exception as problem:  # the other rows are still worth their time on the device
                yield *where, caller, said(problem), *[""] * 6
            torch.cuda.empty_cache()


def rows_of_serving(name: str, who: dict[str, Caller], tokens: int, hidden: int) -> Iterator[Row]:
    """Forward of a few tokens in a graph; of a site also hc_site by itself."""
    drawn = WORKS[name].drawn(tokens, hidden)
    alone = {"hc_site alone": lambda f, *rest: hc_site(*rest)[:3]} if name == "site" else {}
    for caller, run in (who | alone).items():
        where = name, tokens, hidden, caller
        try:
            made = forward_of(run, *drawn)
            yield *where, f"{timing.queued_and_graph(lambda made=made: made)[1]:.1f}", kernels_of(made)
        except Exception as problem:
            yield *where, said(problem), ""


def error_of_dx(work: Work, caller: Caller, given: Tensors, upstream: Tensors) -> float:
    """The root mean square error of dx, relative to that of one rounding."""

    def few(tensors: Tensors) -> Tensors:
        return tuple(t[:JUDGED] if t.shape[0] == len(given[0]) else t for t in tensors)

    def dx_of(run: Caller, given: Tensors, upstream: Tensors) -> torch.Tensor:
        leaves = leaves_of(given)
        return torch.autograd.grad(run(*leaves), leaves[1], upstream)[0].double()

    given, upstream = few(given), few(upstream)
    exact = dx_of(work.specification, *(tuple(t.double() for t in some) for some in (given, upstream)))
    least = exact.to(given[1].dtype).double() - exact
    error = dx_of(caller, given, upstream) - exact
    return (error.square().mean() / least.square().mean()).sqrt().item()


def rows_of_errors(name: str, who: dict[str, Caller], tokens: int, hidden: int) -> Iterator[Row]:
    drawn = WORKS[name].drawn(tokens, hidden)
    for caller, run in who.items():
        where = name, tokens, hidden, caller
        try:
            error = error_of_dx(WORKS[name], run, *drawn)
            yield *where, f"{error:.4f}", f"{memory.peak(run, leaves_of(drawn[0]), drawn[1]):.3f}"
        except Exception as problem:
            yield *where, said(problem), ""
        torch.cuda.empty_cache()


def main() -> None:
    parser = command.parser("hc_site.speed", __doc__)
    parser.add_argument("--only", choices=WORKS, nargs="+", default=list(WORKS))
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--hidden", type=int, nargs="+", default=HIDDEN)
    parser.add_argument("--serving", type=int, nargs="*", default=SERVING, help="few tokens, forward alone")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--out", type=Path, help="also write the tables there")
    options = parser.parse_args()
    command.need_gpu(parser)
    # the backward pass alone is run again and again on one forward pass
    functorch.donated_buffer = False
    who = {name: dict(WORKS[name].callers) for name in options.only}
    if not options.no_compile:
        for name, callers in who.items():
            callers["Inductor"] = torch.compile(rounded_once(WORKS[name].specification))
    lines: list[str] = []

    def note(*said: str) -> None:
        for line in said:
            print(line, flush=True)
            lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    def conditions() -> None:
        note(", ".join(f"{k} {v}" for k, v in timing.conditions(torch.device("cuda")).items()))

    def tables(titles: tuple[str, ...], rows: Callable[..., Iterator[Row]], tokens: list[int]) -> None:
        note("", markdown.head(("", "tokens", "C", *titles)))
        for name, *shape in itertools.product(options.only, tokens, options.hidden):
            for row in rows(name, who[name], *shape):
                note(markdown.line(row))

    conditions()
    timed = "us", "20 to 80 %", "x copy", "us in a graph", "x copy", "TB/s"
    tables(("forward", "us in a graph", "kernels"), rows_of_serving, options.serving)
    tables(("pass", "", "kernels", *timed), rows_of_times, options.tokens)
    tables(("", "dx, x one rounding", "backward's peak"), rows_of_errors, options.tokens)
    note("")
    conditions()


if __name__ == "__main__":
    main()
