"""A seam in the CUDA graph of a server: microseconds by tokens, with the RMSNorm of the next sublayer.

The graph has GRAPH_CALLS seams, each with weights of its own, as in a model: past L2 in all, while streams
and results are in it.  `kernels` are times of launches by themselves, from the profiler; `floor` is bytes,
fn as it is kept, over the rate of a copy.
"""

from __future__ import annotations

import argparse
import collections
import itertools

import torch

from benchmarks.jobs import Table, of_now
from benchmarks.residual_path.operations import EPS, ITERATIONS, ROWS, STREAMS, drawn
from benchmarks.timing import GRAPH_CALLS, conditions, graph
from helion_sinkhorn import Out, hc_boundary, hc_prepare

MILLISECONDS = 10.0
COPIED = 1 << 29
SHOWN = "scheme", "columns", "tokens", "us", "us_unprepared", "us_vllm", "floor_us", "kernels"
SCHEMES = {"V4.1": "normed_boundary", "V4": "normed_seam"}


def seams(scheme: str, tokens: int, columns: int):
    """A function that makes the next of GRAPH_CALLS seams, and the projections that they have."""
    drawn_once = drawn(SCHEMES[scheme], tokens, columns, "cuda")
    *update, fn, scale, base, norm = drawn_once
    update = [*update, None][:5]
    layers = [(fn.clone(), norm.clone()) for _ in range(GRAPH_CALLS)]
    turn = itertools.cycle(layers)
    results = hc_boundary(*update, fn, scale, base, ITERATIONS, EPS, EPS, y_norm_weight=norm)
    out = Out(*(torch.empty_like(t) for t in results))

    def run() -> None:
        own, weight = next(turn)
        given = *update, own, scale, base, ITERATIONS, EPS, EPS
        hc_boundary(*given, y_norm_weight=weight, y_norm_eps=EPS, out=out)

    return run, [own for own, _ in layers]


def of_vllm(scheme: str, tokens: int, columns: int):
    """The same seams by the kernels of an installed vLLM; raises AssertionError if its results are others."""
    from vllm.model_executor.kernels.mhc import tilelang as kernels

    *update, fn, scale, base, norm = drawn(SCHEMES[scheme], tokens, columns, "cuda")
    f, x, post, comb, *pre_next = update
    turn = itertools.cycle([fn.clone() for _ in range(GRAPH_CALLS)])

    def run(own: torch.Tensor | None = None):
        given = f, x, post.unsqueeze(-1), comb, next(turn) if own is None else own, scale, base
        constants, normed = (EPS, EPS, EPS, 2.0, ITERATIONS), {"norm_weight": norm, "norm_eps": EPS}
        if pre_next:
            return kernels.mhc_fused_post_pre_delayed_tilelang(
                *given, *constants, pre_mix=pre_next[0], **normed
            )
        return kernels.mhc_fused_post_pre_tilelang(*given, *constants, **normed)

    ours = hc_boundary(
        *[*update, None][:5], fn, scale, base, ITERATIONS, EPS, EPS, y_norm_weight=norm, y_norm_eps=EPS
    )
    streams, post_of, comb_of, y, *_ = run(fn)
    # their projection may be in TF32
    for theirs, own in (
        (streams, ours.residual),
        (post_of[..., 0], ours.post),
        (comb_of, ours.comb),
        (y, ours.y),
    ):
        torch.testing.assert_close(theirs.float(), own.float(), rtol=0.02, atol=0.02)
    return run


def by_kernel(run, calls: int = 20) -> dict[str, float]:
    """Mean microseconds of each kernel of a call, from the profiler, in the order of their launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    spent: dict[str, float] = collections.defaultdict(float)
    for event in sorted(found.events(), key=lambda e: e.time_range.start):
        if event.device_type == torch.autograd.DeviceType.CUDA:
            name = event.name.removeprefix("_helion_").split("(")[0]
            spent[name] += event.device_time_total / calls
    return dict(spent)


def copy_rate() -> float:
    """Bytes a microsecond that a copy reads and writes."""
    given, made = (torch.empty(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * COPIED / graph(lambda: lambda: made.copy_(given), MILLISECONDS)[0]


def moved(scheme: str, tokens: int, columns: int) -> int:
    """Bytes of a seam: streams of bfloat16 once each way, f, y, coefficients, and three parts of fn."""
    streams = (2 * STREAMS + 2) * 2 * columns
    coefficients = 4 * (2 * ROWS if scheme == "V4" else 2 * ROWS + STREAMS)
    return tokens * (streams + coefficients) + 6 * ROWS * STREAMS * columns + 2 * columns


def rows(options: argparse.Namespace):
    rate = copy_rate()
    for scheme, columns, tokens in itertools.product(options.schemes, options.hidden, options.tokens):
        run, projections = seams(scheme, tokens, columns)
        with torch.inference_mode():
            anew = graph(lambda run=run: run, MILLISECONDS)[0]
        for own in projections:
            hc_prepare(own, boundary=True)
        with torch.inference_mode():
            us, low, high = graph(lambda run=run: run, MILLISECONDS)
            kernels = by_kernel(run) if tokens in options.profile else {}
            theirs = of_vllm(scheme, tokens, columns) if options.vllm else None
            us_vllm = round(graph(lambda run=theirs: run, MILLISECONDS)[0], 2) if theirs else ""
        yield {
            "scheme": scheme, "columns": columns, "tokens": tokens,
            "us": round(us, 2), "us_20": round(low, 2), "us_80": round(high, 2),
            "us_unprepared": round(anew, 2), "us_vllm": us_vllm,
            "floor_us": round(moved(scheme, tokens, columns) / rate, 2),
            "kernels": " + ".join(f"{name} {t:.2f}" for name, t in kernels.items()),
        }  # fmt: skip


def main(options: argparse.Namespace) -> None:
    table = Table(options.write, {**conditions(torch.device("cuda")), **of_now()})
    for row in rows(options):
        print(*(row[k] for k in SHOWN), sep="  ", flush=True)
        table.add(row)
        if options.write:
            table.write()
