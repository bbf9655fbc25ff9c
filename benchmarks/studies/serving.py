"""A seam in the CUDA graph of a server: microseconds by tokens, with the RMSNorm of the next sublayer.

The graph has GRAPH_CALLS calls, each with an fn of its own, as in a model: past L2 in all, while streams
and results are in it.  `kernels` are times of launches by themselves, from the profiler; `floor` is bytes,
fn as it is kept, over the rate of a copy.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import itertools
from typing import NamedTuple

import torch

from benchmarks import timing
from benchmarks.jobs import Table, of_now
from benchmarks.residual_path.operations import EPS, ITERATIONS, ROWS, STREAMS, drawn
from benchmarks.timing import GRAPH_CALLS, conditions, graph
from helion_sinkhorn import Out, hc_boundary, hc_prepare
from helion_sinkhorn.integrations.servers import Taken, mhc_post

MILLISECONDS = 10.0
COPIED = 1 << 29
PROFILED = 20
"""Calls of which the profiler takes the mean."""
SHOWN = "scheme", "columns", "tokens", "us", "us_unprepared", "peer", "us_peer"
SCHEMES = {"V4.1": "normed_boundary", "V4": "normed_seam", "pre": "normed_seam", "post": "normed_seam"}
"""The seams of the two models, and the operators of which a server makes V4's if it does not fuse it."""
CONSTANTS = EPS, EPS, EPS, 2.0, ITERATIONS
PEERS = {
    "vllm": (
        "vllm.model_executor.kernels.mhc.tilelang",
        {
            "V4.1": "mhc_fused_post_pre_delayed_tilelang", "V4": "mhc_fused_post_pre_tilelang",
            "pre": "mhc_pre_tilelang", "post": "mhc_post_tilelang",
        },
    ),
    "sglang": (
        "sglang.kernels.ops.layernorm.mhc",
        {"V4": "mhc_fused_post_pre", "pre": "mhc_pre", "post": "mhc_post"},
    ),
}  # fmt: skip
"""Modules of servers, and their functions for Hopper."""


class Drawn(NamedTuple):
    """The inputs of a scheme, and the projections of GRAPH_CALLS layers."""

    update: tuple[torch.Tensor, ...]
    pre_next: torch.Tensor | None
    projections: list[torch.Tensor]
    scale: torch.Tensor
    base: torch.Tensor
    norm: torch.Tensor


def inputs(scheme: str, tokens: int, columns: int) -> Drawn:
    *update, fn, scale, base, norm = drawn(SCHEMES[scheme], tokens, columns, "cuda")
    copies = [fn.clone() for _ in range(GRAPH_CALLS)]
    return Drawn(update[:4], update[4] if len(update) > 4 else None, copies, scale, base, norm)


def ours(scheme: str, given: Drawn):
    """A function of fn that returns a part of the streams, post, comb and y: a seam, or the operators as the
    plug-ins for servers call them.
    """
    if scheme == "post":
        return lambda fn: (mhc_post(*given.update),)
    if scheme == "pre":
        streams, taken = given.update[1], Taken()

        def pre(fn):
            made = taken.seam(None, streams, (fn, given.scale, given.base), CONSTANTS, given.norm, EPS)
            return made.post, made.comb, made.y

        return pre
    others = given.scale, given.base, ITERATIONS, EPS, EPS
    options = {"y_norm_weight": given.norm, "y_norm_eps": EPS}
    results = hc_boundary(*given.update, given.pre_next, given.projections[0], *others, **options)
    out = Out(*(torch.empty_like(t) for t in results))

    def whole(fn):
        made = hc_boundary(*given.update, given.pre_next, fn, *others, **options, out=out)
        return made.residual, made.post, made.comb, made.y

    return whole


def theirs(peer: str, scheme: str, given: Drawn):
    """The same by the kernels of an installed server; raises AssertionError if its results are others."""
    module, names = PEERS[peer]
    function = getattr(importlib.import_module(module), names[scheme])
    f, streams, post, comb = given.update
    update = f, streams, post.unsqueeze(-1), comb
    options = {"norm_weight": given.norm, "norm_eps": EPS}
    if scheme == "V4.1":
        options["pre_mix"] = given.pre_next

    def run(fn):
        if scheme == "post":
            return (function(*update),)
        rest = fn, given.scale, given.base, *CONSTANTS
        return function(*((streams,) if scheme == "pre" else update), *rest, **options)

    own = given.projections[0]
    # V4.1's returns pre too
    for tensor, expected in zip(run(own), ours(scheme, given)(own), strict=scheme != "V4.1"):
        # their projection may be in TF32
        same = expected.float().reshape(tensor.shape)
        torch.testing.assert_close(tensor.float(), same, rtol=0.02, atol=0.02)
    return run


def in_turn(run, projections):
    """Calls of the layers one after another."""
    return timing.in_turn([functools.partial(run, own) for own in projections])


def prepare(scheme: str, given: Drawn) -> None:
    for own in given.projections:
        hc_prepare(own, boundary=scheme.startswith("V"))


def copy_rate() -> float:
    """Bytes a microsecond that a copy reads and writes."""
    given, made = (torch.empty(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * COPIED / graph(lambda: lambda: made.copy_(given), MILLISECONDS)[0]


def moved(scheme: str, tokens: int, columns: int) -> int:
    """Bytes of a call: streams of bfloat16 once each way, f, y, coefficients, and three parts of fn."""
    parameters = 6 * ROWS * STREAMS * columns + 2 * columns
    part = STREAMS * (STREAMS + 1)  # post and comb
    rows, coefficients, constant = {
        "V4.1": (2 * STREAMS + 2, 2 * ROWS + STREAMS, parameters),
        "V4": (2 * STREAMS + 2, 2 * ROWS, parameters),
        "pre": (STREAMS + 1, part, parameters),
        "post": (2 * STREAMS + 1, part, 0),
    }[scheme]
    return tokens * (2 * columns * rows + 4 * coefficients) + constant


def rows(options: argparse.Namespace):
    for scheme, columns, tokens in itertools.product(options.schemes, options.hidden, options.tokens):
        given = inputs(scheme, tokens, columns)
        run = in_turn(ours(scheme, given), given.projections)
        with torch.inference_mode():
            anew = graph(lambda run=run: run, MILLISECONDS)[0]
        prepare(scheme, given)
        with torch.inference_mode():
            us, low, high = graph(lambda run=run: run, MILLISECONDS)
            us_peer = ""
            if options.peer and scheme in PEERS[options.peer][1]:
                other = in_turn(theirs(options.peer, scheme, given), given.projections)
                us_peer = round(graph(lambda run=other: run, MILLISECONDS)[0], 2)
        yield {
            "scheme": scheme, "columns": columns, "tokens": tokens,
            "us": round(us, 2), "us_20": round(low, 2), "us_80": round(high, 2),
            "us_unprepared": round(anew, 2), "peer": options.peer or "", "us_peer": us_peer,
            "floor_us": "", "kernels": "",
        }  # fmt: skip


def kernels_of(scheme: str, tokens: int, columns: int) -> str:
    """The launches of a call and their mean microseconds."""
    given = inputs(scheme, tokens, columns)
    run = in_turn(ours(scheme, given), given.projections)
    prepare(scheme, given)
    spent: dict[str, float] = collections.defaultdict(float)
    with torch.inference_mode():
        for name, us in timing.launches(run, PROFILED):
            spent[name.removeprefix("_helion_").split("(")[0]] += us / PROFILED
    return " + ".join(f"{name} {t:.2f}" for name, t in spent.items())


def main(options: argparse.Namespace) -> None:
    copy_rate()  # work, so that the clocks recorded are those of the measurements
    table = Table(options.write, {**conditions(torch.device("cuda")), **of_now()})
    for row in rows(options):
        print(*(row[k] for k in SHOWN), sep="  ", flush=True)
        table.add(row)
        table.write()
    # after work: an idle GPU lowers its clocks, and 1 GiB took 1.5 times as long as at full ones
    rate = copy_rate()
    # last, since the profiler stays attached: a launch in a graph takes 0.6 us more after it
    for row in table.rows:
        of = row["scheme"], row["tokens"], row["columns"]
        row["floor_us"] = round(moved(*of) / rate, 2)
        if row["tokens"] in options.profile:
            row["kernels"] = kernels_of(*of)
        print(*of, row["floor_us"], row["kernels"], sep="  ", flush=True)
    table.write()
