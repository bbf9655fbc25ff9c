"""Triton's AMD assembler text as a Program: the very text from which it makes the code object."""

from __future__ import annotations

import re
from dataclasses import dataclass

from helion_sinkhorn.lab.machine.mnemonics import ENCODING

LABEL = re.compile(r"(\.L\w+|\w+):")
MODES = {
    "float_round_mode_32": 0, "float_round_mode_16_64": 0,
    "float_denorm_mode_32": 3, "float_denorm_mode_16_64": 3, "dx10_clamp": 1, "ieee_mode": 1,
}  # fmt: skip
"""The fields of a descriptor that this arithmetic assumes."""


@dataclass(frozen=True)
class Instruction:
    """One line of code."""

    op: str
    """Without its encoding."""
    operands: tuple[str, ...]
    modifiers: dict[str, str]
    """`offset:16` by name; a bare word has the value ""."""
    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True)
class Argument:
    """One entry of the kernel's argument segment."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class Program:
    """A kernel."""

    name: str
    arch: str
    code: tuple[Instruction, ...]
    labels: dict[str, int]
    """Label -> index of the instruction after it."""
    descriptor: dict[str, int]
    """`.amdhsa_` directives."""
    arguments: tuple[Argument, ...]
    entry: int
    """Index of the first instruction that runs."""


def pieces(text: str, separator: str = ",") -> list[str]:
    """Parts of a text, but not inside brackets."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == separator and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [part for part in (*parts, text[begin:].strip()) if part]


def instruction(line: str, number: int) -> Instruction:
    """A line without its comment."""
    mnemonic, _, rest = line.strip().partition(" ")
    encoding = ENCODING.search(mnemonic)
    op = mnemonic[: encoding.start()] if encoding else mnemonic
    if op == "s_waitcnt":
        words = re.findall(r"\w+\(\d+\)", rest) or [rest.strip()]
        return Instruction(op, tuple(words), {}, number, line.strip())
    operands, modifiers = pieces(rest), {}
    if operands:
        operands[-1], *words = pieces(operands[-1], " ")
        for word in words:
            name, _, value = word.partition(":")
            modifiers[name] = value
    if encoding:
        modifiers["encoding"] = encoding[1]
    return Instruction(op, tuple(operands), modifiers, number, line.strip())


def arguments_of(metadata: str) -> tuple[Argument, ...]:
    """The `.args` list of the metadata."""
    if ".args:" not in metadata:
        return ()
    listed = metadata.partition(".args:")[2].partition(".group_segment_fixed_size")[0]
    return tuple(
        Argument(*(int(re.search(rf"\.{key}:\s+(\d+)", item)[1]) for key in ("offset", "size")),
                 re.search(r"\.value_kind:\s+(\w+)", item)[1])
        for item in listed.split("\n      - ")[1:]
    )  # fmt: skip


def parse(listing: str) -> Program:
    """The one kernel of a listing.

    Raises:
        ValueError: it sets a mode that the arithmetic here has not, or its entry is not where preloading
        needs it.
    """
    name = re.search(r"\.globl\s+(\w+)", listing)[1]
    arch = re.search(r'\.amdgcn_target "amdgcn?\S*?(gfx\w+)', listing) or re.search(r"-(gfx\w+)\"", listing)
    descriptor = {k: int(v, 0) for k, v in re.findall(r"\.amdhsa_(\w+)\s+(\S+)", listing) if v[0].isdigit()}
    wrong = [f"{k} {descriptor[k]}" for k, v in MODES.items() if descriptor.get(k, v) != v]
    if wrong:
        raise ValueError(f"{name} sets {', '.join(wrong)}; the interpreter computes with {MODES}")
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for number, line in enumerate(listing.splitlines(), 1):
        if line.startswith("\t.section") and labels:
            break
        line = line.partition(";")[0].rstrip()
        if label := LABEL.match(line):
            labels[label[1]] = len(code)
        elif line.startswith("\t") and line[1:2].isalpha():
            code.append(instruction(line, number))
    entry = labels[name]
    if descriptor.get("user_sgpr_kernarg_preload_length"):
        first = next(at for at in range(entry, len(code)) if code[at].op == "s_branch")
        # the text before is for firmware that cannot preload, and ends where hardware that can enters
        entry = labels[code[first].operands[0]]
        if entry != first + 1:
            raise ValueError(f"{name}: {code[first]} skips instructions; what preloads enters elsewhere")
    return Program(name, arch[1], tuple(code), labels, descriptor, arguments_of(listing), entry)
