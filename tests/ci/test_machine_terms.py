"""Machine code in CI: planted violations of every rule, what shows as a difference, the committed file."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest
from forked import printed
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from ci import machine_rules, machine_terms
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.machine.listing import amd_facts, assembly_behind_matrix, nvidia_facts
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.linear_attention.chunked.space import ChunkCall
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import Choice

ROOT = Path(__file__).resolve().parents[2]

PTX = """
	@%p1 ld.global.v4.b32 { %r15, %r16, %r17, %r18 }, [ %rd2 + 0 ];
	max.f32 	%r1, %r2, %r3;
	ex2.approx.ftz.f32 	%r4, %r1;
	rcp.approx.ftz.f32 %r5, %r4;
	mul.f32 	%r6, %r5, %r4;
	fma.rn.f32 	%r7, %r6, %r5, %r4;
	@%p1 st.global.v4.b32 [ %rd7 + 0 ], { %r7, %r7, %r7, %r7 };
"""
SASS = """
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   MUFU.EX2 R4, R4 ;
        /*0030*/                   MUFU.RCP R5, R4 ;
        /*0040*/                   FFMA R4, R4, R5, R6 ;
        /*0050*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0060*/                   EXIT ;
"""
USAGE = " REG:40 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:576"
NARROW_PTX = PTX.replace("	@%p1 st.", "	cvt.rn.bf16x2.f32 	%r8, %r7, %r6;\n	@%p1 st.")

GCN = """kernel:
	buffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen
	v_exp_f32_e32 v0, v0
	v_ldexp_f32 v0, v0, v1
	v_rcp_f32 v1, v0
	v_pk_fma_f32 v[0:1], v[0:1], v[2:3], v[4:5]
	buffer_store_dwordx4 v[0:3], v4, s[0:3], 0 offen
	s_endpgm
	.section	.rodata,"a",@progbits
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_ieee_mode 1
    .private_segment_fixed_size: 0
    .sgpr_spill_count: 0
    .vgpr_count:     48
    .vgpr_spill_count: 0
"""
NARROW_GCN = GCN.replace("	buffer_store", "	v_cvt_pk_bf16_f32 v0, v0, v1\n	buffer_store")


def job(dtype: str = "float32", kernel: str = "sinkhorn_forward") -> Job:
    config = (("block_sizes", (32,)), ("num_warps", 1))
    variant = (("thread", (4, 4)), ("paired", False), ("length", 5))
    return Job(SinkhornCall(True, 1, dtype, 4, 4, 20), Choice(kernel, config, variant, ""))


def nvidia(ptx: str = PTX, sass: str = SASS, usage: str = USAGE, **changes: object) -> Binary:
    fields = {"job": job(), "threads": 32, "occupancy": 32, "shared": 512, "modes": {"enable_fp_fusion": 1}}
    return Binary("h200", **{**fields, **nvidia_facts(ptx, sass, usage), **changes})


def amd(text: str = GCN, **changes: object) -> Binary:
    facts = amd_facts(text)
    facts["modes"] = {"enable_fp_fusion": 1, **facts["modes"]}
    return Binary("mi350", **{"job": job(), "threads": 64, "occupancy": 32, **facts, **changes})


@pytest.mark.parametrize(
    ("between", "count"),
    [("", 1), ("\ts_nop 10\n", 1), ("\ts_nop 15\n\ts_nop 2\n", 0), ("\tv_mov_b32_e32 v3, v40\n", 0),
     ("\tv_mov_b32_e32 v4, v40\n", 1)],
)  # fmt: skip
@pytest.mark.parametrize("instruction", ["v_fma_f32 v18, v19, v20, v3", "v_fma_f32 v3, v19, v20, v21"])
def test_assembly_that_takes_a_matrix_too_early_is_counted(instruction, between, count):
    """With too few wait states between, if what it reads or overwrites is still the matrix instruction's."""
    matrix = "\tv_mfma_f32_32x32x16_bf16 v[2:17], v[18:21], v[22:25], v[2:17]\n"
    assembly = f"\t;;#ASMSTART\n\t{instruction}\n\t;;#ASMEND\n"
    assert assembly_behind_matrix(matrix + between + assembly) == count
    # LLVM sees what is no inline assembly
    assert assembly_behind_matrix(f"{matrix}{between}\t{instruction}\n") == 0


def test_good_code_breaks_no_rule():
    narrow = job("bfloat16")
    for binary in (nvidia(), nvidia(NARROW_PTX, job=narrow), amd(), amd(NARROW_GCN, job=narrow)):
        assert machine_rules.broken(binary) == []
    rounding = "s_movk_i32 s1, 0x7fff\n	v_add3_u32 v0, v0, v1, s1"
    gfx942 = amd(NARROW_GCN.replace("v_cvt_pk_bf16_f32 v0, v0, v1", rounding), job=narrow)
    sm_100 = nvidia(NARROW_PTX.replace("max.f32", "sub.rn.f32.bf16"), job=narrow)
    restart = nvidia(PTX.replace("max.f32", "cvt.rn.f32.s32 %r1, %r2;\n	fma.rn.ftz.f32"))
    for binary in (gfx942, sm_100, restart):
        assert machine_rules.broken(binary) == []


PLANTED = {
    "PTX": [
        ("reciprocal", "rcp.approx.ftz.f32", "div.full.f32"),
        ("reciprocal", "rcp.approx.ftz.f32", "rcp.rn.f32"),
        ("reciprocal", "mul.f32", "rsqrt.approx.f32"),
        ("reciprocal", "rcp.approx.ftz.f32", "mul.f32"),
        ("functions", "ex2.approx.ftz.f32", "ex2.approx.f32"),
        ("functions", "ex2.approx.ftz.f32", "tanh.approx.f32"),
        ("subnormals", "mul.f32", "mul.ftz.f32"),
        ("subnormals", "fma.rn.f32", "fma.rn.ftz.f32"),
        ("rounding", "fma.rn.f32", "fma.rz.f32"),
        ("precision", "mul.f32", "mul.bf16x2"),
        ("precision", "fma.rn.f32", "fma.rn.f64"),
        ("precision", "max.f32", "cvt.rna.tf32.f32"),
        ("precision", "mul.f32", "add.rz.f32.bf16"),
        ("conversion", "max.f32", "cvt.rn.f16.f32"),
    ],
    "SASS": [
        ("order", "FFMA R4", "RED.E.ADD.F32 R4"),
        ("order", "FFMA R4", "ATOMG.E.ADD R4"),
        ("matrix", "FFMA R4", "HGMMA.64x8x8.F32.TF32 R4"),
        ("spills", "FFMA R4", "LDL R4"),
        ("vectors", "LDG.E.128", "LDG.E.64"),
        ("vectors", "STG.E.128", "STG.E"),
        ("vectors", "FFMA R4, R4, R5, R6", "LDG.E R4, desc[UR4][R2.64]"),
    ],
    "GCN": [
        ("reciprocal", "v_ldexp_f32", "v_div_fixup_f32"),
        ("reciprocal", "v_rcp_f32", "v_rcp_iflag_f32"),
        ("reciprocal", "v_ldexp_f32", "v_sqrt_f32"),
        ("functions", "v_ldexp_f32", "v_sin_f32"),
        ("subnormals", "denorm_mode_32 3", "denorm_mode_32 0"),
        ("rounding", "round_mode_32 0", "round_mode_32 3"),
        ("rounding", "v_ldexp_f32", "v_cvt_pkrtz_f16_f32"),
        ("precision", "v_pk_fma_f32", "v_pk_fma_f16"),
        ("precision", "v_ldexp_f32", "v_fma_f64"),
        ("conversion", "v_ldexp_f32 v0", "v_cvt_f16_f32_e32 v0"),
        ("order", "v_ldexp_f32 v0", "global_atomic_add_f32 v0"),
        (
            "offsets",
            "buffer_store_dwordx4 v[0:3], v4, s[0:3], 0 offen",
            "v_sub_u32_e32 v5, 0, v4\n\tv_add_u32_e32 v4, v5, v6\n"
            "\tbuffer_store_dwordx4 v[0:3], v4, s[0:3], 0 offen offset:448",
        ),
        (
            "waits",
            "v_ldexp_f32",
            "v_mfma_f32_32x32x16_bf16 v[2:17], v[18:21], v[22:25], v[2:17]\n\t;;#ASMSTART\n"
            "\tv_fma_f32 v18, v19, v20, v3\n\t;;#ASMEND\n\tv_ldexp_f32",
        ),
        ("matrix", "v_pk_fma_f32", "v_mfma_f32_32x32x1_2b_f32"),
        ("spills", "v_ldexp_f32 v0", "scratch_load_dword v0"),
        ("spills", "private_segment_fixed_size: 0", "private_segment_fixed_size: 16"),
        ("vectors", "buffer_load_dwordx4", "buffer_load_dwordx2"),
        ("vectors", "buffer_store_dwordx4", "buffer_store_short"),
    ],
}
"""The rule that is broken by other words in a listing."""
LISTINGS = {"PTX": (PTX, nvidia), "SASS": (SASS, lambda text: nvidia(sass=text)), "GCN": (GCN, amd)}


@pytest.mark.parametrize(
    ("listing", "rule", "old", "new"), [(name, *row) for name, rows in PLANTED.items() for row in rows]
)
def test_planted_in_a_listing(listing, rule, old, new):
    text, binary = LISTINGS[listing]
    assert old in text
    expect(rule, binary(text.replace(old, new)))


# what LLVM makes of program % batch: s16 is the number of a workgroup, s6 the batch
REMAINDER = """
	s_abs_i32 s1, s16
	s_abs_i32 s7, s6
	v_cvt_f32_u32_e32 v1, s7
	s_sub_i32 s10, 0, s7
	s_xor_b32 s0, s16, s6
	s_ashr_i32 s0, s0, 31
	v_rcp_iflag_f32_e32 v1, v1
	v_mul_f32_e32 v1, 0x4f7ffffe, v1
	v_cvt_u32_f32_e32 v1, v1
	v_mul_lo_u32 v2, s10, v1
	v_mul_hi_u32 v2, v1, v2
	v_add_u32_e32 v1, v1, v2
	v_mul_hi_u32 v1, s1, v1
	v_mul_lo_u32 v2, v1, s7
	v_sub_u32_e32 v2, s1, v2
	v_add_u32_e32 v3, 1, v1
	v_subrev_u32_e32 v4, s7, v2
	v_cmp_le_u32_e32 vcc, s7, v2
	v_cndmask_b32_e32 v1, v1, v3, vcc
	v_cndmask_b32_e32 v2, v2, v4, vcc
	v_add_u32_e32 v3, 1, v1
	v_cmp_le_u32_e32 vcc, s7, v2
	v_cndmask_b32_e32 v1, v1, v3, vcc
	v_xor_b32_e32 v1, s0, v1
	v_subrev_u32_e32 v8, s0, v1
	v_mul_lo_u32 v1, v8, s6
	v_sub_u32_e32 v4, s16, v1
"""
MULTIPLE = "	s_movk_i32 s0, {}\n	v_mul_lo_u32 v4, v4, s0\n"


def doubtful(made: str) -> int:
    """Stores whose offset v4 may be negative, where this makes v4."""
    store = "	buffer_store_dwordx4 v[0:3], v4, s[0:3], 0 offen"
    listing, asked = (
        GCN.replace(store, f"{made}{store} offset:448"),
        '	.section	.rodata,"a",@progbits\n',
    )
    binary = amd(listing.replace(asked, f"{asked}	.amdhsa_user_sgpr_count 16\n"))
    return binary.counts.get("negative offset", 0)


def test_a_remainder_of_the_number_of_a_workgroup_is_not_negative():
    assert doubtful(REMAINDER) == 0
    assert doubtful(REMAINDER + MULTIPLE.format("0x420")) == 0
    assert doubtful(REMAINDER + MULTIPLE.format("0xff70")) == 1
    # a lane's number, or one that an argument gives, may be less than what is subtracted
    assert doubtful(REMAINDER.replace("s16", "v0")) == doubtful(REMAINDER.replace("s16", "s17")) == 1


def test_any_other_division_may_leave_a_negative_remainder():
    lines = REMAINDER.strip("\n").splitlines()
    for left_out in range(len(lines) - 1):
        assert doubtful("\n".join(lines[:left_out] + lines[left_out + 1 :]) + "\n") == 1, lines[left_out]
    changes = (", 1, v1", ", 2, v1"), ("v8, s6", "v8, s7"), ("s16, v1", "s6, v1"), ("v3, vcc", "v1, vcc")
    for old, new in changes:
        assert doubtful(REMAINDER.replace(old, new)) == 1, old


ELSEWHERE = [
    ("fusion", nvidia(modes={"enable_fp_fusion": 0})),
    ("fusion", nvidia(modes={})),
    ("fusion", nvidia(job=job("bfloat16", kernel="hc_post_backward"))),
    ("launch", nvidia(occupancy=3)),
    ("launch", nvidia(problems=("2048 threads a block, at most 1024",))),
    ("spills", nvidia(usage=USAGE.replace("STACK:0", "STACK:8"))),
    ("conversion", nvidia(job=job("bfloat16"))),
    ("conversion", amd(job=job("bfloat16"))),
    ("rounding", nvidia(NARROW_PTX.replace("cvt.rn", "cvt.rz"), job=job("bfloat16"))),
]


@pytest.mark.parametrize(("rule", "binary"), ELSEWHERE)
def test_planted_elsewhere(rule, binary):
    expect(rule, binary)


def test_only_chunks_of_linear_attention_take_numbers_apart():
    apart = PTX.replace("max.f32", "cvt.rna.tf32.f32 %f1, %f2;\n	cvt.rn.bf16.f32")
    assert len(machine_rules.broken(nvidia(apart))) >= 3
    call = ChunkCall("float32", 64, 128, "gk")
    for part, right in (("linear_attention_chunk_scores", True), ("linear_attention_walk", False)):
        own = Job(call, dataclasses.replace(job().choice, kernel=part))
        assert (machine_rules.broken(nvidia(apart, job=own)) == []) is right


def test_a_tuned_config_may_spill():
    tuned = dataclasses.replace(job(), choice=dataclasses.replace(job().choice, stored=True))
    assert machine_rules.broken(nvidia(job=tuned, spills=2, spill_bytes=8)) == []
    assert machine_rules.broken(nvidia(spills=2, spill_bytes=8)) != []


def expect(rule: str, binary: Binary) -> None:
    """The rule's sentence is among those broken, and it is one of RULES."""
    (sentence,) = (r.__doc__ for r in machine_rules.RULES if r.__name__ == rule)
    assert any(what.startswith(sentence) for what in machine_rules.broken(binary))


def test_every_rule_is_planted():
    planted = {rule for rows in (*PLANTED.values(), ELSEWHERE) for rule, *_ in rows}
    assert planted == {rule.__name__ for rule in machine_rules.RULES}


def test_the_documentation_states_every_rule():
    documented = (ROOT / "docs" / "dev" / "machine_code.md").read_text()
    assert [r.__doc__ for r in machine_rules.RULES if f"| {r.__doc__} |" not in documented] == []


def test_what_does_not_compile_is_broken():
    assert machine_rules.broken(Binary("h200", job(), ("PTXASError: no",))) == ["PTXASError: no"]


FUSION = """
from ci import machine_rules, machine_terms
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary
from helion_sinkhorn.lab.machine.presented import present_device

present_device(DEVICES["mi350"])
from helion_sinkhorn.lab.tuning.child import compile_job

job = machine_terms.sections()["mi350"][1][0]
row = compile_job(DEVICES["mi350"], job)
binary = Binary("mi350", job, **{**row, "loops": tuple(row["loops"])})
print(any("fma" in op for op in binary.operations), machine_rules.broken(binary))
"""


@pytest.mark.nightly("8 s of a compiler; the rule that finds unfused code is tested always")
def test_products_fuse_whatever_the_default_of_triton(tmp_path):
    environment = {
        "PYTHONPATH": str(ROOT),
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_DEFAULT_FP_FUSION": "0",
    }
    environment |= {"HELION_SINKHORN_DEVICE": "mi350", "HELION_SINKHORN_CACHE_DIR": "off"}
    environment |= {"TRITON_DEFAULT_FP_FUSION": "0"}
    said = printed("-c", FUSION, env={**os.environ, **environment}, loaded=True)
    assert said.splitlines()[-1] == "True []"


# ------------------------------------------------------------------------------------------ the record


def terms(*binaries: Binary, before: machine_terms.Terms | None = None) -> machine_terms.Terms:
    return machine_terms.terms("h200", binaries, before or machine_terms.Terms())


def test_reading_gives_what_was_written():
    saved = terms(nvidia(), nvidia(job=job("float16")), nvidia(job=job("bfloat16"), spills=2, spill_bytes=8))
    assert machine_terms.parsed(machine_terms.text(saved)) == saved


def changed(current: machine_terms.Terms, recorded: machine_terms.Terms) -> list[str]:
    """Lines that came and went, without the names of the files."""
    lines = machine_terms.difference(recorded, current).splitlines()
    return [line for line in lines if re.match(r"[+-](?![+-])", line)]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (nvidia(PTX.replace("mul.f32", "mul.ftz.f32")), ["mul.ftz.f32: h200", "mul.ftz.f32 1"]),
        (nvidia(sass=SASS.replace("LDG.E.128", "LDG.E")), ["load 1x32"]),
        (nvidia(registers=49), ["registers ~49"]),
        (nvidia(shared=0), ["-    h200", "shared 512"]),
        (nvidia(spills=2, spill_bytes=8), ["spills 2 (8 bytes)"]),
        (nvidia(modes={"enable_fp_fusion": 0}), ["enable_fp_fusion=0", "enable_fp_fusion=1"]),
        (nvidia(job=job("float16")), ["rows float32", "rows float16"]),
        (Binary("h200", job(), ("no\nway",)), ["not compiled: no way"]),
    ],
)
def test_other_code_shows_as_a_difference(after, words):
    recorded = terms(nvidia())
    lines = "\n".join(changed(terms(after, before=recorded), recorded))
    assert all(word in lines for word in words), lines


def test_other_versions_show_as_a_difference():
    recorded = dataclasses.replace(terms(nvidia()), versions="helion 1.4.0, torch 2.13.0, triton 3.9.0")
    assert "helion 1.4.0" in changed(terms(nvidia(), before=recorded), recorded)[0]


@given(st.integers(1, 4096), st.integers(-500, 500), st.integers(1, 255), st.integers(-20, 20))
def test_about_the_same_shows_nothing_and_what_is_not_does(count, more, registers, more_registers):
    def binary(registers: int, count: int) -> Binary:
        return nvidia(registers=registers, counts={"instructions": 50, "cross-lane": count})

    recorded = terms(binary(registers, count))
    after = max(count + more, 1)
    current = terms(binary(registers + more_registers, after), before=recorded)
    same = (
        abs(more_registers) <= machine_terms.REGISTERS and abs(after - count) <= after // machine_terms.SHARE
    )
    # across the smallest count with a slack, the ~ itself comes or goes
    same &= (count < machine_terms.SHARE) == (after < machine_terms.SHARE)
    assert (changed(current, recorded) == []) == same
    # and what is written for it then shows nothing against itself
    again = terms(binary(registers + more_registers, after), before=current)
    assert machine_terms.text(again) == machine_terms.text(current)


def test_a_part_is_exchanged_for_what_was_compiled():
    both = terms(nvidia()) | machine_terms.terms("mi350", [amd()], machine_terms.Terms())
    rest = both.without(["h200"])
    assert {config.split()[0] for _, config in rest.programs} == {"mi350"}
    assert rest.operations["v_rcp_f32"] == {"mi350"}
    assert "rcp.approx.ftz.f32" not in rest.operations
    assert rest | terms(nvidia()) == both


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """The script on two programs that `compiled` stands for: (arguments) -> exit status, output."""
    programs = {"h200": ("h200", [job(), job("bfloat16")])}
    monkeypatch.setattr(machine_terms, "FILE", tmp_path / "machine_terms.txt")
    monkeypatch.setattr(machine_terms, "sections", lambda: programs)
    monkeypatch.setattr(machine_terms, "recorded_programs", lambda: {
        machine_terms.key("h200", job): job for job in script.programs if job.call.dtype != "float64"
    })  # fmt: skip

    def script(*arguments: str, **changes: object) -> tuple[int, str]:
        def compiled(device, jobs, workers):
            ptx = {"float32": PTX}
            return [nvidia(ptx.get(j.call.dtype, NARROW_PTX), job=j, **changes) for j in jobs]

        monkeypatch.setattr(machine_terms, "compile_for", compiled)
        monkeypatch.setattr(sys, "argv", ["machine_terms.py", *arguments])
        return machine_terms.main(), capsys.readouterr().out

    script.programs = programs["h200"][1]
    return script


def test_the_exit_status_is_the_verdict(run):
    status, output = run()
    assert status == 1
    assert "+    h200" in output
    assert run("--write")[0] == 0
    assert run() == (0, "h200: 2 programs in 0 s\nmachine_terms.txt says the same\n")
    status, output = run(registers=60)
    assert status == 1
    assert "registers ~60" in output
    status, output = run(occupancy=3)
    assert status == 1
    assert f"{machine_rules.launch.__doc__} 3 warps on a compute unit" in output
    assert run("--write", occupancy=3)[0] == 1


def test_a_part_that_the_file_has_nothing_of_is_no_success(run, monkeypatch):
    """`--only h200-tuned` said that the file says the same, and had compiled nothing."""
    every = {**machine_terms.sections(), "h200-tuned": ("h200", [job("float64")])}
    monkeypatch.setattr(machine_terms, "sections", lambda: every)
    with pytest.raises(SystemExit) as refusal:
        run("--only", "h200-tuned")
    assert refusal.value.code == 2
    assert "h200-tuned: 1 programs" in run("--only", "h200-tuned", "--all")[1]


def test_all_judges_what_the_file_leaves_out_by_the_rules_alone(run):
    run("--write")
    before = machine_terms.FILE.read_text()
    run.programs.append(job("float64"))
    assert run() == (0, "h200: 2 programs in 0 s\nmachine_terms.txt says the same\n")
    assert run("--all") == (0, "h200: 3 programs in 0 s\nmachine_terms.txt says the same\n")
    status, output = run("--all", "--new", occupancy=3)
    assert status == 1
    assert "float64" in output
    assert "3 warps on a compute unit" in output
    run("--all", "--write")
    assert machine_terms.FILE.read_text() == before


def test_the_sample_is_the_first_program_of_each_kernel_dtype_and_form():
    calls = [SinkhornCall(form, 1, dtype, n, n, 20) for n in (4, 8) for form in (True, False)
             for dtype in ("float32", "bfloat16")]  # fmt: skip
    jobs = [Job(c, Choice(k, (), (), "")) for c in calls for k in ("sinkhorn_forward", "sinkhorn_backward")]
    assert machine_terms.sample(jobs) == jobs[:8]


def test_writing_compiles_what_is_new_and_drops_what_is_gone(run):
    run("--write")
    gone = run.programs.pop(0)
    run.programs.append(job("float16"))
    status, output = run("--write", "--new")
    assert (status, output) == (0, "h200: 1 programs in 0 s\n")
    recorded = machine_terms.parsed(machine_terms.FILE.read_text())
    assert recorded.programs.keys() == {machine_terms.key("h200", j) for j in run.programs}
    assert machine_terms.key("h200", gone) not in recorded.programs


# ------------------------------------------------------------------------------------ the committed file


def test_the_file_is_as_it_is_written_and_names_every_program():
    written = machine_terms.FILE.read_text()
    recorded = machine_terms.parsed(written)
    assert machine_terms.text(recorded) == written
    expected = machine_terms.recorded_programs()
    assert recorded.programs.keys() == expected.keys(), "run `make machine ARGS='--write --new'`"
    assert {job.choice.kernel for job in expected.values()} == KERNELS.keys()


def test_the_file_is_of_the_tested_versions():
    pins = (ROOT / "constraints.txt").read_text() + (ROOT / "pyproject.toml").read_text()
    versions = machine_terms.parsed(machine_terms.FILE.read_text()).versions.split(", ")
    assert [v.split()[0] for v in versions] == ["helion", "torch", "triton"]
    assert all(v.replace(" ", "==") in pins for v in versions)
