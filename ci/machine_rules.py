"""RULES for the machine code of every committed kernel and config, each in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.sinkhorn.evidence import owns_whole_matrices

Rule = Callable[[Binary], Iterator[str]]

RECIPROCAL = {"nvidia": "rcp.approx.ftz.f32", "amd": "v_rcp_f32"}
"""runtime.device_math.reciprocal: one instruction, 1 ulp."""
NORM = re.compile(r"(div\.(full|rn)|sqrt\.rn)\.f32|v_(div_\w+|rcp|rsq|sqrt)_f32")
"""Square root and division of a norm, once a token or a line, with the accuracy of their instructions; and
the division by a scale, which is rounded once."""
OF_INTEGERS = {"v_rcp_iflag_f32"}
"""The estimate from which AMD's code divides one index by another, exactly."""
FUNCTIONS = {"ex2.approx.ftz.f32", "v_exp_f32", "v_log_f32"}
"""2^x and log2 x as instructions."""
LOGARITHM = {"fma.rn.ftz.f32", "cvt.rn.f32.s32"}
"""NVIDIA's log2 x: libdevice's polynomial, and the exponent of x as a number."""
NARROWING = re.compile(
    r"cvt\.rn\.(bf16|f16)(x2)?\.f32|v_cvt_(pk_)?(bf16|f16)_f32|v_fma_mix(lo|hi)_f16|v_add3_u32"
)
"""From float32 to 16 bits.  gfx942 has no instruction for bfloat16: it adds in integers."""
WIDENING = re.compile(
    r"cvt\.f32\.(bf16|f16)|(add|sub|fma)\.rn\.f32\.(bf16|f16)|v_cvt_f32_(bf16|f16)|v_fma_mix_f32"
)
"""From 16 bits to float32, by itself or on the way into a sum."""
SELECTING = re.compile(r"v_pk_(max|min|maximum3|minimum3)_f16")
"""The larger of two 16-bit numbers, which rounds nothing."""
MATRIX = re.compile(r"(wgmma\.)?mma\w*\.\S*\.f32\.|tcgen05\.mma|v_mfma_f32_")
"""Matrix instructions that add up in float32."""
PARTS = {"cvt.rna.tf32.f32", "cvt.rn.bf16.f32", "cvt.rn.bf16x2.f32"}
"""Kernels in which chunks of linear attention split a float32 into two or three numbers for matrix units."""
SPILL_BYTES = {
    # The adjoint of a 128 x 128 matrix holds A, its cotangent and the logits, 48 Ki floats besides
    # temporaries; the registers of a whole NVIDIA SM are 64 Ki
    ("sm90", "sinkhorn_backward_history 128x128"): 192,
    ("sm100", "sinkhorn_backward_history 128x128"): 304,
    # on an H200, where nothing spills, two warps are 1.2 times as fast as four
    ("sm100", "sinkhorn_backward_history 64x64"): 104,
    # the logits that a restart of the log form reads again, beside A of 64 entries a thread
    ("sm90", "sinkhorn_forward log 33x33"): 200,
    ("sm100", "sinkhorn_forward log 33x33"): 328,
    # 64 entries a thread where an H200 spills none
    ("sm100", "sinkhorn_forward 16x16"): 24,
    ("sm100", "sinkhorn_backward_history 16x16"): 48,
    # accumulators of 256 columns, and of 64 rows by 128 columns beside the loads of three stages
    ("sm90", "dot_compress_product precise"): 8,
    ("sm90", "dot_compress_product 300x(1000,64)"): 24,
    ("sm90", "dot_compress_expand 300x(1000,64)"): 96,
    # eight loaded steps of five tensors beside the state and what the gates have gathered
    ("sm90", "linear_attention_walk dk 32x32"): 72,
    ("sm90", "linear_attention_walk dk 32x64"): 24,
    ("sm100", "linear_attention_walk dk 32x32"): 112,
    ("sm100", "linear_attention_walk dk 32x64"): 32,
    ("sm100", "linear_attention_walk dk 64x128"): 40,
    ("sm100", "linear_attention_walk o 8x16"): 8,
    # gates: two tiles of 64 x 64 for each side of a state and six levels, float32 operands in three parts
    ("sm90", "linear_attention_gates"): 2232,
    ("sm100", "linear_attention_gates"): 1136,
    ("gfx942", "linear_attention_gates"): 568,
    ("gfx950", "linear_attention_gates"): 160,
    # four old streams, a new one, 24 coefficients and the sums of 64 tokens by 32 columns, in parts
    ("sm90", "hc_boundary_forward float32"): 16,
    ("sm100", "hc_boundary_forward float16"): 8,
    # float16 operands in two TF32 parts each, where bfloat16 ones are one number
    ("sm90", "hc_mixes_backward float16"): 56,
    ("sm100", "hc_boundary_projection float16"): 16,
    # the gradients of four new streams, 24 coefficients and 24 sums of 64 tokens by 32 columns, in four warps
    ("sm90", "hc_boundary_backward"): 128,
    ("sm100", "hc_boundary_backward"): 208,
    # in four warps, which the tuner tries, with a norm; in eight none but of float32, 64
    ("sm90", "hc_boundary_second"): 304,
    # three columns, moved one by one with their own checks
    ("sm90", "hc_boundary_backward 4x3"): 552,
    ("sm100", "hc_boundary_backward 4x3"): 864,
    # chunks: two ways to take pairs in one program, one of them for gates that decay fast, and float32
    # operands in three parts; a program of one way would leave the other to a second launch
    # (scores of float32 operands: four warps are 2.2 times as fast as eight, which spill half as much)
    ("sm90", "linear_attention_chunk_scores"): 672,
    ("sm90", "linear_attention_chunk_walk"): 488,
    ("sm90", "linear_attention_chunk_gradients"): 2328,
    ("sm100", "linear_attention_chunk_scores"): 120,
    ("sm100", "linear_attention_chunk_gradients"): 800,
    ("gfx942", "linear_attention_chunk_gradients"): 708,
    ("gfx950", "linear_attention_chunk_walk"): 20,
    ("gfx950", "linear_attention_chunk_gradients"): 552,
}
"""The stack in bytes that a thread may have under Triton 3.9, by architecture and words of a program; else 0.
"""


def vendor(binary: Binary) -> str:
    return DEVICES[binary.device].vendor


def named(binary: Binary, pattern: str) -> set[str]:
    """Operations in whose name the pattern stands."""
    return {op for op in binary.operations if re.search(pattern, op)}


def has(binary: Binary, trait: str) -> bool:
    """Whether the kernel's row has this trait (runtime.kernel.Kernel.traits)."""
    return trait in KERNELS[binary.job.choice.kernel].traits


def allowed_parts(binary: Binary) -> set[str]:
    """PARTS, or AMD's operations for them, in a kernel that splits numbers."""
    return PARTS | named(binary, NARROWING.pattern) if has(binary, "splits") else set()


def reciprocal(binary: Binary) -> Iterator[str]:
    """Inverses but of norms and scales are the pinned one-instruction reciprocal; what normalises has it."""
    pinned = {RECIPROCAL[vendor(binary)]}
    inverses = named(binary, r"^(div|rcp|r?sqrt)\.|^v_(div|rcp|rsq|sqrt)_") - OF_INTEGERS
    of_norm = {op for op in inverses if NORM.fullmatch(op)} if has(binary, "norms") else set()
    yield from sorted(inverses - pinned - of_norm)
    if has(binary, "normalises") and not pinned <= inverses:
        yield f"no {RECIPROCAL[vendor(binary)]}"
    if binary.counts.get("division step") and not has(binary, "norms"):
        yield f"{binary.counts['division step']} steps of a division"


def functions(binary: Binary) -> Iterator[str]:
    """Exponentials and logarithms are to the base 2, and no other function is called."""
    yield from sorted(named(binary, r"^(ex2|lg2|sin|cos|tanh)\.|^v_(exp|log|sin|cos)_") - FUNCTIONS)


def subnormals(binary: Binary) -> Iterator[str]:
    """Subnormals are kept, except in NVIDIA's reciprocal, its exponential and inside its logarithm."""
    flushing = named(binary, r"\.ftz\b") - FUNCTIONS - {RECIPROCAL["nvidia"]}
    if binary.operations.keys() >= LOGARITHM:
        flushing -= LOGARITHM
    yield from sorted(flushing)
    yield from (f"{k} {v}" for k, v in binary.modes.items() if "denorm_mode" in k and v != 3)


def rounding(binary: Binary) -> Iterator[str]:
    """Every rounding is to nearest even, except the one to TF32 parts, which add up to their number."""
    roundings = named(binary, r"\.(rz|rm|rp|rna|rs)\b|_(pkrtz|pknorm|rpi|flr|sr)_")
    yield from sorted(roundings - allowed_parts(binary))
    yield from (f"{k} {v}" for k, v in binary.modes.items() if "round_mode" in k and v != 0)


def precision(binary: Binary) -> Iterator[str]:
    """Everything is computed in float32; only arguments are widened to it and results rounded from it."""
    for op in sorted(named(binary, r"f16|f64|tf32|^v_add3_u32$") - allowed_parts(binary)):
        exact = WIDENING.fullmatch(op) or SELECTING.fullmatch(op)
        if not (exact or NARROWING.fullmatch(op) or MATRIX.match(op)):
            yield op


def conversion(binary: Binary) -> Iterator[str]:
    """Kernels that normalise round 16-bit results by a conversion; float32 ones convert only parts."""
    dtype = binary.job.call.dtype
    narrowing = sorted(op for op in binary.operations if NARROWING.fullmatch(op))
    if dtype == "float32":
        yield from sorted(set(narrowing) - allowed_parts(binary))
    elif has(binary, "normalises") and not has(binary, "returns float32") and not narrowing:
        yield f"nothing rounds to {dtype}"


def fusion(binary: Binary) -> Iterator[str]:
    """Compilers fuse products into sums, except beside optional results; every launch says so."""
    expected = 0 if has(binary, "optional results") else 1
    if binary.modes.get("enable_fp_fusion") != expected:
        yield f"enable_fp_fusion is {'off' if expected else 'on'}"


def order(binary: Binary) -> Iterator[str]:
    """No atomic instruction: every sum has one order."""
    if binary.counts.get("atomic"):
        yield f"{binary.counts['atomic']} atomics"


def offsets(binary: Binary) -> Iterator[str]:
    """No immediate is added to a buffer offset that may be negative: AMD's hardware need not take the sum."""
    if binary.counts.get("negative offset"):
        yield f"{binary.counts['negative offset']} buffer instructions"


def waits(binary: Binary) -> Iterator[str]:
    """Inline assembly names no result of a matrix instruction: AMD's compiler puts no wait states between."""
    if binary.counts.get("assembly behind matrix"):
        yield f"{binary.counts['assembly behind matrix']} instructions"


def matrix(binary: Binary) -> Iterator[str]:
    """Kernels that normalise have no matrix instruction: NVIDIA's truncate what they add up."""
    if has(binary, "normalises") and binary.counts.get("matrix"):
        yield f"{binary.counts['matrix']} matrix instructions"


def spills(binary: Binary) -> Iterator[str]:
    """A default config keeps everything in registers, except those in SPILL_BYTES."""
    # a measured config was chosen although it spills; machine_versions tests the other stored ones
    if not binary.job.choice.stored:
        yield from unallowed_spills(binary)


def unallowed_spills(binary: Binary) -> Iterator[str]:
    """The bytes that a program spills beyond SPILL_BYTES."""
    words = {DEVICES[binary.device].arch, binary.job.choice.kernel, *str(binary.job.call).split()}
    allowed = max((v for key, v in SPILL_BYTES.items() if words >= set(" ".join(key).split())), default=0)
    local = binary.counts.get("local", 0)
    if binary.spill_bytes > allowed or (local and not allowed):
        yield f"{local} local accesses, {binary.spill_bytes} bytes a thread, at most {allowed}"


def launch(binary: Binary) -> Iterator[str]:
    """A block fits its device, and a compute unit holds four warps or more."""
    yield from (p for p in binary.problems if not p.startswith("spills"))
    if binary.occupancy < 4:
        yield f"{binary.occupancy} warps on a compute unit"


def vectors(binary: Binary) -> Iterator[str]:
    """Rows of 16 bytes and more of a matrix move 128 bits at a time; threads with whole ones move no less."""
    if not has(binary, "normalises"):
        return
    call, packed = binary.job.call, owns_whole_matrices(binary.job)
    size = getattr(torch, call.dtype).itemsize
    whole = call.m * size % 16 == 0 and call.n & (call.n - 1) == 0 and call.m & (call.m - 1) == 0
    if not (packed or whole):
        return
    for kind in ("load", "store"):
        widths = {access for access in binary.accesses if access.startswith(kind)}
        wide = f"{kind} 128"
        # gates, scales and bases beside the matrices are smaller
        alone = packed and not has(binary, "gates")
        if wide not in widths or (alone and widths != {wide}):
            yield ", ".join(sorted(widths)) or f"no {kind}"


RULES: tuple[Rule, ...] = (
    reciprocal, functions, subnormals, rounding, precision, conversion, fusion, order, offsets,
    waits, matrix, spills, launch, vectors,
)  # fmt: skip


def broken(binary: Binary) -> list[str]:
    """The rules that a program breaks, each with what breaks it."""
    if not binary.compiled:
        return list(binary.problems)
    return [f"{rule.__doc__} {what}" for rule in RULES for what in rule(binary)]
