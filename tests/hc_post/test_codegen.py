"""The hc_post kernels with their default configs as machine code for GPUs that need not be here."""

from __future__ import annotations

import pytest
from targets import BY_NIGHT, ONE_TARGET

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.mhc.post import launch
from helion_sinkhorn.ops.mhc.post.space import PostCall
from helion_sinkhorn.runtime.kernel import default_choice

MODEL = PostCall("bfloat16", 4, 7168)
CALLS = (
    MODEL,
    *(
        pytest.param(PostCall(*c), marks=BY_NIGHT)
        for c in (
            ("float32", 4, 4096), ("float16", 8, 4096), ("bfloat16", 16, 130), ("bfloat16", 5, 67),
            ("bfloat16", 4, 8), ("bfloat16", 4, 2),
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("key", ONE_TARGET)
def test_defaults_make_good_machine_code(key, call, compile_for):
    jobs = [
        Job(call, default_choice(KERNELS[name], call, DEVICES[key]))
        for name in (launch.FORWARD, launch.BACKWARD)
    ]
    bad = []
    for binary in compile_for(key, jobs):
        found = list(binary.problems)
        if binary.spills:
            found.append(f"{binary.spills} spills")
        forward = binary.job.choice.kernel == launch.FORWARD
        # 16 bytes a thread at a time: f and n streams are read, n written, in the backward 2n + 1 and n + 1
        needed = {
            "load 128": call.n + 1 if forward else 2 * call.n + 1,
            "store 128": call.n if forward else call.n + 1,
        }
        if call.columns % 256 == 0 and any(binary.accesses.get(k, 0) < v for k, v in needed.items()):
            found.append(f"accesses {binary.accesses}")
        # n^2 + n sums over up to 64 lanes and 2 warps, once a token
        exchanges, most = binary.counts.get("cross-lane", 0), 0 if forward else (call.n**2 + call.n) * 8
        if call.columns % 256 == 0 and exchanges > most:
            found.append(f"{exchanges} exchanges between lanes, {most} are enough")
        bad += [f"{call} {binary.job.choice}: {'; '.join(found)}"] if found else []
    assert not bad, "\n".join(bad)
