"""What tritonbench does not measure: the copy floor, the time of the host, what stays for backward."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable

import torch

from helion_sinkhorn.lab.tuning.timing import in_a_row, on_the_host

PASSES = {"fwd": 1, "fwd_no_grad": 1, "bwd": 2, "fwd_bwd": 3}
"""Arithmetic of a mode in forward passes: the gradient of a product is two products of its size."""
HOST_CALLS = 50
"""Launches in a row: far fewer than a device queues."""


def of_mode(mode: str, forward: int, backward: int) -> int:
    """What forward and backward take, in a mode."""
    return {"fwd": forward, "fwd_no_grad": forward, "bwd": backward, "fwd_bwd": forward + backward}[mode]


def floor(logits: torch.Tensor, mode: str) -> Callable[[], object]:
    """The same bytes moved by PyTorch: a copy for forward, an addition for backward."""
    x = logits.detach()
    out, other = torch.empty_like(x), torch.empty_like(x)
    passes = {"fwd": [lambda: out.copy_(x)], "bwd": [lambda: torch.add(x, other, out=out)]}
    passes["fwd_no_grad"], passes["fwd_bwd"] = passes["fwd"], passes["fwd"] + passes["bwd"]
    return lambda: [run() for run in passes[mode]]


def milliseconds(run: Callable[[], object], device: torch.device, graph: bool = False) -> float:
    """The median of repeated runs, taken as tritonbench takes it: L2 cleared, or as a CUDA graph."""
    if device.type == "cuda":
        from triton.testing import do_bench, do_bench_cudagraph

        return do_bench_cudagraph(run, return_mode="median") if graph else do_bench(run, return_mode="median")
    run()
    return statistics.median(on_the_host(run, 0.05, least=5)) / 1e3


def host_microseconds(run: Callable[[], object], device: torch.device) -> float:
    """Time a call takes from the host, the device not waited for; on a CPU all of it."""
    calls = HOST_CALLS if device.type == "cuda" else 1
    return statistics.median(in_a_row(run, device, calls, rounds=5))


def kept_bytes(forward: Callable[[], torch.Tensor], logits: torch.Tensor) -> float | None:
    """Bytes a matrix that stay allocated for backward, the logits included; None on a CPU."""
    if not logits.is_cuda:
        return None
    forward()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    p = forward()
    kept = torch.cuda.memory_allocated() - before - p.numel() * p.element_size()
    return (kept + logits.numel() * logits.element_size()) / logits.shape[0]
