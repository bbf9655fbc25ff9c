"""The kernels for large matrices with their default configs as machine code of several GPUs."""

from __future__ import annotations

import pytest
from targets import BY_NIGHT

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.ops.sinkhorn.large.calls import KERNELS, WHOLE
from helion_sinkhorn.ops.sinkhorn.large.launch import LONGEST
from helion_sinkhorn.ops.sinkhorn.large.space import LargeCall
from helion_sinkhorn.runtime.kernel import default_choice
from helion_sinkhorn.runtime.space import power_of_two

CALLS = (
    LargeCall("float32", 1024, 1024),
    LargeCall("bfloat16", 300, 8192),
    LargeCall("float16", 130, 129),
    LargeCall("float32", 4096, 5000),
    LargeCall("float32", 1229, 98304),
    LargeCall("float32", 98304, 1229, turned=True),
    LargeCall("bfloat16", 33, 8193),
)


@BY_NIGHT
@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("key", ["h200", "mi350"])
def test_defaults_make_good_machine_code(key, call, compile_for):
    jobs = [
        Job(call, default_choice(KERNELS[name], call, DEVICES[key]), 16)
        for name in KERNELS
        if ("_wide_" in name) == (call.m > LONGEST) or name.endswith(("_write", "_left", "_right", "_terms"))
        if name not in WHOLE or call.m == power_of_two(call.m)
    ]
    bad = {str(binary.job.choice): binary.problems for binary in compile_for(key, jobs) if binary.problems}
    assert not bad
