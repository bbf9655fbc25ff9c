"""The dot compress kernels with their default configs as machine code for GPUs that need not be here."""

from __future__ import annotations

import pytest
from targets import BY_NIGHT

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.dot_compress.space import DotCall
from helion_sinkhorn.runtime.kernel import Choice

NAMES = ("dot_compress_product", "dot_compress_apply", "dot_compress_expand")
CALLS = (
    DotCall("bfloat16", 3219, 256, 64, 1),
    DotCall("bfloat16", 3219, 256, 64, 2),
    DotCall("float32", 3219, 256, 64, 1),
    DotCall("bfloat16", 300, 1000, 64, 1),
)


def default(name, call, key):
    return Job(call, Choice(name, *KERNELS[name].default(call, DEVICES[key]), "default"), batch=64)


@pytest.mark.parametrize(
    ("key", "calls", "names"),
    [
        pytest.param("h200", CALLS[2:3], NAMES[:1], id="h200"),
        *(
            pytest.param(key, CALLS, NAMES, id=f"{key} all", marks=BY_NIGHT)
            for key in ("h200", "mi350", "b200")
        ),
    ],
)
def test_defaults_make_good_machine_code(key, calls, names, compile_for):
    bad = []
    for binary in compile_for(key, [default(name, call, key) for name in names for call in calls]):
        counts, call = binary.counts, binary.job.call
        found = list(binary.problems)
        # float32 keeps its digits: no TF32, which NVIDIA's matrix units would make of it
        wrong = call.is_narrow == (not counts.get("matrix")) and (
            call.is_narrow or DEVICES[key].vendor == "nvidia"
        )
        if binary.compiled and wrong:
            found.append(f"{counts.get('matrix', 0)} matrix instructions for {call.dtype}")
        # float32 reaches AMD's LDS in pieces of 4 and 8 bytes
        vectors = (call.d, call.k) == (256, 64) and (call.is_narrow or DEVICES[key].vendor == "nvidia")
        if binary.compiled and vectors and counts["global load"] != counts["global load 128"]:
            found.append(f"{counts['global load']} loads, {counts.get('global load 128', 0)} of 128 bits")
        bad += [f"{call} {binary.job.choice}: {'; '.join(found)}"] if found else []
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=BY_NIGHT) for name in NAMES[1:])])
def test_knobs_of_an_mi350_are_taken_by_its_compiler(name, compile_for):
    call = CALLS[0]
    job = default(name, call, "mi350")
    config = (*job.choice.config, ("matrix_instr_nonkdim", 16), ("waves_per_eu", 2))
    plain, tuned = compile_for(
        "mi350", [job, Job(call, Choice(name, config, job.choice.variant, ""), batch=64)]
    )
    assert tuned.compiled
    assert tuned.counts["matrix"]
    assert tuned.registers != plain.registers or tuned.counts != plain.counts
