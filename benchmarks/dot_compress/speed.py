"""Time dot_compress on a GPU beside eager PyTorch, Inductor and a copy of the same bytes.

    python -m benchmarks.dot_compress.speed --write docs/bench/dot_compress.csv     # some minutes on an H200

Forward, and backward alone, at the reported shape x (B, 3219, 256), y (B, 3219, 64) in bfloat16.  Medians in
us of single calls for which the device waits, of calls that the host has queued, and of one replay of a CUDA
graph; the tensors of the largest batch are 50 times the last-level cache.  The floor is a copy of the bytes
that moving each tensor once makes, the faster of the two.  With --max-autotune Inductor times its templates
first, which takes minutes.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import command


def make_parser() -> argparse.ArgumentParser:
    parser = command.parser("dot_compress.speed", __doc__)
    parser.add_argument("--write", type=Path, default=Path("dot_compress.csv"), metavar="FILE")
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 128, 1152])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--max-autotune", action="store_true", help="Inductor in that mode too")
    return parser


if __name__ == "__main__":
    # what follows imports torch, which takes seconds
    make_parser().parse_args()

import torch

from benchmarks.jobs import Table, of_now
from benchmarks.timing import conditions, queued, ready
from helion_sinkhorn import dot_compress, reference
from helion_sinkhorn.tuning.timing import Run, captured, timed
from helion_sinkhorn.workloads import WORKLOADS

SHAPE = WORKLOADS["dot_dcpp_b1152"]


def medians(run: Run, repeats: int) -> float:
    """Median microseconds of single calls, after some that warm up the host."""
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    return statistics.median(timed(run) for _ in range(repeats))


def medians_in_a_graph(make: Callable[[], Run], repeats: int) -> float:
    """The same of a graph of one call; `benchmarks.timing.graph` shares the launch among many."""
    run, stream = ready(make)
    return medians(captured(run, stream=stream), repeats)


def floor(entries: int, repeats: int) -> float:
    """A copy of `entries` bfloat16 numbers, read and written together."""
    source = torch.empty(entries, dtype=torch.uint8, device="cuda")
    copy = functools.partial(torch.empty_like(source).copy_, source)
    # on an H200 a copy of 2.6 GB takes half as long again in a graph, where it is another operation
    return min(medians(copy, repeats), medians_in_a_graph(lambda: copy, repeats))


def call_of(f: Callable, x, y, grad) -> Run:
    return functools.partial(f, x, y)


def backward_of(f: Callable, x, y, grad) -> Run:
    leaves = [t.detach().requires_grad_() for t in (x, y)]
    out = f(*leaves)
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    command.need_gpu(parser)
    begin = time.perf_counter()
    callers = {
        "eager": reference.dot_compress,
        "Inductor": torch.compile(reference.dot_compress, dynamic=False),
        "dot_compress": dot_compress,
        "dot_compress, precise": functools.partial(dot_compress, precise_intermediate=True),
    }
    if options.max_autotune:
        mode = "max-autotune-no-cudagraphs"
        callers["Inductor, max-autotune"] = torch.compile(reference.dot_compress, dynamic=False, mode=mode)
    table = Table(options.write, {**of_now(), **conditions(torch.device("cuda"))})
    m, d, k = SHAPE.m, SHAPE.d, SHAPE.k
    torch._functorch.config.donated_buffer = False
    # each batch, pass and mode is a compilation of its own; beyond the limit Dynamo runs eager PyTorch
    torch._dynamo.config.recompile_limit = 64

    def note(batch: int, which: str, function: str, **found: object) -> None:
        row = {"function": function, "batch": batch, "pass": which, **found}
        print(row, flush=True)
        table.add(row)
        table.write()

    for batch in options.batches:
        generator = torch.Generator("cuda").manual_seed(0)
        x, y, grad = (
            torch.randn(batch, m, n, dtype=torch.bfloat16, device="cuda", generator=generator)
            for n in (d, k, k)
        )
        for name, entries in (("forward", d + 2 * k), ("backward", 2 * d + 3 * k)):
            least = floor(batch * m * entries, options.repeats)
            note(batch, name, "copy", us=least, us_queued=f"{least:.4g}", us_graph=f"{least:.4g}")
            for who, f in callers.items():
                try:
                    make = functools.partial(call_of if name == "forward" else backward_of, f, x, y, grad)
                    run = make()
                    us, in_queue = medians(run, options.repeats), queued(run)[0]
                    del run
                    graph = medians_in_a_graph(make, options.repeats)
                    note(batch, name, who, us=us, us_queued=f"{in_queue:.4g}", us_graph=f"{graph:.4g}")
                except Exception as problem:  # the other rows are still worth their time on the device
                    note(batch, name, who, note=f"{type(problem).__name__}: {str(problem)[:80]}")
                torch.cuda.empty_cache()
    print(f"{time.perf_counter() - begin:.0f} s in all, {options.write} written")


if __name__ == "__main__":
    main()
