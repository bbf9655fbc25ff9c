"""ROW: hc_site as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.lab.operator import Operator
from helion_sinkhorn.lab.site.trials import TRIALS, call_public, kernel_calls, run_call
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.ops.mhc.site import launch
from helion_sinkhorn.ops.mhc.site.boundary import launch as boundary
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as boundary_backward

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
