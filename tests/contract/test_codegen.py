"""Kernels as machine code for GPUs that need not be here, beside what `make machine` says of the defaults."""

from __future__ import annotations

import dataclasses

import pytest
from targets import BY_NIGHT

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.dot_compress.space import DotCall
from helion_sinkhorn.ops.mhc.mixes import launch as mixes
from helion_sinkhorn.ops.mhc.mixes.space import MixesCall
from helion_sinkhorn.ops.mhc.split import launch as split
from helion_sinkhorn.ops.mhc.split.space import HcCall
from helion_sinkhorn.runtime.kernel import candidates, default_choice


def assert_nothing_may_fuse_either_way(binaries):
    """LLVM fuses one of two products that are added, and not the same one in every program."""
    for binary in binaries:
        assert binary.compiled, binary.problems
        assert "contested fusion" not in binary.counts, binary.job.choice


@BY_NIGHT
@pytest.mark.parametrize("key", ["h200", "mi350"])
def test_a_projection_does_not_choose_what_fuses(key, compile_for):
    call = MixesCall("bfloat16", 24, 4 * 7168, "float32")
    jobs = [Job(call, default_choice(kernel, call, DEVICES[key])) for kernel in mixes.KERNELS.values()]
    assert_nothing_may_fuse_either_way(compile_for(key, jobs))


@pytest.mark.nightly("a minute of compilers for every config of an operator")
def test_no_config_of_a_token_chooses_what_fuses(compile_for):
    """Programs of one warp and of two would differ."""
    call = HcCall("float32", 4, 20, True)
    jobs = [
        Job(call, choice)
        for name in split.KERNELS
        for choice in candidates(KERNELS[name], call, DEVICES["h200"])
    ]
    assert_nothing_may_fuse_either_way(compile_for("h200", jobs))


NAMES = "dot_compress_product", "dot_compress_apply", "dot_compress_expand"


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=BY_NIGHT) for name in NAMES[1:])])
def test_knobs_of_an_mi350_are_taken_by_its_compiler(name, compile_for):
    call = DotCall("bfloat16", 3219, 256, 64, 1)
    choice = default_choice(KERNELS[name], call, DEVICES["mi350"])
    config = (*choice.config, ("matrix_instr_nonkdim", 16), ("waves_per_eu", 2))
    choices = choice, dataclasses.replace(choice, config=config)
    plain, tuned = compile_for("mi350", [Job(call, of, batch=64) for of in choices])
    assert tuned.compiled
    assert tuned.counts["matrix"]
    assert tuned.registers != plain.registers or tuned.counts != plain.counts
