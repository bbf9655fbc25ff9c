"""Trials of the hc_site kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from helion_sinkhorn.ops.hc_mixes import launch as mixes_launch
from helion_sinkhorn.ops.hc_pre import launch as pre_launch
from helion_sinkhorn.ops.hc_site import launch
from helion_sinkhorn.ops.hc_site.space import SiteCall
from helion_sinkhorn.ops.hc_site.workloads import HcSiteWorkload
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.operator import Tensors, Trial, noise


def of_collapse(call: SiteCall, batch: int, device: str) -> Tensors:
    """dy, the streams and the weights."""
    dy, x = noise(device, call.dtype, (batch, call.columns), (batch, call.n, call.columns))
    return dy, x, *noise(device, "float32", (batch, call.n))


def of_streams(call: SiteCall, batch: int, device: str) -> Tensors:
    """The upstream gradient's parts, what the norm adds, fn, dresidual and those of the collapse."""
    mixes = call.mixes
    g, along, fn = noise(device, "float32", (batch, mixes.parts, mixes.m), (batch,), (mixes.m, mixes.columns))
    (dresidual,) = noise(device, call.dtype, (batch, call.n, call.columns))
    return g.to(torch.bfloat16), along, fn, dresidual, *of_collapse(call, batch, device)


def run_weights(call: SiteCall, choice: Choice, dy, x, weights) -> torch.Tensor:
    return pre_launch.gradients(dy, x, weights, None, launch.asked(launch.WEIGHTS, call), choice)


def run_backward(call: SiteCall, choice: Choice, g, along, fn, dresidual, dy, x, weights) -> Tensors:
    others = dresidual, dy, weights
    asked = launch.asked(launch.BACKWARD, call)
    return mixes_launch.gradients(g, along, x, fn, call.mixes, choice, others, asked)


def kernel_calls(workload: HcSiteWorkload) -> Iterator[tuple[str, Any]]:
    """(kernel, its call), one for each kernel of its own that serves a workload."""
    call = launch.call_for(workload.n, workload.c, workload.dtype, workload.precision)
    for name in launch.KERNELS:
        yield name, call


TRIALS = {
    launch.WEIGHTS: Trial(of_collapse, run_weights, None),
    launch.BACKWARD: Trial(of_streams, run_backward, None),
}
