"""Recurrent linear attention on a GPU: the operator beside its peers.

    python -m benchmarks.linear_attention.speed --site FOLDER     # beside flash-linear-attention in FOLDER
    python -m benchmarks.linear_attention.speed --site FOLDER --write docs/bench/linear_attention.csv
    python -m benchmarks.linear_attention.speed --crossover       # the recurrence and chunks over T and B H

Some minutes on an H200; --only shortens it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import command


def make_parser() -> argparse.ArgumentParser:
    parser = command.parser("linear_attention.speed", __doc__)
    parser.add_argument("--site", default="", help="a folder with flash-linear-attention")
    parser.add_argument("--shape", type=int, nargs=3, default=[8, 2048, 16], help="B, T, H")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--only", default="", help="what has this in its name: recurrent, chunk, fla, torch")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the comparison as CSV")
    parser.add_argument("--crossover", action="store_true", help="both methods over T and B H")
    return parser


if __name__ == "__main__":
    # what follows imports torch, which takes seconds
    make_parser().parse_args()

import torch

from benchmarks.jobs import Table, of_now
from benchmarks.timing import Run, conditions, graph
from helion_sinkhorn import recurrent_linear_attention, reference
from helion_sinkhorn.runtime.operator import bytes_of
from helion_sinkhorn.tuning.timing import with_cold_cache

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""q, k, v, gk -> o."""
SIZES = 64, 128
"""Dk and Dv."""
GRAPH_MILLISECONDS = 5.0
COMPILED_STEPS = 64
"""Longest T of which torch.compile is asked: Inductor writes every step out."""


def inputs(batch: int, steps: int, heads: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k, v, gk, do; decays of a trained layer, most of them 0.8 to 1 a step."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(size: int) -> torch.Tensor:
        return torch.randn((batch, steps, heads, size), device="cuda", generator=generator)

    dk, dv = SIZES
    q, k, v, gk, do = draw(dk), draw(dk), draw(dv), draw(dk), draw(dv)
    return tuple(x.to(dtype) for x in (q, k, v, torch.nn.functional.logsigmoid(gk) / 8, do))


def own(method: str) -> Attend:
    return lambda q, k, v, gk: recurrent_linear_attention(
        q, k, v, gk=gk, method=method, implementation="helion"
    )


def peers(site: str) -> dict[str, Attend]:
    """flash-linear-attention's, from a folder that has fla and einops, or installed."""
    if site:
        sys.path.insert(0, site)
    try:
        from fla.ops.gla import chunk_gla, fused_recurrent_gla
    except ImportError as missing:
        print(f"no flash-linear-attention: {missing}", flush=True)
        return {}
    return {
        "fla fused_recurrent_gla": lambda q, k, v, gk: fused_recurrent_gla(q, k, v, gk)[0],
        "fla chunk_gla": lambda q, k, v, gk: chunk_gla(q, k, v, gk)[0],
    }


def compiled_loop() -> Attend:
    """The specification in float32 by torch.compile."""

    def loop(q, k, v, gk):
        wide = {"q": q, "k": k, "v": v, "gk": gk}
        return reference.recurrent_linear_attention(**{n: x.float() for n, x in wide.items()}).to(v.dtype)

    return torch.compile(loop, dynamic=False)


def gradients(o: torch.Tensor, leaves: Sequence[torch.Tensor], do: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(o, tuple(leaves), do, retain_graph=True)


def errors(attend: Attend, exact: Sequence[torch.Tensor], *tensors: torch.Tensor) -> list[float]:
    """The largest errors of o, dq, dk, dv, dgk of the first sequence, relative to the largest entry."""
    leaves = [x.detach().requires_grad_() for x in tensors[:4]]
    o = attend(*leaves)
    found = o, *gradients(o, leaves, tensors[4])
    return [
        ((a[:1].double() - e).abs().max() / e.abs().max()).item() for a, e in zip(found, exact, strict=True)
    ]


def truth(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The specification in float64 on the first sequence."""
    *leaves, do = (x[:1].double().requires_grad_() for x in tensors)
    o = reference.recurrent_linear_attention(*leaves[:3], gk=leaves[3])
    return o.detach(), *torch.autograd.grad(o, leaves, do)


def times(attend: Attend, *tensors: torch.Tensor) -> tuple[float, float]:
    """Microseconds of forward and of backward, called one by one with cold caches."""
    leaves = [x.detach().requires_grad_() for x in tensors[:4]]
    o = attend(*leaves)
    with torch.no_grad():
        forward = microseconds(with_cold_cache(lambda: attend(*tensors[:4])))
    return forward, microseconds(with_cold_cache(lambda: gradients(o, leaves, tensors[4])))


def compare(
    site: str, shape: tuple[int, int, int], dtype: torch.dtype, only: str, table: Table | None
) -> None:
    """Errors against float64 first, then times, of all with `only` in their names; into the table, if any."""
    tensors = inputs(*shape, dtype)
    exact = truth(*tensors)
    every = {"recurrent": own("recurrent"), "chunked": own("chunked"), **peers(site)}
    if shape[1] <= COMPILED_STEPS:
        every["torch.compile of the loop"] = compiled_loop()
    o, copied = torch.empty_like(tensors[2]), tensors[2]
    floor = microseconds(with_cold_cache(lambda: o.copy_(copied)))
    gigabytes = bytes_of(o, copied) / floor / 1e3
    print(f"copy: {gigabytes:.0f} GB/s; B, T, H = {shape}, Dk, Dv = {SIZES}, {dtype}, gk", flush=True)
    for name, attend in every.items():
        if only not in name:
            continue
        try:
            wrong = errors(attend, exact, *tensors)
            forward, backward = times(attend, *tensors)
            graphs = graphed(attend, tensors[:4], tensors[4])
        except Exception as refusal:  # a peer that does not run is a row like any other
            print(f"{name}: {type(refusal).__name__}: {str(refusal)[:300]}", flush=True)
            continue
        said = " ".join(f"{e:.1e}" for e in wrong)
        print(
            f"{name}: {forward:.0f} + {backward:.0f} us called one by one, {added(graphs)} us in CUDA graphs,"
            f" errors {said}",
            flush=True,
        )
        if table:
            called = {"forward": (forward, graphs[0]), "backward": (backward, graphs[1])}
            for which, (us, in_graph) in called.items():
                row = {"function": name, "pass": which, "us": us, "us_graph": f"{in_graph:.4g}"}
                table.add({**row, "errors": said, "copy_gbps": round(gigabytes)})
            table.write()


def crossover(dtype: torch.dtype) -> None:
    """Microseconds of both methods, forward + backward, in CUDA graphs over T and the sequences times heads.

    Batches are no 1 and no multiples of 16, so that few binaries serve all rows.
    """
    for steps in (64, 32, 16, 128, 512):
        for batch in (2, 8, 40):
            *tensors, do = inputs(batch, steps, 16, dtype)
            methods = "recurrent", "chunked"
            said = [f"{method} {added(graphed(own(method), tensors, do))}" for method in methods]
            print(f"T {steps}, B H {batch * 16}, {dtype}: {', '.join(said)}", flush=True)


def added(times: Sequence[float]) -> str:
    return " + ".join(f"{us:.1f}" for us in times)


def graphed(attend: Attend, tensors: Sequence[torch.Tensor], do: torch.Tensor) -> list[float]:
    """Microseconds of forward and of backward in CUDA graphs."""

    def backward() -> Run:
        leaves = [x.detach().requires_grad_() for x in tensors]
        o = attend(*leaves)
        return lambda: gradients(o, leaves, do)

    makes = (lambda: lambda: attend(*tensors)), backward
    return [graph(make, GRAPH_MILLISECONDS)[0] for make in makes]


def microseconds(sample: Callable[[], float], rounds: int = 5) -> float:
    return min(sample() for _ in range(rounds))


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    command.need_gpu(parser)
    dtype = getattr(torch, options.dtype)
    if options.crossover:
        crossover(dtype)
    else:
        run = {**of_now(), **conditions(torch.device("cuda"))}
        table = Table(options.write, run) if options.write else None
        compare(options.site, tuple(options.shape), dtype, options.only, table)


if __name__ == "__main__":
    main()
