"""Which kernels `warm` makes code for."""

from __future__ import annotations

import pytest

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.tuning import warm
from helion_sinkhorn.ops.mhc.site.boundary import launch as boundary
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as boundary_backward

IN_ONE_PASS = {*boundary.KERNELS, *boundary_backward.KERNELS} - {"hc_boundary_second"}
"""A second pass loses at 4096 columns, so that no call has one."""


@pytest.mark.parametrize(
    ("device", "n", "c", "wanted"),
    [
        ("h200", 4, 4096, IN_ONE_PASS),
        ("h200", 4, 7168, IN_ONE_PASS | {"hc_boundary_second"}),
        # nothing of the one pass backward is measured there, and three launches end a call
        ("mi350", 4, 4096, {*boundary.KERNELS} - {boundary.FINISH}),
        # more streams than these kernels take
        ("h200", 5, 4096, set()),
    ],
)
def test_the_kernels_of_hc_boundary_are_those_that_a_call_of_it_launches(device, n, c, wanted, fresh_caches):
    (workload,) = warm.workloads("hc_site", [f"n={n}", f"c={c}", "batch=128"])
    names = {built.kernel.name for built, _ in warm.launches(workload, DEVICES[device])}
    assert {name for name in names if name.startswith("hc_boundary")} == wanted
    assert "hc_pre_forward" in names
