"""What machine code says of itself: instructions by class, loops, widths of accesses, arithmetic and modes.

Reads text alone: NVIDIA's PTX, nvdisasm and cuobjdump, AMD's listing.  `helion_sinkhorn.offline` makes them.
"""

from __future__ import annotations

import operator
import re
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

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
    r"(?P<label>\.L\w+):|\s*/\*[0-9a-f]{4,}\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?(?P<op>[A-Z][\w.]*)(?P<rest>.*)"
)
GCN = re.compile(r"(?P<label>\.L\w+):|\t(?P<guard>(?!))?(?P<op>[a-z]\w+)(?P<rest>[^;]*)")


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
        found = grammar.match(line)
        if found is None:
            continue
        if found["label"]:
            labels[found["label"]] = len(ops)
            continue
        target = re.search(r"\.L\w+", found["rest"]) if PATTERNS["branch"].match(found["op"]) else None
        # a branch to itself is the trap behind the end of a kernel
        if target and labels.get(target[0], len(ops)) < len(ops):
            loops.append((labels[target[0]], len(ops)))
        ops.append(found["op"])
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return ops, inner


# -------------------------------------------------------------------------- what a thread runs of it

LONGEST_RUN = 1 << 20
"""Instructions after which a thread's path is given up."""
COMPARE = {
    "NE": operator.ne, "LG": operator.ne, "EQ": operator.eq, "LT": operator.lt,
    "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip
State = dict[str, int]
"""What is known of the integer registers and conditions that count loops."""


def executed(text: str, grammar: re.Pattern[str]) -> dict[str, int]:
    """Instructions by class on the path of a thread whose matrices all exist; empty where data decide it.

    Follows branches by the few scalar instructions that count loops, and forgets a register
    that anything else writes.
    """
    code: list[tuple[str, str, list[str]]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        found = grammar.match(line)
        if found and found["label"]:
            labels[found["label"]] = len(code)
        elif found:
            operands = [o.strip().removesuffix(".reuse") for o in found["rest"].split(";")[0].split(",")]
            code.append((found["op"], found["guard"] or "", operands))
    step = step_sass if grammar is SASS else step_gcn
    state: State = {}
    ops: list[str] = []
    at = 0
    while at < len(code) and len(ops) < LONGEST_RUN:
        op, guard, operands = code[at]
        ops.append(op)
        move = step(state, op, guard, operands)
        if move == "end":
            return classify(ops)
        target = re.search(r"\.L\w+", operands[-1])
        if move == "unknown":
            # data may skip forward what is masked, which a thread with all its matrices runs; not loop
            if not target or labels[target[0]] <= at:
                return {}
            move = "next"
        at = labels[target[0]] if move == "jump" and target else at + 1
    return {}


def known(state: State, operand: str) -> int | None:
    """The value of a register, a literal or a condition, if known."""
    if operand.startswith("!"):
        value = known(state, operand[1:])
        return None if value is None else int(not value)
    if operand in ("RZ", "URZ", "SRZ"):
        return 0
    if operand in ("PT", "UPT"):
        return 1
    if operand == "exec":
        return -1
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", operand):
        value = int(operand, 0)
        return value - (1 << 32) if value >= 1 << 31 else value
    return state.get(operand)


def write(state: State, register: str, value: int | None) -> None:
    """Set a register, and forget those that share its bits."""
    span = re.fullmatch(r"s\[(\d+):(\d+)\]", register)
    if span:
        for k in range(int(span[1]), int(span[2]) + 1):
            state.pop(f"s{k}", None)
    for other in [o for o in state if o.startswith("s[")]:
        low, high = map(int, re.findall(r"\d+", other))
        if register == other or (register[1:].isdigit() and low <= int(register[1:]) <= high):
            del state[other]
    state.pop(register, None)
    if value is not None:
        state[register] = value


def step_sass(state: State, op: str, guard: str, operands: list[str]) -> str:
    """Apply one NVIDIA instruction: "next", "jump", "end" or "unknown"."""
    name, *parts = op.split(".")
    taken = known(state, guard) if guard else 1
    if name == "EXIT":
        return "end" if taken else "next"
    if name == "BRA":
        flags = [taken, *(known(state, o) for o in operands[:-1])]
        return "unknown" if None in flags else "jump" if all(flags) else "next"
    if name in ("CALL", "BRX", "RET", "JMP"):
        return "unknown"
    if taken == 0:
        return "next"
    value = None
    if name in ("MOV", "UMOV") or op.startswith("IMAD.MOV"):
        value = known(state, operands[-1])
    elif name == "HFMA2" and operands[1:3] == ["-RZ", "RZ"]:
        # ptxas moves a literal this way: two halves, the low one last
        value = int.from_bytes(struct.pack("<2e", float(operands[4]), float(operands[3])), "little")
    elif name == "CS2R":
        value = known(state, operands[1])
        write(state, f"R{int(operands[0][1:]) + 1}", value)
    elif name in ("IADD3", "UIADD3", "IADD", "VIADD"):
        terms = [known(state, o) for o in operands[1:] if not re.fullmatch(r"!?U?P[T\d]", o)]
        value = None if None in terms else sum(terms)
    elif name in ("ISETP", "UISETP") and known(state, operands[-1]) == 1 and "AND" in parts:
        left, right = known(state, operands[2]), known(state, operands[3])
        value = None if None in (left, right) else int(COMPARE[parts[0]](left, right))
    write(state, operands[0], value if taken else None)
    return "next"


def step_gcn(state: State, op: str, guard: str, operands: list[str]) -> str:
    """The same for one AMD instruction."""
    if op == "s_endpgm":
        return "end"
    if op == "s_branch":
        return "jump"
    if op in ("s_cbranch_execz", "s_cbranch_execnz"):
        return "next" if op.endswith("execz") else "unknown"
    if op.startswith("s_cbranch_"):
        flag = known(state, op[10:13])
        if flag is None:
            return "unknown"
        return "jump" if bool(flag) == op.endswith(("1", "nz")) else "next"
    if not op.startswith(("s_", "v_")) or op.startswith(("s_wait", "s_nop", "s_load", "s_barrier")):
        return "next"
    values = [known(state, o) for o in operands[1:]]
    sure = bool(values) and None not in values
    if match := re.fullmatch(r"s_cmpk?_(lg|eq|lt|le|gt|ge)_[iu]32", op):
        left, right = known(state, operands[0]), known(state, operands[1])
        write(state, "scc", None if None in (left, right) else int(COMPARE[match[1].upper()](left, right)))
        return "next"
    value = None
    if re.fullmatch(r"s_mov_b(32|64)|s_movk_i32", op):
        value = values[0]
    elif op.startswith("s_cselect"):
        flag = known(state, "scc")
        value = None if flag is None else values[0 if flag else 1]
    elif match := re.fullmatch(r"s_(add|sub|addk|and|or|xor|andn2)_[iub](32|64)", op):
        if match[1] == "addk":
            values = [known(state, operands[0]), *values]
            sure = None not in values
        do = {"sub": operator.sub, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
              "andn2": lambda a, b: a & ~b}.get(match[1], operator.add)  # fmt: skip
        value = do(*values) if sure else None
        logical = match[1] not in ("add", "sub", "addk")
        write(state, "scc", int(value != 0) if logical and value is not None else None)
    elif op.startswith("s_"):
        state.pop("scc", None)
    write(state, operands[0], value)
    return "next"


# ------------------------------------------------------------------------------- what it computes with

FLOAT = re.compile(r"[._:](f16|bf16|f32|f64|tf32)(x2)?(?![0-9a-z])")
"""Of an instruction that has a floating-point type in its name."""
CARRIES = re.compile(
    r"(mov|ld|st|selp|setp?|shfl)\b|v_(cmpx?|pack|accvgpr)_|(global|buffer|flat)_(load|store)_"
)
"""Of one that moves or compares numbers and rounds none."""
PTX = re.compile(r"\s+(?:@!?%p\d+\s+)?(?P<op>[a-z][\w.:]*)\s")
ENCODING = re.compile(r"_(e32|e64|dpp|sdwa)$")


def arithmetic(ops: Iterable[str]) -> dict[str, int]:
    """Floating-point operations by name, PTX or GCN without the encoding, and how many of each."""
    named = (ENCODING.sub("", op) for op in ops)
    return dict(sorted(Counter(op for op in named if FLOAT.search(op) and not CARRIES.match(op)).items()))


def bits(op: str) -> int:
    """How many bits a thread moves with a load or store."""
    if found := re.search(r"\.[US]?(8|16|64|128|256)\b|_b(8|16|32|64|96|128)\b", op):
        return int(found[1] or found[2])
    if found := re.search(r"_dwordx(\d)", op):
        return 32 * int(found[1])
    return 16 if "short" in op else 8 if "byte" in op else 32


def accesses(ops: Sequence[str]) -> dict[str, int]:
    """Global loads and stores by width: "load 128", "store 32"."""
    wide = [
        f"{kind} {bits(op)}"
        for op in ops
        for kind in ("load", "store")
        if PATTERNS[f"global {kind}"].match(op)
    ]
    return dict(sorted(Counter(wide).items()))


STACK_POINTER = re.compile(r"(?<!\[)\bR1\b(?!\S*\])")


def stack_pointer_reads(sass: str) -> int:
    """Instructions that read R1, the stack pointer, for anything but an address or the frame itself."""
    matches = filter(None, map(SASS.match, sass.splitlines()))
    operands = (m["rest"].strip().split(",", 1) for m in matches if m["op"])
    return sum(into != "R1" and any(map(STACK_POINTER.search, read)) for into, *read in operands)


DIFFERENCE = re.compile(r"v_sub_u32|v_subrev_u32")
CARRIES_SIGN = re.compile(
    r"v_(add3?|sub|subrev|lshl_add|add_lshl)_u32|v_lshlrev_b32|v_mul_lo_u32|v_(mov|cndmask)_b32"
)
"""Instructions whose result is negative where a source may be."""


def negative_offsets(text: str) -> int:
    """Buffer instructions of AMD's that add an immediate to a register offset made by subtracting a
    lane's part.

    Such an offset may be negative, and is then out of range even where the immediate makes the sum positive
    (LLVM's AMDGPU target, splitBufferOffsets).  Follows registers in the order of the text.
    """
    found, differences = 0, set()
    for line in text.splitlines():
        match = GCN.match(line)
        if not match or not match["op"]:
            continue
        op = ENCODING.sub("", match["op"])
        to, *sources = (o.strip() for o in match["rest"].split(",")) if match["rest"].strip() else ("",)
        if op.startswith("buffer_"):
            offset = to if re.search(r"\blds\b", match["rest"]) else sources[0]
            found += offset in differences and re.search(r"\boffset:[1-9]", match["rest"]) is not None
            continue
        subtrahend = sources[:1] if op.startswith("v_subrev") else sources[1:]
        made = DIFFERENCE.fullmatch(op) and any(re.match(r"v\d", s) for s in subtrahend)
        carried = CARRIES_SIGN.fullmatch(op) and not differences.isdisjoint(sources)
        if made or carried:
            differences.add(to)
        else:
            differences.discard(to)
    return found


def nvidia_facts(ptx: str, sass: str, usage: str) -> dict[str, Any]:
    """The fields of an offline.Binary that its PTX, nvdisasm and cuobjdump --dump-resource-usage tell."""
    ops, loops = disassembled(sass, SASS)
    use = {k: int(v) for k, v in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    counts = classify(ops)
    operations = arithmetic(found["op"] for line in ptx.splitlines() if (found := PTX.match(line)))
    # what ptxas makes of div.full has no instruction of its own
    divisions = sum(count for op, count in operations.items() if re.match(r"div\.|rcp\.rn", op))
    if divisions:
        counts["division step"] = counts.get("division step", 0) + divisions
    if stray := stack_pointer_reads(sass):
        counts["stack pointer as data"] = stray
    return {
        "registers": use["REG"],
        "spills": counts.get("local", 0),
        "spill_bytes": use["STACK"] + use["LOCAL"],
        "counts": counts,
        "loops": [classify(ops[a : b + 1]) for a, b in loops],
        "executed": executed(sass, SASS),
        "accesses": accesses(ops),
        "operations": operations,
    }


def amd_facts(amdgcn: str) -> dict[str, Any]:
    """The same of the listing that LLVM writes with an AMD binary."""

    def metadata(key: str) -> int:
        return int(re.search(rf"\.{key}:\s+(\d+)", amdgcn)[1])

    code = amdgcn[: amdgcn.index(".section\t.rodata")]
    ops, loops = disassembled(code, GCN)
    operations = arithmetic(ops)
    # gfx942 rounds to bfloat16 in integers: half a unit less one, and the last bit kept
    if re.search(r"\b0x7fff\b", code) and "v_add3_u32" in ops:
        operations["v_add3_u32"] = ops.count("v_add3_u32")
    counts = classify(ops)
    if doubtful := negative_offsets(code):
        counts["negative offset"] = doubtful
    return {
        "registers": metadata("vgpr_count"),
        "spills": metadata("vgpr_spill_count") + metadata("sgpr_spill_count"),
        "spill_bytes": metadata("private_segment_fixed_size"),
        "counts": counts,
        "loops": [classify(ops[a : b + 1]) for a, b in loops],
        "executed": executed(code, GCN),
        "accesses": accesses(ops),
        "operations": operations,
        "modes": {k: int(v) for k, v in re.findall(r"\.amdhsa_(float_\w+|ieee_mode)\s+(\d+)", amdgcn)},
    }
