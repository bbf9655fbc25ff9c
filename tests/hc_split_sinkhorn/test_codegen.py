"""The hc_split_sinkhorn kernels with their default configs as machine code for GPUs that need not be here."""

from __future__ import annotations

import pytest
from targets import BY_NIGHT, ONE_TARGET

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.mhc.split import launch
from helion_sinkhorn.ops.mhc.split.space import HcCall
from helion_sinkhorn.runtime.kernel import candidates, default_choice

CALLS = (
    # iterations are unrolled: twenty of them compile four times as long, and in `make machine`
    HcCall("float32", 4, 2, True),
    *(
        pytest.param(HcCall(*c), marks=BY_NIGHT)
        for c in (("float32", 4, 20, True), ("bfloat16", 4, 20, True), ("float32", 3, 20, True))
    ),
)


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("key", ONE_TARGET)
def test_defaults_make_good_machine_code(key, call, compile_for):
    jobs = [
        Job(call, default_choice(KERNELS[name], call, DEVICES[key]))
        for name in (launch.FORWARD, launch.REDUCED, launch.BACKWARD)
        if name != launch.REDUCED or call.dtype == "float32"
    ]
    bad = []
    for binary in compile_for(key, jobs):
        found = list(binary.problems)
        if binary.spills:
            found.append(f"{binary.spills} spills")
        # comb columns are read 16 bytes at a time, and no matrix is exchanged within an iteration
        if call.n == 4 and not binary.accesses.get("load 128"):
            found.append(f"loads {binary.accesses}")
        exchanges = binary.counts.get("cross-lane", 0)
        # 27 sums over up to 64 lanes, and a narrow result that changes threads once on its way to memory
        most = 27 * 6 + 16 if binary.job.choice.kernel == launch.BACKWARD else 0
        if call.n == 4 and exchanges > most:
            found.append(f"{exchanges} exchanges between lanes, {most} are enough")
        bad += [f"{call} {binary.job.choice}: {'; '.join(found)}"] if found else []
    assert not bad, "\n".join(bad)


@pytest.mark.nightly("a minute of compilers for every config of an operator")
def test_no_config_of_a_token_chooses_what_fuses(compile_for):
    """LLVM fuses one of two products that are added, and not the same in programs of one warp and of two."""
    call = HcCall("float32", 4, 20, True)
    jobs = [
        Job(call, choice)
        for name in launch.KERNELS
        for choice in candidates(KERNELS[name], call, DEVICES["h200"])
    ]
    for binary in compile_for("h200", jobs):
        assert binary.compiled, binary.problems
        assert "contested fusion" not in binary.counts, binary.job.choice
