"""ROW: Sinkhorn as tuning and CI see it."""

from __future__ import annotations

from collections.abc import Iterator

from helion_sinkhorn.lab.machine.binary import Binary, Job, exchanges
from helion_sinkhorn.lab.operator import Operator
from helion_sinkhorn.lab.sinkhorn.trials import TRIALS, call_public, kernel_calls
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.ops.sinkhorn.implicit import launch as implicit


def owns_whole_matrices(job: Job) -> bool:
    """Whether a thread holds every entry of its matrices, and nothing of them passes through memory."""
    variant = dict(job.choice.variant)
    if job.choice.kernel == "sinkhorn_backward_history":
        return False
    return variant.get("packed", False) or (
        any(variant.get("thread", ())) and variant["thread"] == (job.call.n, job.call.m)
    )


def problems(binary: Binary) -> Iterator[str]:
    """Threads that own whole matrices have nothing to exchange within an iteration."""
    if owns_whole_matrices(binary.job):
        call = binary.job.call
        matrices = dict(binary.job.choice.config)["block_sizes"][0] // binary.threads
        # a result may change threads once, on its way to coalesced stores; an iteration may not
        allowed = 2 * matrices * call.n * call.m
        if exchanges(binary.counts) > allowed or any(exchanges(body) for body in binary.loops):
            yield "threads that own whole matrices exchange data"


KERNELS = {**launch.KERNELS, **implicit.KERNELS}
ROW = Operator(
    "sinkhorn",
    SinkhornWorkload,
    KERNELS,
    TRIALS,
    kernel_calls,
    problems=problems,
    call_public=call_public,
)
