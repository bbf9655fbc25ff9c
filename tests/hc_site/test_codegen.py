"""The kernels of hc_site with their default configs as machine code for GPUs that need not be here."""

from __future__ import annotations

import pytest
from targets import BY_NIGHT, ONE_TARGET

pytest.importorskip("triton")

from ci import machine_rules
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.mhc.site import launch
from helion_sinkhorn.ops.mhc.site.boundary import launch as boundary
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as backward
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import default_choice

CALLS = (
    SiteCall("bfloat16", 4, 7168, "float32"),
    *(
        pytest.param(SiteCall(*c), marks=BY_NIGHT)
        for c in (
            ("float32", 4, 4096, "float32"), ("float16", 4, 4096, "float32"), ("bfloat16", 3, 211, "float32"),
            ("bfloat16", 16, 128, "float32"),
        )
    ),
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("key", ONE_TARGET)
def test_defaults_make_good_machine_code(key, call, compile_for):
    jobs = [Job(call, default_choice(KERNELS[name], call, DEVICES[key])) for name in launch.KERNELS]
    bad = []
    for binary in compile_for(key, jobs):
        found, last = list(binary.problems), binary.job.choice.kernel == launch.BACKWARD
        if binary.spills:
            found.append(f"{binary.spills} spills")
        if last and not binary.counts.get("matrix"):
            found.append(f"no matrix instruction among {dict(binary.counts)}")
        # streams of aligned rows move 16 bytes a thread at a time; the gradient of the weights writes none
        moves = ("load 128", "store 128") if last else ("load 128",)
        if call.columns % 64 == 0 and not all(binary.accesses.get(name) for name in moves):
            found.append(f"accesses {binary.accesses}")
        bad += [f"{call} {binary.job.choice}: {'; '.join(found)}"] if found else []
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("key", ONE_TARGET)
def test_the_boundary_spills_no_more_than_is_known(key, compile_for):
    call = SiteCall("bfloat16", 4, 4096, "float32")
    job = Job(call, default_choice(KERNELS[boundary.FORWARD], call, DEVICES[key]))
    (binary,) = compile_for(key, [job])
    assert list(machine_rules.broken(binary)) == []
    assert binary.counts.get("matrix")
    assert binary.accesses.get("load 128")
    assert binary.accesses.get("store 128")


@pytest.mark.parametrize(
    ("key", "names"),
    [
        pytest.param("h200", (backward.BACKWARD,), id="h200"),
        *(
            pytest.param(key, tuple(backward.KERNELS), id=f"{key} all", marks=BY_NIGHT)
            for key in ("h200", "mi350")
        ),
    ],
)
def test_the_backward_of_the_boundary_adds_up_columns_without_exchanges(key, names, compile_for):
    """Sums over columns stay in a thread's registers; the streams move 16 bytes a thread at a time."""
    call = SiteCall("bfloat16", 4, 4096, "float32")
    jobs = [Job(call, default_choice(backward.KERNELS[name], call, DEVICES[key])) for name in names]
    binaries = {binary.job.choice.kernel: binary for binary in compile_for(key, jobs)}
    assert [why for binary in binaries.values() for why in machine_rules.broken(binary)] == []
    streams = binaries[backward.BACKWARD]
    assert streams.accesses.get("load 128")
    assert streams.accesses.get("store 128")
    assert all(
        b.counts.get("matrix") for n, b in binaries.items() if n in (backward.BACKWARD, backward.PROJECTION)
    )
    if DEVICES[key].vendor == "nvidia":
        assert not streams.counts.get("cross-lane")
