"""ROW: hc_site as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.ops.hc_site import launch
from helion_sinkhorn.ops.hc_site.boundary import launch as boundary
from helion_sinkhorn.ops.hc_site.boundary.backward import launch as boundary_backward
from helion_sinkhorn.ops.hc_site.trials import TRIALS, call_public, kernel_calls, run_call
from helion_sinkhorn.ops.hc_site.workloads import HcSiteWorkload
from helion_sinkhorn.runtime.operator import Operator

KERNELS = {**launch.KERNELS, **boundary.KERNELS, **boundary_backward.KERNELS}
ROW = Operator(
    "hc_site",
    HcSiteWorkload,
    KERNELS,
    TRIALS,
    kernel_calls,
    call=run_call,
    call_public=call_public,
)
