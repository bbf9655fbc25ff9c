"""How often one thread runs each instruction of a listing, by following its counters."""

from __future__ import annotations

import operator
import re
import struct

from helion_sinkhorn.lab.machine.mnemonics import SASS, classify

# -------------------------------------------------------------------------- what a thread runs of it

LONGEST_RUN = 1 << 20
"""Instructions after which a thread's path is given up."""
COMPARE = {
    "NE": operator.ne, "LG": operator.ne, "EQ": operator.eq, "LT": operator.lt,
    "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip
State = dict[str, int]
"""The known values of the integer registers and conditions that count loops."""


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
            # data may skip masked code forward, which a thread with all its matrices runs, but may not loop
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
    """Apply one AMD instruction: "next", "jump", "end" or "unknown"."""
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
