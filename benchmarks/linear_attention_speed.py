"""Recurrent linear attention on a GPU: the operator beside its peers, and a search of its walks."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.configs.device import current
from helion_sinkhorn.kernels import candidates, linear_attention_launch
from helion_sinkhorn.kernels.linear_attention import ROLES, WalkCall
from helion_sinkhorn.offline import Binary, Job, compile_for
from helion_sinkhorn.timing import sampler
from helion_sinkhorn.trials import TRIALS, bytes_of

KERNEL = "linear_attention_walk"
SIZES = 64, 128
"""Dk and Dv."""


def inputs(batch: int, steps: int, heads: int, dk: int, dv: int, dtype: torch.dtype) -> tuple:
    """q, k, v, gk, do with the gates of a trained layer: decays of 0.8 to 1 a step."""
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(size):
        shape = batch, steps, heads, size
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    q, k, v, gk, do = draw(dk), draw(dk), draw(dv), draw(dk), draw(dv)
    return q, k, v, torch.nn.functional.logsigmoid(gk) / 8, do


def verify(q, k, v, gk, do) -> dict[str, float]:
    """Errors of o and the gradients of the first sequence, relative to the largest entry, against float64."""
    first = [x[:1] for x in (q, k, v, gk, do)]
    q64, k64, v64, gk64, do64 = (x.double().requires_grad_() for x in first)
    o64 = reference.recurrent_linear_attention(q64, k64, v64, gk=gk64)
    expected = o64, *torch.autograd.grad(o64, (q64, k64, v64, gk64), do64)
    arguments = q, k, v, None, None, gk, None, q.size(-1) ** -0.5, None, False, None
    o, _ = linear_attention_launch.forward(*arguments)
    actual = o, *linear_attention_launch.backward(do, None, *arguments)
    names = "o", "dq", "dk", "dv", "dgk"
    return {
        name: ((a[:1].double() - e).abs().max() / e.abs().max()).item()
        for name, a, e in zip(names, actual, expected, strict=True)
    }


def microseconds(sample, rounds: int = 5) -> float:
    return min(sample() for _ in range(rounds))


def search(results: list[str], gates: str, heads: int, workers: int, seconds: float) -> Iterator[dict]:
    """Candidates of these walks, compiled in parallel and timed one by one as they come."""
    device = current(0)
    calls = {result: WalkCall(result, "bfloat16", *SIZES, gates) for result in results}
    jobs = [[Job(call, c, batch=heads) for c in candidates(KERNEL, call, device)] for call in calls.values()]
    in_turn = [job for turn in itertools.zip_longest(*jobs) for job in turn if job]
    operands = {call: TRIALS[KERNEL].operands(call, heads, "cuda") for call in calls.values()}
    cache = Path(os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp()))
    compiled: queue.Queue[Binary] = queue.Queue()

    def compile_all() -> None:
        compile_for(device.key, in_turn, workers=workers, timeout=60, cache=cache, report=compiled.put)

    end = time.perf_counter() + seconds
    threading.Thread(target=compile_all, daemon=True).start()
    for _ in in_turn:
        try:
            binary = compiled.get(timeout=max(0.0, end - time.perf_counter()))
        except queue.Empty:
            return
        yield timed(binary, operands[binary.job.call])


def timed(binary: Binary, operands: tuple[torch.Tensor, ...]) -> dict:
    call, choice = binary.job.call, binary.job.choice
    row = {
        "result": call.result, "config": dict(choice.config), **dict(choice.variant), "us": float("inf"),
        "registers": binary.registers, "spill_bytes": binary.spill_bytes, "shared": binary.shared,
        "instructions": binary.hottest.get("instructions", 0), "barriers": binary.hottest.get("barrier", 0),
        "problems": binary.problems,
    }  # fmt: skip
    if binary.problems and not binary.compiled:
        return row
    run = TRIALS[KERNEL].run
    try:
        out = run(call, choice, *operands)
        row["us"] = microseconds(sampler(lambda: run(call, choice, *operands), bytes_of(*operands, out)))
    except Exception as refusal:  # a candidate that does not run is a row of the table like any other
        row["problems"] = (*row["problems"], str(refusal)[:200])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--search", nargs="*", choices=list(ROLES), help="walks whose candidates are timed")
    parser.add_argument("--gates", default="gk")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=300.0, help="for the search")
    options = parser.parse_args()
    rows = []
    for row in search(options.search, options.gates, 128, options.workers, options.seconds):
        rows.append(row)
        print(json.dumps(row), flush=True)
    for result in options.search:
        best = min((r for r in rows if r["result"] == result), key=lambda r: r["us"], default=None)
        print("best", json.dumps(best), flush=True)


if __name__ == "__main__":
    main()
