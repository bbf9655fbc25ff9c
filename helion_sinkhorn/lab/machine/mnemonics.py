"""Instructions of SASS and GCN: their classes, and a listing taken apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

# SASS and GCN mnemonics; an instruction may belong to several classes
CLASSES = {
    "fma": r"FFMA|v_(pk_)?fma(c|mk|ak)?_f32",
    "mul": r"FMUL|v_(pk_)?mul_f32",
    "add": r"FADD|v_(pk_)?(add|sub|subrev)_f32",
    "two-wide fp32": r"F(FMA|MUL|ADD)2|v_pk_(fma|mul|add)_f32",
    "reciprocal": r"MUFU\.RCP|v_rcp_",
    "exp": r"MUFU\.EX2|v_exp_",
    "log": r"MUFU\.LG2|v_log_",
    "division step": r"FCHK|v_div_",
    "move": r"U?MOV|v_mov_b|v_accvgpr_|s_mov_b",
    "global load": r"LDG(?!DEPBAR)|LD\.E|UTMALDG|(global|buffer|flat)_load",
    "global store": r"STG|ST\.E|UTMASTG|(global|buffer|flat)_store",
    "global load 128": r"LDG.*\.(128|256)|(global|buffer|flat)_load_(dwordx4|b128)",
    "global store 128": r"STG.*\.(128|256)|(global|buffer|flat)_store_(dwordx4|b128)",
    "local": r"(LDL|STL)\b|scratch_",
    "shared": r"(LDS|STS|LDSM|STSM|LDGSTS)\b|ds_(?!bpermute|permute|swizzle)",
    "cross-lane": r"SHFL|REDUX|ds_(bpermute|permute|swizzle)|.*_dpp|v_permlane",
    "barrier": r"BAR\b|s_barrier",
    # not ATOMS: tensor memory of sm_100 is handed out by a bit mask in shared memory
    "atomic": r"ATOM(?!S)|RED\b|\w+_atomic_",
    "matrix": r"HMMA|\w*GMMA|UTC\w*MMA|v_s?mfma",
    "branch": r"BRA\b|CALL|s_c?branch",
}
PATTERNS = {name: re.compile(pattern) for name, pattern in CLASSES.items()}

SASS = re.compile(
    r"(?P<label>\.L\w+):|\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<op>[A-Z][\w.]*)(?P<rest>.*)"
)
GCN = re.compile(r"(?P<label>\.L\w+):|\t(?P<op>[a-z]\w+)(?P<rest>[^;]*)")

ENCODING = re.compile(r"_(e32|e64|dpp|sdwa)$")
"""Matches how a GCN instruction is encoded, at the end of its name."""


def classify(ops: Sequence[str]) -> dict[str, int]:
    """Instructions by class, classes without one left out."""
    counts = Counter(name for op in ops for name, pattern in PATTERNS.items() if pattern.match(op))
    return {"instructions": len(ops), **counts}


def disassembled(text: str, grammar: re.Pattern[str]) -> tuple[list[str], list[tuple[int, int]]]:
    """Mnemonics in program order, and the innermost loops as (first, last) instruction."""
    ops: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in text.splitlines():
        match = grammar.match(line)
        if match is None:
            continue
        if match["label"]:
            labels[match["label"]] = len(ops)
            continue
        target = re.search(r"\.L\w+", match["rest"]) if PATTERNS["branch"].match(match["op"]) else None
        # a branch to itself is the trap after the end of a kernel
        if target and labels.get(target[0], len(ops)) < len(ops):
            loops.append((labels[target[0]], len(ops)))
        ops.append(match["op"])
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return ops, inner


def gcn_instructions(text: str) -> Iterator[tuple[str, list[str], bool]]:
    """Each instruction of AMD's listing: the operation without its encoding, its operands (an empty one if
    there are none), and whether it is inline assembly."""
    assembly = False
    for line in text.splitlines():
        if ";;#ASM" in line:
            assembly = "START" in line
        elif (match := GCN.match(line)) and match["op"]:
            operands = [operand.strip() for operand in match["rest"].split(",")]
            yield ENCODING.sub("", match["op"]), operands, assembly
