"""Properties of machine code: instructions by class, loops, widths of accesses, arithmetic and modes.

It reads only text: NVIDIA's PTX, nvdisasm and cuobjdump, AMD's listing.  `tuning.child` makes them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from helion_sinkhorn.lab.machine import mnemonics
from helion_sinkhorn.lab.machine.buffer_offsets import negative_offsets

# ------------------------------------------------------------------------------- what it computes with

FLOAT = re.compile(r"[._:](f16|bf16|f32|f64|tf32)(x2)?(?![0-9a-z])")
"""Matches an instruction that has a floating-point type in its name."""
CARRIES = re.compile(
    r"(mov|ld|st|selp|setp?|shfl)\b|v_(cmpx?|pack|accvgpr)_|(global|buffer|flat)_(load|store)_"
)
"""Matches an instruction that moves or compares numbers and rounds none."""
PTX = re.compile(r"\s+(?:@!?%p\d+\s+)?(?P<op>[a-z][\w.:]*)\s")


def arithmetic(ops: Iterable[str]) -> dict[str, int]:
    """Floating-point operations by name, PTX or GCN without the encoding, and how many of each."""
    named = (mnemonics.ENCODING.sub("", op) for op in ops)
    return dict(sorted(Counter(op for op in named if FLOAT.search(op) and not CARRIES.match(op)).items()))


def bits(op: str) -> int:
    """How many bits a thread moves with a load or store."""
    if match := re.search(r"\.[US]?(8|16|64|128|256)\b|_b(8|16|32|64|96|128)\b", op):
        return int(match[1] or match[2])
    if match := re.search(r"_dwordx(\d)", op):
        return 32 * int(match[1])
    return 16 if "short" in op else 8 if "byte" in op else 32


def accesses(ops: Sequence[str]) -> dict[str, int]:
    """Global loads and stores by width: "load 128", "store 32"."""
    wide = [
        f"{kind} {bits(op)}"
        for op in ops
        for kind in ("load", "store")
        if mnemonics.PATTERNS[f"global {kind}"].match(op)
    ]
    return dict(sorted(Counter(wide).items()))


STACK_POINTER = re.compile(r"(?<!\[)\bR1\b(?!\S*\])")


def stack_pointer_reads(sass: str) -> int:
    """Instructions that read R1, the stack pointer, for anything but an address or the frame itself."""
    matches = filter(None, map(mnemonics.SASS.match, sass.splitlines()))
    operands = (m["rest"].strip().split(",", 1) for m in matches if m["op"])
    return sum(into != "R1" and any(map(STACK_POINTER.search, read)) for into, *read in operands)


ASSIGNMENT = re.compile(r"\s+(?:@!?%p\d+\s+)?(?P<op>[a-z][\w.]*)\s+(?P<to>%\w+),\s*(?P<sources>[^;]*);")


def contested_fusions(ptx: str) -> int:
    """Fused multiply-adds of PTX whose addend is a product that LLVM could have fused instead.

    LLVM fuses one of two products that are added, and not the same one in every place of a block.  `mul.rn`
    is never fused, and neither is inline assembly.
    """
    made: dict[str, str] = {}
    count = 0
    compiled = re.sub(r"// begin inline asm.*?// end inline asm", "", ptx, flags=re.DOTALL)
    for match in filter(None, map(ASSIGNMENT.match, compiled.splitlines())):
        addend = match["sources"].split(",")[-1].strip()
        count += match["op"] == "fma.rn.f32" and made.get(addend) == "mul.f32"
        made[match["to"]] = match["op"]
    return count


MATRIX_STATES = 19
"""More wait states than any vector instruction needs after a matrix instruction (CDNA3 and CDNA4)."""


def registers_of(operand: str) -> set[int]:
    """The vector registers that an AMD operand names: v7, v[2:17]."""
    match = re.match(r"[-|]*v(?:\[(\d+):(\d+)\]|(\d+))", operand)
    if match is None:
        return set()
    first, last = (match[1], match[2]) if match[1] else (match[3], match[3])
    return set(range(int(first), int(last) + 1))


def assembly_behind_matrix(text: str) -> int:
    """Instructions of inline assembly that read or overwrite a matrix instruction's result too early.

    LLVM inserts the wait states that AMD's matrix instructions need, and does not look into inline assembly.
    Follows registers in the order of the text.
    """
    count, clock = 0, 0
    written: dict[int, int] = {}
    for op, (to, *sources), assembly in mnemonics.gcn_instructions(text):
        clock += 1 + (int(to, 0) if op == "s_nop" else 0)
        named = set().union(*map(registers_of, (to, *sources)))
        count += assembly and any(clock - written[r] <= MATRIX_STATES for r in named & written.keys())
        for register in registers_of(to):
            written.pop(register, None)
            if op.startswith("v_mfma"):
                written[register] = clock
    return count


def nvidia_facts(ptx: str, sass: str, usage: str) -> dict[str, Any]:
    """The fields of a Binary from its PTX, nvdisasm and cuobjdump --dump-resource-usage."""
    ops, loops = mnemonics.disassembled(sass, mnemonics.SASS)
    use = {k: int(v) for k, v in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    counts = mnemonics.classify(ops)
    operations = arithmetic(match["op"] for line in ptx.splitlines() if (match := PTX.match(line)))
    # what ptxas makes of div.full has no instruction of its own
    divisions = sum(count for op, count in operations.items() if re.match(r"div\.|rcp\.rn", op))
    if divisions:
        counts["division step"] = counts.get("division step", 0) + divisions
    if stray := stack_pointer_reads(sass):
        counts["stack pointer as data"] = stray
    if contested := contested_fusions(ptx):
        counts["contested fusion"] = contested
    return {
        "registers": use["REG"],
        "spills": counts.get("local", 0),
        "spill_bytes": use["STACK"] + use["LOCAL"],
        "counts": counts,
        "loops": [mnemonics.classify(ops[a : b + 1]) for a, b in loops],
        "accesses": accesses(ops),
        "operations": operations,
    }


def amd_facts(amdgcn: str) -> dict[str, Any]:
    """The fields of a Binary from the listing that LLVM writes with an AMD binary."""

    def metadata(key: str) -> int:
        return int(re.search(rf"\.{key}:\s+(\d+)", amdgcn)[1])

    code = amdgcn[: amdgcn.index(".section\t.rodata")]
    ops, loops = mnemonics.disassembled(code, mnemonics.GCN)
    operations = arithmetic(ops)
    # gfx942 rounds to bfloat16 in integers: half a unit less one, and the last bit kept
    if re.search(r"\b0x7fff\b", code) and "v_add3_u32" in ops:
        operations["v_add3_u32"] = ops.count("v_add3_u32")
    counts = mnemonics.classify(ops)
    # the launch puts the number of a workgroup behind what the program asks for
    asked = re.search(r"\.amdhsa_user_sgpr_count (\d+)", amdgcn)
    if doubtful := negative_offsets(code, f"s{asked[1]}" if asked else "no register"):
        counts["negative offset"] = doubtful
    if early := assembly_behind_matrix(code):
        counts["assembly behind matrix"] = early
    return {
        "registers": metadata("vgpr_count"),
        "spills": metadata("vgpr_spill_count") + metadata("sgpr_spill_count"),
        "spill_bytes": metadata("private_segment_fixed_size"),
        "counts": counts,
        "loops": [mnemonics.classify(ops[a : b + 1]) for a, b in loops],
        "accesses": accesses(ops),
        "operations": operations,
        "modes": {k: int(v) for k, v in re.findall(r"\.amdhsa_(float_\w+|ieee_mode)\s+(\d+)", amdgcn)},
    }
