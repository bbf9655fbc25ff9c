"""The emulator of AMD's machine code: arithmetic against libm, lane exchanges against the ISA's words,
checks.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import dataclasses

import numpy as np
import pytest
import torch
from assembled import program, result, run, step

from ci.emulator import arithmetic, lanes, launch, machine, matrix, text
from ci.emulator.machine import Model, Unknown
from ci.emulator.memory import Arena, Finding

U32, F32 = np.uint32, np.float32
LANE = np.arange(64, dtype=U32)
RANDOM = np.random.default_rng(0)


def floats(*values: float) -> np.ndarray:
    return np.array(values, F32)


def libm(name: str, *arguments: np.ndarray) -> np.ndarray:
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float] * len(arguments)
    return np.array([function(*map(float, row)) for row in zip(*arguments, strict=True)], F32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, any NaN like any other."""
    return bool(((a.view(U32) == b.view(U32)) | (np.isnan(a) & np.isnan(b))).all())


# ------------------------------------------------------------------------------------------- arithmetic


def test_fma_of_built_cases_is_rounded_once():
    """Sums that float64 rounds onto the middle between two float32, and then to the wrong side."""
    k = RANDOM.integers(1, 256, 20000)
    odd = 2 * RANDOM.integers(0, 1 << 20, 20000) + 1
    factors = 1 + k * 2.0**-23, (1 - k * 2.0**-23) * 2.0**-24
    a, b, c = (x.astype(F32) for x in (*factors, 1 + odd * 2.0**-23))
    naive = (a.astype(float) * b + c).astype(F32)
    expected = libm("fmaf", a, b, c)
    assert (naive != expected).mean() > 0.1  # the cases tell one rounding from two
    assert same(arithmetic.fma(a, b, c), expected)
    assert same(arithmetic.fma(-a, b, -c), -expected)


def test_fma_of_any_bits():
    with np.errstate(all="ignore"):
        a, b, c = RANDOM.integers(0, 1 << 32, (3, 50000), dtype=U32).view(F32)
        assert same(arithmetic.fma(a, b, c), libm("fmaf", a, b, c))


def test_fma_of_subnormals():
    scale = 2.0 ** RANDOM.integers(-76, -60, (3, 50000))
    a, b, c = (RANDOM.standard_normal((3, 50000)) * scale).astype(F32)
    c = c * F32(2.0**-60)
    expected = libm("fmaf", a, b, c)
    assert (np.abs(expected) < 2.0**-126).mean() > 0.5
    assert same(arithmetic.fma(a, b, c), expected)


@pytest.mark.parametrize("variant", list(arithmetic.VARIANTS))
def test_functions_are_within_one_unit_and_monotone_bounds_hold(variant):
    functions = arithmetic.Functions(variant)
    x = np.concatenate([RANDOM.uniform(-30, 30, 5000), 2.0 ** np.arange(-20, 20)]).astype(F32)
    positive = np.abs(x) + F32(2.0**-20)
    for rounded, exact in (
        (functions.exp(np.clip(x, -99, 99)), np.exp2(np.clip(x, -99, 99).astype(float))),
        (functions.log(positive), np.log2(positive.astype(float))),
        (functions.rcp(positive), 1 / positive.astype(float)),
        (functions.sqrt(positive), np.sqrt(positive.astype(float))),
    ):
        unit = np.spacing(np.abs(exact).astype(F32)).astype(float)
        error = (rounded.astype(float) - exact) / unit
        assert np.abs(error).max() <= 1
        if variant in ("above", "below"):
            assert (error * (1 if variant == "above" else -1)).min() >= 0
        if variant != "nearest":
            assert np.abs(error).max() > 0.5


def test_functions_of_special_values():
    functions = arithmetic.Functions()
    with np.errstate(all="ignore"):
        assert functions.exp(floats(-np.inf, np.inf, 0, 1e-40, -200)).tolist() == [0, np.inf, 1, 1, 0]
        assert functions.log(floats(0, 1, np.inf, 1e-40)).tolist() == [-np.inf, 0, np.inf, -np.inf]
        assert functions.rcp(floats(0, -0.0, np.inf, 4)).tolist() == [np.inf, -np.inf, 0, 0.25]
        assert functions.sqrt(floats(0, np.inf, 4, 9)).tolist() == [0, np.inf, 2, 3]
        assert np.isnan(functions.sqrt(floats(-1))).all()
        assert np.isnan(functions.log(floats(-1)))[0]
        assert arithmetic.Functions("below").rcp(floats(1e-40, 3e38)).tolist() == [np.inf, 0]


def test_maximum_of_nan_and_of_zeros():
    nan = np.nan
    a, b = floats(nan, 1, nan, -0.0, 0.0, 2), floats(1, nan, nan, 0.0, -0.0, 3)
    number = arithmetic.maximum_number(a, b)
    assert number[[0, 1, 5]].tolist() == [1, 1, 3]
    assert np.isnan(number[2])
    assert not np.signbit(number[3:5]).any()
    assert np.isnan(arithmetic.maximum(a, b)[:3]).all()
    assert np.signbit(arithmetic.minimum_number(a, b)[3:5]).all()


def test_bfloat16_rounds_to_even():
    bits = RANDOM.integers(0, 1 << 32, 20000, dtype=U32)
    bits[:1000] = (bits[:1000] & ~U32(0xFFFF)) | U32(0x8000)  # ties
    x = bits.view(F32)
    expected = torch.from_numpy(x.copy()).bfloat16()
    rounded = torch.from_numpy(arithmetic.from_bfloat16(arithmetic.bfloat16(x)).copy())
    assert torch.equal(rounded.nan_to_num(7.0), expected.float().nan_to_num(7.0))


def test_ldexp_rounds_once():
    x = floats(1.5, 1 + 2.0**-23, 1 + 3 * 2.0**-23, 1)
    assert arithmetic.ldexp(x, np.array([3, -149, -140, 128])).tolist() == [
        12, 2.0**-149, float(F32((1 + 3 * 2.0**-23) * 2.0**-140)), np.inf,
    ]  # fmt: skip


# ---------------------------------------------------------------------- instructions with pitfalls


def test_immediates_of_sixteen_bits_have_a_sign():
    assert step("s_addk_i32 s2, 0xfde0", {}, {2: 1000}).s[2, 0] == 456
    assert step("s_movk_i32 s2, 0xff80", {}).s[2, 0] == (-128) & 0xFFFFFFFF
    assert step("s_cmpk_lg_i32 s2, 0xffff", {}, {2: -1}).scc[0] == False  # noqa: E712
    assert step("s_cmpk_lt_u32 s2, 0xffff", {}, {2: 5}).scc[0] == True  # noqa: E712


@pytest.mark.parametrize(
    ("line", "given", "expected"),
    [
        ("v_bitop3_b32 v0, v1, v2, v3 bitop3:0xc8", {"v1": U32(12), "v2": U32(10), "v3": U32(6)},
         10 & (12 | 6)),
        ("v_bitop3_b32 v0, v1, v2, v3 bitop3:0x36", {"v1": U32(12), "v2": U32(10), "v3": U32(6)},
         (12 | 6) ^ 10),
        ("v_ashrrev_i16_e32 v0, 4, v1", {"v1": U32(0x12348003)}, 0xF800),
        ("v_bfe_i32 v0, v1, 2, 1", {"v1": U32(4)}, 0xFFFFFFFF),
        ("v_bfe_u32 v0, v1, 4, 8", {"v1": U32(0x1234)}, 0x23),
        ("v_perm_b32 v0, v1, v2, s2", {"v1": U32(0x77665544), "v2": U32(0x33221100), "s2": 0x0C040207},
         0x00442277),
        ("v_xad_u32 v0, v1, 64, 5", {"v1": U32(96)}, 37),
        ("v_add_lshl_u32 v0, v1, 3, 2", {"v1": U32(1)}, 16),
        ("v_sub_u32_e64 v0, v1, 2 clamp", {"v1": U32(1)}, 0),
        ("v_mul_u32_u24_e32 v0, v1, v2", {"v1": U32(0xFF000003), "v2": U32(5)}, 15),
        ("v_alignbit_b32 v0, v1, v2, 8", {"v1": U32(0xAB), "v2": U32(0x12345678)}, 0xAB123456),
        ("v_cvt_pk_bf16_f32 v0, v1, v2", {"v1": F32(1), "v2": F32(-2)}, 0xC0003F80),
        ("v_cvt_f32_f16_sdwa v0, v1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1",
         {"v1": U32(0x3C000000)}, 0x3F800000),
        ("v_max_f16_e32 v0, 0xf0e2, v1", {"v1": U32(0x7C00BC00)}, 0xBC00),
        ("v_max_f16_sdwa v0, v1, s2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD",
         {"v1": U32(0x4000BC00), "s2": 0x3C00}, 0x4000),
        ("v_max_f16_e32 v0, v1, v2", {"v1": U32(0x7E00), "v2": U32(0xC000)}, 0xC000),  # NaN loses
        ("v_pk_max_f16 v0, v1, s2 op_sel_hi:[1,0]", {"v1": U32(0xBC004000), "s2": 0xC0003C00}, 0x3C004000),
        ("v_pk_max_f16 v0, v1, v2 op_sel:[1,0] neg_lo:[0,1]", {"v1": U32(0x4200BC00), "v2": U32(0x3C00C400)},
         0x42004400),
        ("v_pk_maximum3_f16 v0, v1, v2, v2", {"v1": U32(0x7E004000), "v2": U32(0x4200BC00)}, 0x7E004000),
        ("v_pk_minimum3_f16 v0, v1, v2, v3",
         {"v1": U32(0x80004000), "v2": U32(0x0000BC00), "v3": U32(0x3C000000)}, 0x8000BC00),
        ("v_pk_mul_lo_u16 v0, v1, s2 op_sel_hi:[1,0]", {"v1": U32(0x80030002), "s2": 0x7FFF8003}, 0x00090006),
        ("v_pk_lshrrev_b16 v0, 7, v1 op_sel_hi:[0,1]", {"v1": U32(0x8080FF7F)}, 0x010101FE),
        ("v_mul_f32_e64 v0, -v1, |v2|", {"v1": F32(2), "v2": F32(-3)}, int(F32(-6).view(U32))),
        ("v_fma_f32 v0, v1, 1.0, neg(0)", {"v1": F32(-0.0)}, 0x80000000),
        ("v_add_u32_e32 v0, 1.0, v1", {"v1": U32(1)}, 0x3F800001),
        ("v_fma_mix_f32 v0, v1, v2, neg(0) op_sel:[1,0,0] op_sel_hi:[1,0,0]",
         {"v1": U32(0x40003C00), "v2": F32(3)}, int(F32(6).view(U32))),
    ],
)  # fmt: skip
def test_one_instruction(line, given, expected):
    assert set(result(line, **given).tolist()) == {expected}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], s[6:7] op_sel:[1,0,0] op_sel_hi:[0,1,0] neg_hi:[0,0,1]",
         [3 * 5 + 1, 2 * 7 - 1]),
        # a result may be its own source
        ("v_pk_add_f32 v[0:1], v[0:1], v[0:1] op_sel:[0,1] op_sel_hi:[1,0]", [11, 11]),
        ("v_pk_mul_f32 v[0:1], v[2:3], 0 op_sel_hi:[0,1]", [0, 0]),
    ],
)  # fmt: skip
def test_packed_operands_choose_their_halves(line, expected):
    given = {k: np.full(64, x, F32) for k, x in enumerate((1, 10, 2, 3, 5, 7))}
    w = step(line, given, {6: int(F32(1).view(U32)), 7: int(F32(100).view(U32))})
    assert w.v[:2, 0, 0].view(F32).tolist() == expected


def test_a_packed_constant_has_a_high_half_only_where_it_is_0():
    with pytest.raises(ValueError, match="high half of a constant"):
        step("v_pk_mul_f32 v[0:1], v[2:3], 1.0 op_sel_hi:[0,1]", {2: LANE, 3: LANE})


def test_carries():
    w = step("v_add_co_u32_e32 v0, vcc, v1, v2", {1: np.full(64, 0xFFFFFFFF, U32), 2: LANE})
    assert w.v[0, 0, :3].tolist() == [0xFFFFFFFF, 0, 1]
    assert w.s[106, 0] == 0xFFFFFFFE
    assert w.s[107, 0] == 0xFFFFFFFF


@pytest.mark.parametrize(
    ("upper", "lower"), [(0, 0), (60, -60), (-60, 60), (100, -20), (-100, 20), (-120, 0), (0, 120)]
)
def test_a_division_is_rounded_correctly(upper, lower):
    """The sequence that LLVM makes of a / b, near the ends of float32's range too."""
    body = """
        v_div_scale_f32 v4, s[10:11], v3, v3, v2
        v_rcp_f32_e32 v5, v4
        s_nop 0
        v_fma_f32 v6, -v4, v5, 1.0
        v_fmac_f32_e32 v5, v6, v5
        v_div_scale_f32 v6, vcc, v2, v3, v2
        v_mul_f32_e32 v7, v6, v5
        v_fma_f32 v8, -v4, v7, v6
        v_fmac_f32_e32 v7, v8, v5
        v_fma_f32 v4, -v4, v7, v6
        s_nop 3
        v_div_fmas_f32 v4, v4, v5, v7
        v_div_fixup_f32 v2, v4, v3, v2
    """
    a = RANDOM.uniform(1, 2, 64).astype(F32) * F32(2.0**upper)
    b = RANDOM.uniform(1, 2, 64).astype(F32) * F32(2.0**lower)
    load = "buffer_load_dword v2, v1, s[4:7], 0 offen\nbuffer_load_dword v3, v1, s[4:7], 0 offen offset:256\n"
    ratios = run(load + "s_waitcnt vmcnt(0)\n" + body + STORE.format("v2"), np.concatenate([a, b]).view(U32))
    assert same(ratios[:64].view(F32), (a.astype(float) / b).astype(F32))


def test_classes_of_float32():
    of_class = (0x7F800001, 0x7FC00000, 0xFF800000, 0xBF800000, 0x80000001, 0x80000000, 0, 1, 0x00800000,
                0x7F800000)  # fmt: skip
    for wanted in range(10):
        words = np.resize(np.array(of_class, U32), 64)
        w = step("v_cmp_class_f32_e64 s[4:5], v1, v2", {1: words, 2: np.full(64, 1 << wanted, U32)})
        mask = int(w.s[4, 0]) | int(w.s[5, 0]) << 32
        assert mask == sum(1 << k for k in range(64) if k % 10 == wanted)


def test_halves_are_compared_with_their_signs():
    halves = np.array([0x7FFF8000, 0x80007FFF], U32)
    for line, expected in (
        ("v_cmp_lt_i16_e64 s[4:5], -1, v1", (False, True)),
        ("v_cmp_gt_i16_sdwa s[4:5], v1, v2 src0_sel:WORD_1 src1_sel:DWORD", (True, False)),
    ):
        w = step(line, {1: np.resize(halves, 64), 2: np.zeros(64, U32)})
        assert int(w.s[4, 0]) == sum(held << k for k, held in enumerate(expected * 16))


def test_inactive_lanes_keep_their_register_and_clear_masks():
    active = LANE % 2 == 0
    assert set(result("v_mov_b32_e32 v0, 5", v0=U32(9), active=active).tolist()) == {5, 9}
    w = step("v_cmp_eq_u32_e64 s[4:5], v0, v0", {0: LANE}, active=active)
    assert w.s[4, 0] == 0x55555555


def test_unknown_opcodes_controls_and_modifiers_refuse_a_program():
    with pytest.raises(ValueError, match="row_share:1 is not one of gfx9"):
        lanes.pattern("row_share", "1")
    with pytest.raises(Unknown, match="v_cos_f32, v_sin_f32"):
        machine.load(program("v_sin_f32_e32 v2, v2\nv_cos_f32_e32 v2, v2"))
    with pytest.raises(Unknown, match="modifier mul is unknown"):
        machine.load(program("v_add_f32_e64 v2, v2, v2 mul:2"))
    head = '\t.amdgcn_target "amdgcn-amd-amdhsa-unknown-gfx950"\n\t.globl\tkernel\n'
    with pytest.raises(ValueError, match="float_round_mode_32 3"):
        text.parse(head + "\t.amdhsa_float_round_mode_32 3\n")


# ---------------------------------------------------------------------------------- between lanes

DPP = {
    # of the CDNA3 ISA document, "DPP_CTRL Enumeration": the lane that lane 0 to 15 of a row reads
    "quad_perm:[1,0,3,2]": [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14],
    "quad_perm:[2,3,0,1]": [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13],
    "quad_perm:[0,0,0,0]": [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12],
    "row_half_mirror": [7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8],
    "row_mirror": [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
    "row_ror:8": [8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7],
    "row_ror:4": [12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    "row_shr:1": [None, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    "row_shl:2": [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, None, None],
    "row_newbcast:3": [3] * 16,
}


@pytest.mark.parametrize("control", list(DPP))
def test_dpp_against_the_isa(control):
    expected = [16 * row + k + 100 if k is not None else 0 for row in range(4) for k in DPP[control]]
    line = f"v_mov_b32_dpp v0, v1 {control} row_mask:0xf bank_mask:0xf bound_ctrl:1"
    assert result(line, v0=U32(7), v1=LANE + U32(100)).tolist() == expected
    kept = [e or 7 for e in expected]
    assert result(line.replace(" bound_ctrl:1", ""), v0=U32(7), v1=LANE + U32(100)).tolist() == kept


def test_row_broadcasts():
    line = "v_mov_b32_dpp v0, v1 row_bcast:{} row_mask:{} bank_mask:0xf"
    for last, rows, expected in ((15, "0xa", [7, 15, 7, 47]), (31, "0xc", [7, 7, 31, 31])):
        moved = result(line.format(last, rows), v0=U32(7), v1=LANE)
        assert moved.tolist() == np.repeat(expected, 16).tolist()


def test_dpp_reads_zero_from_inactive_lanes():
    active = LANE != 1
    line = "v_mov_b32_dpp v0, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1"
    assert result(line, v0=U32(7), v1=LANE + U32(100), active=active)[:4].tolist() == [0, 7, 103, 102]


@pytest.mark.parametrize(
    ("size", "first", "second"), [(16, "a0 b0 a2 b2", "a1 b1 a3 b3"), (32, "a0 a1 b0 b1", "a2 a3 b2 b3")]
)
def test_permlane_swaps(size, first, second):
    """Rows of 16 lanes that the two registers hold afterwards."""
    w = step(f"v_permlane{size}_swap_b32_e32 v0, v1", {0: LANE, 1: LANE + U32(100)})
    rows = [" ".join(f"{'ab'[int(v) // 100]}{int(v) % 100 // 16}" for v in w.v[k, 0, ::16]) for k in (0, 1)]
    assert rows == [first, second]


def test_bpermute_reads_zero_from_inactive_lanes():
    active = LANE != 63
    given = {"v0": U32(9), "v1": (63 - LANE) * U32(4), "v2": LANE + U32(1)}
    moved = result("ds_bpermute_b32 v0, v1, v2", **given, active=active)
    assert moved.tolist() == [0, *range(63, 1, -1), 9]


def test_lanes_read_and_written():
    assert step("v_readlane_b32 s2, v1, 17", {1: LANE}).s[2, 0] == 17
    assert step("v_readfirstlane_b32 s2, v1", {1: LANE}, active=LANE >= 40).s[2, 0] == 40
    assert step("v_writelane_b32 v0, s2, 3", {0: LANE}, {2: 77}).v[0, 0, 3] == 77


@pytest.mark.parametrize("op", sorted(matrix.KNOWN))
def test_matrix_instructions_multiply(op):
    """Against a product in float64: lanes as the ISA document's tables place them."""
    size, depth, kind = int(op[11:13]), int(op.split("x")[2].split("_")[0]), op.rpartition("_")[2]
    shapes = (size, depth), (depth, size), (size, size)
    a, b, c = (RANDOM.integers(-8, 9, shape).astype(F32) for shape in shapes)
    per, blocks = depth * size // 64, 64 // size
    vectors = {}
    for first, values in ((20, lambda i, k: a[i, k]), (24, lambda i, k: b[k, i])):
        lane_values = [[values(n % size, per * (n // size) + j) for j in range(per)] for n in range(64)]
        if kind == "f32":
            vectors[first] = np.array(lane_values, F32)[:, 0]
            continue
        bits = arithmetic.bfloat16(np.array(lane_values, F32)).astype(np.uint16)
        if kind == "f16":
            bits = np.array(lane_values, np.float16).view(np.uint16)
        words = np.ascontiguousarray(bits).view(U32)
        vectors |= {first + k: words[:, k] for k in range(words.shape[1])}
    rows = {
        (n, lane): (8 * (n // 4) + 4 * (lane // 32) + n % 4) if size == 32 else 4 * (lane // 16) + n
        for n in range(size // blocks) for lane in range(64)
    }  # fmt: skip
    count = size * size // 64
    for n in range(count):
        vectors[n] = np.array([c[rows[n, lane], lane % size] for lane in range(64)], F32)
    width = max(1, per // 2) if kind != "f32" else 1
    ranges = [f"v[{f}:{f + width - 1}]" if width > 1 else f"v{f}" for f in (20, 24)]
    w = step(f"{op} v[0:{count - 1}], {ranges[0]}, {ranges[1]}, v[0:{count - 1}]", vectors)
    exact = a.astype(float) @ b + c
    for n in range(count):
        expected = [exact[rows[n, lane], lane % size] for lane in range(64)]
        assert w.v[n, 0].view(F32).tolist() == expected


def test_the_floored_accumulator_rounds_down():
    a, b, c = np.full((1, 1, 8), 2.0**-13, F32), np.full((1, 8, 1), -(2.0**-13), F32), np.ones((1, 1, 1), F32)
    assert matrix.nearest_sum(a, b, c)[0, 0, 0] == 1 - 2.0**-23 * 1
    assert matrix.floored_sum(a, b, c)[0, 0, 0] <= matrix.nearest_sum(a, b, c)[0, 0, 0]
    assert matrix.floored_sum(a, b * F32(2.0**-20), c)[0, 0, 0] == np.nextafter(F32(1), F32(0))


# -------------------------------------------------------------------- checks without an expected value

WORDS = np.arange(1, 257, dtype=U32)
HALFWORDS = np.arange(1, 257, dtype=np.uint16)
STORE = "buffer_store_dword {}, v1, s[4:7], 0 offen"


def test_masks_are_range_checks():
    body = "v_bfrev_b32_e32 v3, 1\nv_cmp_gt_u32_e32 vcc, 10, v0\ns_nop 1\nv_cndmask_b32_e32 v1, v3, v1, vcc\n"
    words = run(body + "v_mov_b32_e32 v2, 0\n" + STORE.format("v2"), WORDS[:64])
    assert words.tolist() == [0] * 10 + list(range(11, 65))


@pytest.mark.parametrize(("kind", "body", "options"), [
    ("address", STORE.format("v0"), {"content": WORDS[:63]}),
    ("address", "v_add_u32_e32 v1, 0x10000, v1\n" + STORE.format("v0"), {}),
    ("address", "v_mov_b32_e32 v2, 0x40\nds_write_b32 v2, v0", {"lds": 64}),
    ("wait", "buffer_load_dword v2, v1, s[4:7], 0 offen\nv_add_u32_e32 v2, 5, v2", {}),
    ("wait", "buffer_load_dword v2, v1, s[4:7], 0 offen\nv_mov_b32_e32 v2, 5", {}),
    ("wait", "s_load_dword s10, s[0:1], 0x0\ns_load_dword s11, s[0:1], 0x4\ns_waitcnt lgkmcnt(1)\n"
     "s_add_i32 s10, s10, 1", {}),
    ("wait", "ds_read_b32 v2, v1\nds_read_b32 v3, v1\ns_waitcnt lgkmcnt(1)\n"
     "v_mov_b32_e32 v4, v3", {"lds": 256}),
    ("wait", "ds_write_b32 v1, v0\ns_barrier", {"lds": 256}),
    ("hazard", "v_rcp_f32_e32 v2, v0\nv_add_f32_e32 v3, v2, v2", {}),
    ("hazard", "v_mov_b32_e32 v2, v0\ns_nop 0\n"
     "v_mov_b32_dpp v3, v2 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1", {}),
    ("hazard", "v_cmp_gt_u32_e32 vcc, 10, v0\ns_nop 0\nv_cndmask_b32_e32 v2, v0, v1, vcc", {}),
    ("hazard", "v_readfirstlane_b32 s6, v0\ns_nop 3\n" + STORE.format("v0"), {}),
    ("hazard", "v_mov_b32_e32 v2, v0\nv_readfirstlane_b32 s8, v2", {}),
    ("hazard", "v_readfirstlane_b32 s8, v0\ns_nop 2\nv_readlane_b32 s9, v0, s8", {}),
    ("hazard", "v_mov_b32_e32 v2, v0\ns_nop 0\nv_permlane32_swap_b32_e32 v2, v3", {}),
    ("hazard", "v_mfma_f32_32x32x2_f32 v[16:31], v0, v0, 0\ns_nop 7\ns_nop 7\ns_nop 0\n"
     "v_mov_b32_e32 v2, v16", {}),
    ("hazard", "v_mfma_f32_32x32x2_f32 v[16:31], v0, v0, 0\nv_mov_b32_e32 v16, v0", {}),
    ("hazard", "v_mov_b32_e32 v2, v0\ns_nop 0\nv_mfma_f32_32x32x2_f32 v[16:31], v2, v0, 0", {}),
    ("hazard", "v_lshlrev_b32_e32 v1, 2, v1\nbuffer_store_dwordx4 v[8:11], v1, s[4:7], 0 offen\n"
     "v_mov_b32_e32 v9, v0", {}),
    ("race", "v_and_b32_e32 v2, 0xfc, v1\nds_write_b32 v2, v0\nds_read_b32 v3, v2", {"lds": 256, "waves": 2}),
    ("race", "v_and_b32_e32 v2, 0xfc, v1\nds_write_b32 v2, v0", {"lds": 256, "waves": 2}),
    ("race", "v_mov_b32_e32 v1, 0\n" + STORE.format("v0"), {"waves": 2}),
    ("race", "v_and_b32_e32 v2, 64, v0\nv_lshlrev_b32_e32 v2, 4, v2\nv_mov_b32_e32 v1, 0\n"
     "buffer_store_short v2, v1, s[4:7], 0 offen", {"waves": 2}),
    ("address", "buffer_load_dword v2, v1, s[4:7], 0 offen offset:2", {}),
    ("address", "buffer_store_short v0, v1, s[4:7], 0 offen offset:1", {}),
    ("address", "buffer_load_dword v2, v1, s[4:7], 0 offen offset:1", {"content": HALFWORDS}),
    ("address", "v_mov_b32_e32 v2, 0\nglobal_load_dword v3, v2, s[0:1] offset:1", {}),
    ("offset", "v_subrev_u32_e32 v1, 64, v1\n"
     "buffer_store_dword v0, v1, s[4:7], 0 offen offset:448", {"content": WORDS}),
    ("end", ".Lagain:\ns_branch .Lagain", {"model": Model(most=1000)}),
    # nothing is wrong with these
    ("", "v_rcp_f32_e32 v2, v0\ns_nop 0\nv_add_f32_e32 v3, v2, v2", {}),
    ("", "v_rcp_f32_e32 v2, v0\nv_rcp_f32_e32 v3, v2", {}),
    ("", "v_mov_b32_e32 v2, v0\ns_nop 1\n"
     "v_mov_b32_dpp v3, v2 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1", {}),
    ("", "v_cmp_gt_u32_e32 vcc, 10, v0\ns_nop 1\nv_cndmask_b32_e32 v2, v0, v1, vcc", {}),
    ("", "v_mfma_f32_32x32x2_f32 v[16:31], v0, v0, 0\ns_nop 7\ns_nop 7\ns_nop 1\nv_mov_b32_e32 v2, v16", {}),
    ("", "v_mfma_f32_32x32x2_f32 v[16:31], v0, v0, 0\nv_mfma_f32_32x32x2_f32 v[16:31], v0, v0, v[16:31]", {}),
    ("", "ds_read_b32 v2, v1\nds_read_b32 v3, v1\ns_waitcnt lgkmcnt(1)\nv_mov_b32_e32 v4, v2", {"lds": 256}),
    ("", "v_and_b32_e32 v2, 0xfc, v1\nv_mov_b32_e32 v3, 7\nds_write_b32 v2, v3\n"
     "ds_read_b32 v3, v2", {"lds": 256, "waves": 2}),
    ("", "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\ns_barrier\nv_xor_b32_e32 v2, 0x100, v1\n"
     "ds_read_b32 v3, v2", {"lds": 512, "waves": 2}),
    ("", "v_mov_b32_e32 v1, 0\n" + STORE.format("v0"), {}),
    ("", "buffer_store_dword v0, v1, s[4:7], 0 offen offset:448", {}),
])  # fmt: skip
def test_a_fault_is_found_and_what_is_right_is_not(kind, body, options):
    with pytest.raises(Finding) if kind else contextlib.nullcontext() as raised:
        run(body, **{"content": WORDS, **options})
    assert not kind or raised.value.kind == kind, str(raised.value)


def test_a_dword_of_two_halfwords_begins_at_either():
    move = "buffer_load_dword v2, v1, s[4:7], 0 offen offset:{}\ns_waitcnt vmcnt(0)\n" \
           "buffer_store_dword v2, v1, s[4:7], 0 offen offset:{}"  # fmt: skip
    assert (run(move.format(2, 0), HALFWORDS)[:128] == HALFWORDS[1:129]).all()
    assert (run(move.format(0, 2), HALFWORDS)[1:129] == HALFWORDS[:128]).all()


def test_a_dword_of_two_arguments_begins_at_either():
    """LLVM joins hidden arguments of two bytes."""
    load = "v_mov_b32_e32 v2, 0\nglobal_load_dword v3, v2, s[0:1] offset:{}\ns_waitcnt vmcnt(0)\n"
    shifted, first, second = (run(load.format(at) + STORE.format("v3"), WORDS[:64])[0] for at in (2, 0, 4))
    assert shifted == first >> 16 | (second & 0xFFFF) << 16


def test_hidden_arguments_have_the_number_of_workgroups():
    places = [text.Argument(4 * k, 4, f"hidden_block_count_{axis}") for k, axis in enumerate("xyz")]
    loaded = machine.Loaded(dataclasses.replace(program(""), arguments=tuple(places)), ())
    assert np.frombuffer(launch.segment(loaded, [], 5, Arena({}), bytes(16)), U32).tolist() == [5, 1, 1, 0]


def test_registers_and_lds_that_are_not_written_change_with_the_seed():
    read = "ds_read_b32 v2, v1\ns_waitcnt lgkmcnt(0)\n"
    for body in (read + STORE.format("v2"), STORE.format("v9")):
        first, second = (run(body, WORDS[:64], lds=256, model=Model(seed=k)) for k in (0, 1))
        assert (first != second).all()
    # of the register
    assert np.isnan(first.view(F32)).all()


def test_waves_that_meet_without_a_barrier_depend_on_their_order():
    """A store that another wave reads from global memory: no race detector is there, the order of waves
    tells.
    """
    body = """
        v_lshrrev_b32_e32 v3, 6, v0
        s_nop 0
        v_readfirstlane_b32 s8, v3
        s_cmp_eq_u32 s8, 0
        s_cbranch_scc0 .Lother
        v_mov_b32_e32 v2, 7
        buffer_store_dword v2, v1, s[4:7], 0 offen
        s_branch .Lend
    .Lother:
        v_subrev_u32_e32 v4, 0x100, v1
        buffer_load_dword v2, v4, s[4:7], 0 offen
        s_waitcnt vmcnt(0)
        buffer_store_dword v2, v1, s[4:7], 0 offen
    .Lend:
    """
    by_order = [run(body, WORDS[:128], waves=2, model=Model(order=o)).tolist() for o in ("first", "last")]
    assert by_order[0] != by_order[1]


def test_workgroups_branches_and_scratch():
    body = """
        v_lshl_add_u32 v1, s2, 8, v1
        scratch_store_dword off, v0, off offset:4
        scratch_load_dword v2, off, off offset:4
        s_waitcnt vmcnt(0)
        s_mov_b32 s8, 0
    .Lagain:
        v_add_u32_e32 v2, 1, v2
        s_add_i32 s8, s8, 1
        s_cmp_le_u32 s8, s2
        s_cbranch_scc1 .Lagain
        buffer_store_dword v2, v1, s[4:7], 0 offen
    """
    words = run(body, WORDS[:192], grid=3, scratch=16).reshape(3, 64)
    assert words.tolist() == [[lane + 1 + group for lane in range(64)] for group in range(3)]


# ------------------------------------------------------------------------------------------------ launches


def decided(x: torch.Tensor, y: torch.Tensor, number: int = 3, grid: int = 2, **model) -> bytes:
    """The digest of a launch of (x, number, y)."""
    memory = launch.regions_of([x, y])
    of_x, of_y = (launch.place_in(memory, t) for t in (x, y))
    values = [("*fp32", of_x), ("i32", number), ("*fp32", of_y)]
    return launch.decided(Model(**model), "program", grid, values, {k: r.numpy() for k, r in memory.items()})


def test_views_that_overlap_share_their_memory():
    """What a kernel writes into one it reads from the other; bytes of neither are not mapped."""
    whole = torch.arange(24.0)
    rows, behind, apart = whole[:16].view(2, 8), whole[4:18], whole[20:]
    memory = launch.regions_of([apart, behind, rows])
    assert sorted(r.numel() for r in memory.values()) == [16, 72]
    places = [launch.place_in(memory, t) for t in (rows, behind, apart)]
    assert places[0].region == places[1].region != places[2].region
    assert [p.offset for p in places] == [0, 16, 0]


def test_launches_that_differ_in_anything_are_run_each():
    x, y = torch.arange(8.0), torch.full((8,), float("nan"))
    again = decided(x.clone(), y.clone())
    assert decided(x, y) == again
    other = x.clone()
    other[7] = -0.0
    changes = {"number": 4}, {"grid": 3}, {"seed": 1}, {"functions": "below"}
    differing = [decided(*given) for given in ((other, y), (y, x), (x, x), (x[:4], y))]
    differing += [decided(x, y, **change) for change in changes]
    assert len({again, *differing}) == 1 + len(differing)
