"""The hc_mixes kernels with their default configs as machine code for GPUs that need not be here."""

from __future__ import annotations

import pytest
from targets import BY_NIGHT, ONE_TARGET

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.mhc.mixes import launch
from helion_sinkhorn.ops.mhc.mixes.space import MixesCall
from helion_sinkhorn.runtime.kernel import default_choice

MODEL = MixesCall("bfloat16", 24, 4 * 7168, "float32")
CALLS = (
    MODEL,
    *(
        pytest.param(MixesCall(*c), marks=BY_NIGHT)
        for c in (
            ("float32", 24, 4 * 4096, "float32"), ("float16", 24, 4 * 4096, "float32"),
            ("bfloat16", 24, 4 * 4096, "tf32"), ("bfloat16", 15, 633, "float32"),
            ("bfloat16", 288, 16 * 128, "float32"),
        )
    ),
)  # fmt: skip


def test_an_mi350_waits_for_a_product_before_it_is_read(compile_for):
    """dx takes the product in by an instruction that the compiler knows, and not by inline assembly."""
    call = MixesCall("bfloat16", 24, 4 * 1024, "float32")
    choice = default_choice(KERNELS[launch.BACKWARD], call, DEVICES["mi350"])
    (binary,) = compile_for("mi350", [Job(call, choice)])
    assert binary.counts["matrix"]
    assert "assembly behind matrix" not in binary.counts


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("key", ONE_TARGET)
def test_defaults_make_good_machine_code(key, call, compile_for):
    jobs = [Job(call, default_choice(KERNELS[name], call, DEVICES[key])) for name in launch.KERNELS]
    bad = []
    for binary in compile_for(key, jobs):
        found, kernel = list(binary.problems), binary.job.choice.kernel
        if binary.spills:
            found.append(f"{binary.spills} spills")
        # products are made by the matrix unit, and streams of aligned rows move 16 bytes a thread at a time
        if kernel in (launch.PARTIALS, launch.BACKWARD) and not binary.counts.get("matrix"):
            found.append(f"no matrix instruction among {dict(binary.counts)}")
        moves = {launch.PARTIALS: ("load 128",), launch.BACKWARD: ("load 128", "store 128")}.get(kernel, ())
        if call.columns % 8 == 0 and not all(binary.accesses.get(name) for name in moves):
            found.append(f"accesses {binary.accesses}")
        # of two products that are added LLVM fuses one, not the same one in every program
        if contested := binary.counts.get("contested fusion"):
            found.append(f"{contested} sums of products that may fuse either way")
        bad += [f"{call} {binary.job.choice}: {'; '.join(found)}"] if found else []
    assert not bad, "\n".join(bad)
