"""Time a whole mHC site on a GPU, before and behind its sublayer, beside its parts and a copy of its bytes.

    python -m benchmarks.hc_site.speed [--tokens 8192] [--hidden 4096 7168] [--serving 1 16 128]
                                       [--no-compile] [--out FILE]

A site takes the sublayer's output f as given: (f, x, fn, scale, base) to the sublayer's input and the new
streams.  bfloat16 streams, n = 4, parameters in float32.  `ours` is hc_site and hc_post, `parts` hc_coeffs,
hc_pre and hc_post on x, with the sums of autograd, `Inductor` the specification in float32 under
torch.compile.  Forward without gradients, and backward alone, as in benchmarks.hc_streams.speed: us of single
calls that the host has queued ahead, and of a call in a CUDA graph.  The copy moves the bytes that are
counted for `ours`: of streams 18 rows a token forward and 32 backward, and fn, which backward reads and
writes.  For a few tokens, forward in a CUDA graph with the inputs in the cache, as a server has it.  Errors
of dx are against float64, over 256 tokens, relative to one rounding; the peak is what backward allocates at
most, relative to the gradients; kernels are those that the profiler counts.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch._functorch import config as functorch
from torch.profiler import ProfilerActivity, profile

from benchmarks import timing
from benchmarks.hc_streams.speed import copies, drawing, said, table, times, with_free_tokens
from helion_sinkhorn import hc_coeffs, hc_post, hc_pre, hc_site, reference

STREAMS = 4
TOKENS, HIDDEN, SERVING = [1 << 13], [4096, 7168], [1, 16, 128]
ROTATED_BYTES = 1 << 30
"""Streams of all inputs together: twenty times an H200's cache."""
ROWS = {"forward": 18, "backward": 32}
"""Rows of the streams that `ours` moves for a token (docs/hc_site.md)."""
JUDGED = 256
Tensors = tuple[torch.Tensor, ...]
Site = Callable[..., Tensors]


def ours(f, x, fn, scale, base) -> Tensors:
    y, post, comb, residual = hc_site(x, fn, scale, base)
    return y, hc_post(f, residual, post, comb)


def parts(f, x, fn, scale, base) -> Tensors:
    pre, post, comb = hc_coeffs(x, fn, scale, base)
    return hc_pre(x, pre), hc_post(f, x, post, comb)


def in_float32(f, x, fn, scale, base) -> Tensors:
    """The specification, y and the new streams rounded once."""
    y, out = specified(f.float(), x.float(), fn, scale, base)
    return y.to(x.dtype), out.to(x.dtype)


def specified(f, x, fn, scale, base) -> Tensors:
    y, post, comb, _ = reference.hc_site(x, fn, scale, base)
    return y, reference.hc_post(f, x, post, comb)


def drawn(tokens: int, hidden: int, seed: int = 0) -> Tensors:
    """(f, x, fn, scale, base, dy, upstream gradient of the new streams)."""
    normal, _ = drawing(torch.Generator("cuda").manual_seed(seed))
    m = STREAMS * (STREAMS + 2)
    fn = 0.02 * normal(m, STREAMS * hidden).float()
    return (
        normal(tokens, hidden), normal(tokens, STREAMS, hidden), fn, torch.ones(3, device="cuda"),
        normal(m).float(), normal(tokens, hidden), normal(tokens, STREAMS, hidden),
    )  # fmt: skip


def leaves_of(given: Tensors) -> Tensors:
    leaves = tuple(t.detach().requires_grad_() for t in given[:5])
    with_free_tokens(leaves[:2])
    return leaves


def forward_of(site: Site, given: Tensors) -> timing.Run:
    inputs = tuple(t.detach() for t in given[:5])
    with_free_tokens(inputs[:2])

    def run():
        with torch.no_grad():
            return site(*inputs)

    return run


def backward_of(site: Site, given: Tensors) -> timing.Run:
    leaves = leaves_of(given)
    out = site(*leaves)
    return lambda: torch.autograd.grad(out, leaves, given[5:], retain_graph=True)


MAKERS = {"forward": forward_of, "backward": backward_of}


def bytes_of(name: str, given: Tensors) -> int:
    row, fn = given[0].nbytes, given[2].nbytes
    return ROWS[name] * row + (fn if name == "forward" else 2 * fn)


def kernels_of(run: timing.Run) -> int:
    """Kernels that a call launches, copies and fills among them."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in found.events())


def rows_of_times(who: dict[str, Site], tokens: int, hidden: int) -> Iterator[str]:
    """A line for the copy and for each caller, forward and backward."""
    count = max(1, ROTATED_BYTES // (2 * tokens * STREAMS * hidden))
    inputs = [drawn(tokens, hidden, seed) for seed in range(count)]
    for of, maker in MAKERS.items():
        moved = bytes_of(of, inputs[0])
        least = timing.queued_and_graph(functools.partial(copies, moved, count))
        where = f"| {tokens} | {hidden} | {of}"
        yield f"{where} | copy | 1 {times(least, least, moved)}"
        torch.cuda.empty_cache()
        for caller, site in who.items():
            try:
                found = timing.queued_and_graph(
                    lambda site=site, maker=maker: timing.in_turn([maker(site, given) for given in inputs])
                )
                kernels = kernels_of(maker(site, inputs[0]))
                yield f"{where} | {caller} | {kernels} {times(found, least, moved)}"
            except Exception as problem:  # the other rows are still worth their time on the device
                yield f"{where} | {caller} | {said(problem)} |{' |' * 6}"
            torch.cuda.empty_cache()


def rows_of_serving(who: dict[str, Site], tokens: int, hidden: int) -> Iterator[str]:
    """Forward of a few tokens in a graph, hc_site with hc_post and by itself."""
    given = drawn(tokens, hidden)
    alone = {"hc_site alone": lambda f, *rest: hc_site(*rest)[:3]}
    for caller, site in (who | alone).items():
        where = f"| {tokens} | {hidden} | {caller}"
        try:
            run = forward_of(site, given)
            yield f"{where} | {timing.queued_and_graph(lambda run=run: run)[1]:.1f} | {kernels_of(run)} |"
        except Exception as problem:
            yield f"{where} | {said(problem)} | |"


def error_of_dx(site: Site, given: Tensors) -> float:
    """The root mean square error of dx, relative to that of one rounding."""
    few = (*(t[:JUDGED] for t in given[:2]), *given[2:5], *(t[:JUDGED] for t in given[5:]))

    def dx_of(site: Site, tensors: Tensors) -> torch.Tensor:
        leaves = leaves_of(tensors)
        return torch.autograd.grad(site(*leaves), leaves[1], tensors[5:])[0].double()

    exact = dx_of(specified, tuple(t.double() for t in few))
    least = exact.to(given[1].dtype).double() - exact
    return ((dx_of(site, few) - exact).square().mean() / least.square().mean()).sqrt().item()


def peak(site: Site, given: Tensors) -> float:
    """Bytes that backward allocates at most, relative to those of the gradients."""
    leaves = leaves_of(given)
    out = site(*leaves)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(out, leaves, given[5:])
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / sum(t.nbytes for t in leaves)


def rows_of_errors(who: dict[str, Site], tokens: int, hidden: int) -> Iterator[str]:
    given = drawn(tokens, hidden)
    for caller, site in who.items():
        where = f"| {tokens} | {hidden} | {caller}"
        try:
            yield f"{where} | {error_of_dx(site, given):.4f} | {peak(site, given):.3f} |"
        except Exception as problem:
            yield f"{where} | {said(problem)} | |"
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--hidden", type=int, nargs="+", default=HIDDEN)
    parser.add_argument("--serving", type=int, nargs="*", default=SERVING, help="few tokens, forward alone")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--out", type=Path, help="also write the tables there")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark times kernels on a GPU, and torch sees none")
    # the backward pass alone is run again and again on one forward pass
    functorch.donated_buffer = False
    who: dict[str, Site] = {"ours": ours, "parts": parts}
    who |= {} if options.no_compile else {"Inductor": torch.compile(in_float32)}
    lines: list[str] = []

    def note(*said: str) -> None:
        for line in said:
            print(line, flush=True)
            lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    def conditions() -> None:
        note(", ".join(f"{k} {v}" for k, v in timing.conditions(torch.device("cuda")).items()))

    def tables(titles: tuple[str, ...], rows: Callable[..., Iterator[str]], tokens: list[int]) -> None:
        note(*table("tokens", "C", *titles))
        for shape in itertools.product(tokens, options.hidden):
            for line in rows(who, *shape):
                note(line)

    conditions()
    timed = "us", "20 to 80 %", "x copy", "us in a graph", "x copy", "TB/s"
    tables(("pass", "", "kernels", *timed), rows_of_times, options.tokens)
    tables(("", "dx, x one rounding", "backward's peak"), rows_of_errors, options.tokens)
    tables(("forward", "us in a graph", "kernels"), rows_of_serving, options.serving)
    note("")
    conditions()


if __name__ == "__main__":
    main()
