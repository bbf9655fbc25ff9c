"""AMD's buffer offsets that may be negative."""

from __future__ import annotations

import re

from helion_sinkhorn.lab.machine.mnemonics import gcn_instructions

DIFFERENCE = re.compile(r"v_sub_u32|v_subrev_u32")
CARRIES_SIGN = re.compile(
    r"v_(add3?|sub|subrev|lshl_add|add_lshl)_u32|v_lshlrev_b32|v_mul_lo_u32|v_(mov|cndmask)_b32"
)
"""Instructions whose result may be negative if a source may be."""
COMMUTES = {"v_add_u32", "v_mul_lo_u32", "v_mul_hi_u32", "v_mul_f32", "s_xor_b32", "v_xor_b32"}
DIVIDES = COMMUTES | {
    "s_abs_i32", "s_ashr_i32", "s_sub_i32", "v_cmp_le_u32", "v_cndmask_b32", "v_cvt_f32_u32",
    "v_cvt_u32_f32", "v_rcp_f32", "v_sub_u32",
}  # fmt: skip
"""The instructions of LLVM's division of integers."""


NEGATIVE = {"s_movk_i32": r"-\d+|0x[89a-f][0-9a-f]{3}", "": r"-\d+|0x[89a-f][0-9a-f]{7}"}
"""How a listing has negative constants, by what reads them."""


class Values:
    """What registers hold, as numbers: equal ones where the same instructions made them of equal values."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str | int, ...], int] = {}
        self.origins: list[tuple[str | int, ...]] = []
        self.held: dict[str, int] = {}

    def made(self, op: str, *of: int | str) -> int:
        """What an instruction makes of values; a string is a constant, or a register as launched."""
        of = [self.made(x) if isinstance(x, str) else x for x in of]
        origin = op, *(sorted(of) if op in COMMUTES else of)
        if origin not in self.numbers:
            self.numbers[origin] = len(self.origins)
            self.origins.append(origin)
        return self.numbers[origin]

    def read(self, operand: str) -> int:
        return self.held[operand] if operand in self.held else self.made(operand)

    def write(self, op: str, to: str, sources: list[str]) -> int:
        """Note that an instruction writes its first operand, and what it writes."""
        op = op.replace("_iflag", "")
        if op == "v_subrev_u32":
            op, sources = "v_sub_u32", sources[::-1]
        # any other instruction makes a value of its own
        own = op if op in DIVIDES else f"{op} {len(self.origins)}"
        value = self.made(own, *map(self.read, sources))
        for operand in (to, *(sources[:1] if re.search("_co_|swap", op) else ())):
            if match := re.fullmatch(r"([sv])\[(\d+):(\d+)\]", operand):
                for number in range(int(match[2]), int(match[3]) + 1):
                    self.held[f"{match[1]}{number}"] = self.made(f"part {number}", value)
            else:
                self.held[re.sub("^vcc_(lo|hi)$", "vcc", operand)] = value
        return value

    def is_negative_constant(self, value: int) -> bool:
        op, *of = self.origins[value]
        if of and not op.startswith("s_mov"):
            return False
        literal = self.origins[of[0]][0] if of else op
        return re.fullmatch(NEGATIVE["s_movk_i32" if op.startswith("s_movk") else ""], literal) is not None

    def is_remainder(self, value: int, a: int) -> bool:
        """Whether a value is a less a product with the whole part of a / d, for some d."""
        minus, *of = self.origins[value]
        if minus != "v_sub_u32" or of[0] != a:
            return False
        times, *of = self.origins[of[1]]
        return times == "v_mul_lo_u32" and any({self.quotient(a, d), d} == {*of} for d in of)

    def quotient(self, a: int, d: int) -> int:
        """The whole part of a / d, as LLVM computes it in vector registers (expandDivRem32)."""
        of, by = self.made("s_abs_i32", a), self.made("s_abs_i32", d)
        inverse = self.made("v_rcp_f32", self.made("v_cvt_f32_u32", by))
        inverse = self.made("v_cvt_u32_f32", self.made("v_mul_f32", "0x4f7ffffe", inverse))
        error = self.made("v_mul_lo_u32", self.made("s_sub_i32", "0", by), inverse)
        inverse = self.made("v_add_u32", inverse, self.made("v_mul_hi_u32", inverse, error))
        whole = self.made("v_mul_hi_u32", of, inverse)
        rest = self.made("v_sub_u32", of, self.made("v_mul_lo_u32", whole, by))
        for _ in range(2):
            fits = self.made("v_cmp_le_u32", by, rest)
            whole = self.made("v_cndmask_b32", whole, self.made("v_add_u32", "1", whole), fits)
            rest = self.made("v_cndmask_b32", rest, self.made("v_sub_u32", rest, by), fits)
        sign = self.made("s_ashr_i32", self.made("s_xor_b32", a, d), "31")
        return self.made("v_sub_u32", self.made("v_xor_b32", sign, whole), sign)


def negative_offsets(text: str, group: str) -> int:
    """AMD's buffer instructions that add an immediate to a register offset that may be negative.

    Such an offset is out of range even where the immediate makes the sum positive (LLVM's AMDGPU target,
    splitBufferOffsets).  What a lane has subtracted from may be negative, and so may a multiple of a negative
    constant.  The remainder of a workgroup's number, which a launch gives in the register `group`, is not.
    Follows registers in the order of the text.
    """
    count, signed, values = 0, set(), Values()
    number = values.made(group)
    for op, (to, *sources), _ in gcn_instructions(text):
        if op.startswith("buffer_"):
            modifiers = (sources or [to])[-1]
            offset = to if re.search(r"\blds\b", modifiers) else sources[0]
            count += offset in signed and re.search(r"\boffset:[1-9]", modifiers) is not None
            values.write(op, to, sources)
            continue
        multiple = op == "v_mul_lo_u32" and any(values.is_negative_constant(values.read(s)) for s in sources)
        value = values.write(op, to, sources)
        subtrahend = sources[:1] if op.startswith("v_subrev") else sources[1:]
        difference = DIFFERENCE.fullmatch(op) and any(re.match(r"v\d", s) for s in subtrahend)
        carried = CARRIES_SIGN.fullmatch(op) and not signed.isdisjoint(sources)
        if (difference or multiple or carried) and not values.is_remainder(value, number):
            signed.add(to)
        else:
            signed.discard(to)
    return count
