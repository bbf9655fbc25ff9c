"""Sinkhorn's kernels as machine code for GPUs that need not be here; `make machine` compiles all defaults."""

from __future__ import annotations

import pytest
from targets import BY_NIGHT

pytest.importorskip("triton")

from ci import machine_rules
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine import compiler
from helion_sinkhorn.lab.machine.binary import Binary, Job, occupancy, problems
from helion_sinkhorn.lab.machine.listing import stack_pointer_reads
from helion_sinkhorn.lab.machine.mnemonics import GCN, SASS, classify, disassembled
from helion_sinkhorn.lab.operators import KERNELS, operator_of
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import Choice, candidates, default_choice

TRITON = tuple(map(int, store.triton_minor().split(".")))


def call_of(deepseek: bool, dtype: str, n: int) -> SinkhornCall:
    return SinkhornCall(deepseek, 1, dtype, n, n, 20)


@pytest.mark.parametrize(
    "call",
    [
        SinkhornCall(True, 1, "float32", 3, 3, 3),
        pytest.param(SinkhornCall(False, 1, "float32", 5, 3, 2), marks=BY_NIGHT),
    ],
    ids=str,
)
def test_sums_over_padded_matrices_leave_no_choice_of_fusion(call, compile_for):
    """A token of three streams had other bits in other places of a block: the compiler chose."""
    choice = default_choice(KERNELS["sinkhorn_backward"], call, DEVICES["h200"])
    (binary,) = compile_for("h200", [Job(call, choice)])
    assert machine_rules.broken(binary) == []
    assert "contested fusion" not in binary.counts


def point(kernel: str, call: SinkhornCall, **variant) -> Job:
    """The first point of a kernel's space for an H200 that has these variants."""
    points = candidates(KERNELS[kernel], call, DEVICES["h200"])
    return Job(call, next(c for c in points if variant.items() <= dict(c.variant).items()))


@pytest.mark.skipif(TRITON < (3, 8), reason="older Tritons sum in order by themselves")
def test_sums_in_order_fuse_every_product(compile_for):
    """In a thread that holds 8 x 8 entries no step of an iteration is left with an addition of its own.

    As trees, which Triton makes of sums from 3.8 on, each iteration of these kernels has 40 to 58.
    """
    job = point("sinkhorn_forward", call_of(False, "float32", 8), thread=(8, 8), ordered=True)
    (binary,) = compile_for("h200", [job])
    assert binary.compiled, binary.problems
    assert [loop.get("add", 0) for loop in binary.loops] == [0]


@pytest.mark.skipif(TRITON < (3, 8), reason="older Tritons change threads for them")
@BY_NIGHT
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_8_by_8_in_order_spill_nothing(dtype, compile_for):
    """As trees they spill 72 bytes a thread."""
    call = call_of(True, dtype, 8)
    kept = {"thread": (8, 8), "length": 4, "lean": True}
    jobs = [point("sinkhorn_backward", call, **kept, ordered=ordered) for ordered in (False, True)]
    plain, ordered = compile_for("h200", jobs)
    assert plain.spill_bytes > 0
    assert ordered.problems == ()
    assert ordered.counts.get("cross-lane", 0) == 0


def forward_job(n: int, block: int, warps: int, whole: bool = False, **config) -> Job:
    items = (("block_sizes", (block,)), ("num_warps", warps), *config.items())
    return Job(
        call_of(False, "float32", n),
        Choice("sinkhorn_forward", items, (("thread", (n, n) if whole else (0, 0)), ("paired", False)), ""),
    )


def test_bad_configs_are_problems_not_crashes(compile_for):
    spilling, foreign, good = compile_for(
        "h200",
        [forward_job(32, 4, 1), forward_job(4, 32, 1, waves_per_eu=2), forward_job(4, 32, 1, whole=True)],
    )
    assert spilling.spill_bytes
    assert spilling.problems[0].startswith("spills")
    assert not foreign.compiled
    assert "waves_per_eu" in foreign.problems[0]
    assert good.compiled
    assert not good.problems


def test_more_threads_than_a_block_of_an_mi350_may_have(compile_for):
    (binary,) = compile_for("mi350", [forward_job(16, 8, 32)])
    assert "2048 threads a block, at most 1024" in binary.problems


def test_a_job_that_takes_too_long_is_given_up():
    binaries = compiler.compile_for("mi350", [forward_job(4, 64, 1)] * 2, timeout=0.01)
    assert [b.problems for b in binaries] == [("not compiled after 0.01 s",)] * 2


def test_unknown_devices_and_nothing_to_do_start_nothing():
    with pytest.raises(ValueError, match="'h300' is not a known device; use one of h100, "):
        compiler.compile_for("h300", [])
    assert compiler.compile_for("h200", []) == []


SASS_LISTING = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
.L_x_0:
.L_x_1:
        /*0020*/                   MUFU.RCP R4, R4 ;
        /*0030*/                   FFMA R4, R4, R5, R6 ;
        /*0040*/               @P0 BRA `(.L_x_1) ;
        /*0050*/                   SHFL.BFLY PT, R4, R4, 0x1, 0x1f ;
        /*0060*/              @!P1 BRA `(.L_x_0) ;
        /*0070*/               @P2 BRA `(.L_x_3) ;
        /*0080*/                   STG.E desc[UR4][R2.64], R4 ;
.L_x_3:
        /*0090*/                   EXIT ;
.L_x_2:
        /*00a0*/                   BRA `(.L_x_2);
"""

GCN_LISTING = """kernel:
\ts_load_dwordx2 s[0:1], s[4:5], 0x0
\tbuffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
\tv_rcp_f32_e32 v0, v0
\tv_pk_fma_f32 v[0:1], v[0:1], v[2:3], v[4:5]
\tv_add_f32_dpp v0, v0, v0 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
\ts_cbranch_scc1 .LBB0_1
; %bb.2:
\tbuffer_store_dword v0, v4, s[0:3], 0 offen
\ts_endpgm
"""


def test_reading_sass():
    ops, loops = disassembled(SASS_LISTING, SASS)
    assert classify(ops) == {
        "instructions": 11, "global load": 1, "global load 128": 1, "reciprocal": 1, "fma": 1,
        "branch": 4, "cross-lane": 1, "global store": 1,
    }  # fmt: skip
    assert [ops[a : b + 1] for a, b in loops] == [["MUFU.RCP", "FFMA", "BRA"]]


def test_reading_gcn():
    ops, ((first, last),) = disassembled(GCN_LISTING, GCN)
    assert classify(ops[first : last + 1]) == {
        "instructions": 4, "reciprocal": 1, "fma": 1, "two-wide fp32": 1, "add": 1,
        "cross-lane": 1, "branch": 1,
    }  # fmt: skip
    assert classify(ops)["global load 128"] == 1


@pytest.mark.parametrize(
    ("key", "registers", "shared", "threads", "warps"),
    [
        ("h200", 32, 0, 128, 64), ("h200", 64, 0, 128, 32), ("h200", 255, 0, 128, 8), ("h200", 32, 0, 32, 32),
        ("h200", 32, 232448, 128, 4), ("mi350", 64, 0, 256, 32), ("mi350", 129, 0, 256, 12),
        ("mi350", 512, 0, 64, 4), ("mi300x", 64, 65536, 256, 4),
    ],
)  # fmt: skip
def test_occupancy(key, registers, shared, threads, warps):
    assert occupancy(DEVICES[key], registers, shared, threads) == warps


MOVED = {"global load": 4, "global store": 4}
EXCHANGING = "threads that own whole matrices exchange data"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"spill_bytes": 8}, "spills 0 (8 bytes a thread)"),
        ({"shared": 65537}, "65537 bytes of shared memory, mi300x has 65536"),
        ({"counts": {"global load": 4}}, "no global loads or no global stores"),
        ({"counts": {**MOVED, "cross-lane": 8}}, None),
        ({"counts": {**MOVED, "cross-lane": 33}}, EXCHANGING),
        ({"loops": [{"shared": 1}]}, EXCHANGING),
        ({"counts": {**MOVED, "stack pointer as data": 2}},
         "2 instructions take the stack pointer for data (docs/dev/helion.md)"),
    ],
)  # fmt: skip
def test_problems(change, problem):
    job = forward_job(4, 64, 1, whole=True)
    binary = Binary("mi300x", job, **{"threads": 64, "counts": MOVED, **change})
    complaints = [*problems(DEVICES["mi300x"], binary), *operator_of(job.choice.kernel).problems(binary)]
    assert complaints == ([problem] if problem else [])


def test_the_stack_pointer_as_data():
    """The frame and addresses of local memory read R1; ptxas 12.8 made a descriptor of it too."""
    frame = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0040*/                   VIADD R1, R1, 0xffffff78 ;
        /*0140*/              @!P1 STL.64 [R1+0x18], R10 ;
        /*0460*/               @P0 LDG.E R8, desc[UR12][R10.64] ;
        /*04f0*/                   LDL R11, [R1] ;
"""
    miscompiled = """
        /*14b0*/                   IADD3 R19, P0, R1, 0x2, RZ ;
        /*14e0*/                   IADD3.X R20, R1.reuse, -0x80000000, RZ, P0, !PT ;
"""
    assert stack_pointer_reads(frame) == 0
    assert stack_pointer_reads(frame + miscompiled) == 2
