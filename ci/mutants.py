"""Faults planted in real AMD machine code, and what finds each: python -m ci.mutants [--each N]

A mutant is a program of Triton with one changed line. ci/emulator runs it on inputs that show faults: few
iterations, peaked logits, masks, a batch that fills no block.  The command prints which check finds which
kind of fault.  It exits with 1 if no expected check finds a mutant whose kind has no reason to go unnoticed.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


def make_parser(programs=None, cache=None) -> argparse.ArgumentParser:
    """The command line; names and defaults that need torch are passed in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="mi350")
    parser.add_argument("--each", type=int, default=3, help="places of every kind in every program")
    parser.add_argument("--programs", type=int, default=programs, help="how many of PROGRAMS, from the first")
    parser.add_argument("--cache", type=Path, default=cache)
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # the next lines import torch, which takes seconds; --help then has all names
    make_parser().parse_args()

import torch

from ci import emulate
from ci.emulator import launch, text
from ci.emulator.machine import Model, Unknown
from ci.emulator.memory import Finding
from ci.gate import markdown as report
from ci.operators import operator_of
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload

MOST = 400_000
"""Instructions after which a mutant is said not to end."""
STEPS = 1 << 12


def workload(name: str, n: int, m: int, batch: int, **options) -> SinkhornWorkload:
    return SinkhornWorkload(name, n, m, batch, frozenset(), "mutants", **options)


PROGRAMS = (
    (workload("4x4, three iterations, peaked", 4, 4, 70, n_iters=3, logits="randn_8"), "sinkhorn_forward"),
    (
        workload("5x3, two iterations, half precision", 5, 3, 131, n_iters=2, dtype=torch.float16),
        "sinkhorn_forward",
    ),
    (
        workload("8x8, masked, log form", 8, 8, 21, n_iters=2, form="log", logits="masked"),
        "sinkhorn_backward",
    ),
    (workload("16x16, history in memory", 16, 16, 9, n_iters=2), "sinkhorn_backward_history"),
)
"""(workload, kernel whose default config is mutated)."""


@dataclass(frozen=True)
class Kind:
    """One way to change a line of code."""

    name: str
    change: Callable[[str], str | None]
    """The changed line, "" to leave it out, or None if this kind does not apply."""
    finders: frozenset[str]
    lives: str = ""
    """Why a mutant of this kind may change nothing; such mutants are counted, and are no failure."""


def replaced(pattern: str, by: str) -> Callable[[str], str | None]:
    return lambda line: re.sub(pattern, by, line, count=1) if re.search(pattern, line) else None


def left_out(pattern: str) -> Callable[[str], str | None]:
    return lambda line: "" if re.search(pattern, line) else None


def counted_more(line: str) -> str | None:
    match = re.search(r"s_waitcnt .*?(vm|lgkm)cnt\((\d+)\)", line)
    return (
        line.replace(f"{match[1]}cnt({match[2]})", f"{match[1]}cnt({int(match[2]) + 1})") if match else None
    )


def other_literal(line: str) -> str | None:
    """A float32 literal off by 2^-12 of itself."""
    match = re.search(r"\t(?:v|s_mov).*0x([34][0-9a-f]{7})\b", line)
    return line.replace(match[1], f"{int(match[1], 16) + (1 << 11):x}") if match else None


def next_source(line: str) -> str | None:
    """The last vector source is the next register."""
    match = re.match(r"(\tv_(?:add|mul|fma|sub)_f32\S* .*, v)(\d+)(\s*)$", line)
    return f"{match[1]}{int(match[2]) + 1}{match[3]}" if match else None


def flipped(line: str) -> str | None:
    """One entry of op_sel_hi."""
    match = re.search(r"v_pk_.*op_sel_hi:\[(\d)", line)
    return line.replace(f"op_sel_hi:[{match[1]}", f"op_sel_hi:[{1 - int(match[1])}") if match else None


COMPUTED = frozenset({"gate", "address", "hazard", "wait", "race", "state", "unknown", "end", "offset"})
"""A wrong number may also become an address."""
MASKED = "a mask of lanes or of blocks that hold no boundary, or a shift that cancels"
KINDS = (
    Kind("wait left out", left_out(r"\ts_waitcnt"), frozenset({"wait"}),
         "another wait, or no use before the end, makes it superfluous"),
    Kind("one load fewer waited for", counted_more, frozenset({"wait"}),
         "the counter waits for more than is used next"),
    Kind("wait states left out", left_out(r"\ts_nop"), frozenset({"hazard"}),
         "LLVM inserts more than the rule asks"),
    Kind("barrier left out", left_out(r"\ts_barrier"), frozenset({"race", "gate", "wait", "state"}),
         "another barrier follows before the place is used again"),
    Kind("product for sum", replaced(r"v_(pk_)?add_f32", r"v_\1mul_f32"), COMPUTED, MASKED),
    Kind("maximum for fused sum", replaced(r"v_fma_f32", "v_max3_f32"), COMPUTED),
    Kind("minimum for maximum", replaced(r"v_max(3?)_f32", r"v_min\1_f32"), COMPUTED,
         "the softmax shift: any shift gives the same result until numbers overflow"),
    Kind("sign of a packed operand", replaced(r" neg_lo:\[0,1\] neg_hi:\[0,1\]", ""), COMPUTED),
    Kind("reciprocal left out", replaced(r"v_rcp_f32(?:_e32)?", "v_mov_b32"), COMPUTED),
    Kind("exponential left out", replaced(r"v_exp_f32_e32", "v_mov_b32"), COMPUTED),
    Kind("logarithm left out", replaced(r"v_log_f32_e32", "v_mov_b32"), COMPUTED),
    Kind("exponent of a scale", replaced(r"v_ldexp_f32 (v\d+), (v\d+), (v\d+)", r"v_ldexp_f32 \1, \2, 1"),
         COMPUTED, MASKED),
    Kind("literal off by 2^-12", other_literal, COMPUTED,
         "eps and thresholds of scaling matter to no input here"),
    Kind("next register", next_source, COMPUTED, MASKED),
    Kind("half of a packed operand", flipped, COMPUTED, "both halves hold the same number"),
    Kind("lane exchange", replaced(r"quad_perm:\[1,0,3,2\]", "quad_perm:[0,1,2,3]"), COMPUTED, MASKED),
    Kind("lane exchange of a row", replaced(r"row_half_mirror", "quad_perm:[0,1,2,3]"), COMPUTED, MASKED),
    Kind("rotation of a row", replaced(r"row_ror:8", "row_ror:4"), COMPUTED, MASKED),
    Kind("swap of halves", left_out(r"\tv_permlane\d\d_swap"), COMPUTED, MASKED),
    Kind("comparison", replaced(r"v_cmp_gt_(i32|f32)", r"v_cmp_le_\1"), COMPUTED, MASKED),
    Kind("boundary of a mask", replaced(r"v_cmp_gt_i32", "v_cmp_ge_i32"), COMPUTED,
         "blocks that do not hold the boundary"),
    Kind("select", replaced(r"v_cndmask_b32_e32 (v\d+), (\S+), (v\d+), vcc", r"v_mov_b32_e32 \1, \3"),
         COMPUTED, "the condition holds for every input here"),
    Kind("shift of an index", replaced(r"v_lshlrev_b32_e32 (v\d+), 2,", r"v_lshlrev_b32_e32 \1, 3,"),
         COMPUTED),
    Kind("offset of a load or store", replaced(r"(buffer_\w+ .*offen)$", r"\1 offset:4"), COMPUTED),
    Kind("offset in LDS", replaced(r"(ds_(?:read|write)_b(?:32|64|128) [^:]*)$", r"\1 offset:16"),
         COMPUTED, MASKED),
    # a store is also a wait state between the instructions around it
    Kind("store left out", left_out(r"\tbuffer_store"), frozenset({"gate", "state", "hazard"}), MASKED),
    Kind("move left out", left_out(r"\tv_mov_b32_e32 v\d+, v\d+"), COMPUTED,
         "the register holds that value already"),
    Kind("rounding of a result", replaced(r"v_cvt_pk_f16_f32", "v_cvt_pk_bf16_f32"), COMPUTED),
)  # fmt: skip


def mutants(listing: str, each: int) -> Iterator[tuple[Kind, int, str]]:
    """(kind, line, listing) of up to `each` places of every kind, spread over the program's code."""
    lines = listing.splitlines()
    program = text.parse(listing)
    begin = program.code[program.entry].line - 1
    end = max(k for k, line in enumerate(lines) if line.startswith("\ts_endpgm"))
    for kind in KINDS:
        places = [
            k for k in range(begin, end) if kind.change(lines[k].partition(";")[0].rstrip()) is not None
        ]
        for k in sorted({places[len(places) * i // each] for i in range(each)} if places else ()):
            changed = kind.change(lines[k].partition(";")[0].rstrip())
            yield kind, k + 1, "\n".join([*lines[:k], changed, *lines[k + 1 :]])


def finder(session: launch.Session, candidate, inputs, truth, expected: torch.Tensor) -> str:
    """The check that finds a program; "alive" if its result changes unnoticed, "nothing" if it does not
    change.
    """
    try:
        session.model = Model(most=MOST)
        result = candidate.run(*inputs)
        if not truth.judge(result).passes:
            return "gate"
        session.model = dataclasses.replace(emulate.OTHER_STATE, most=MOST)
        if not emulate.same(candidate.run(*inputs), result):
            return "state"
    except Finding as finding:
        return finding.kind
    except (Unknown, ValueError):
        return "unknown"
    return "nothing" if emulate.same(result, expected) else "alive"


def tried(key: str, each: int, programs: int, cache: Path) -> Iterator[dict[str, object]]:
    """The rows of the table, one for each mutant."""
    session = launch.Session(launch.present(key, cache), cache)
    torch.use_deterministic_algorithms(True)
    for row, kernel in PROGRAMS[:programs]:
        operator = operator_of(row)
        inputs = operator.inputs(row, STEPS)
        truth = operator.truths(row, *inputs)
        with launch.emulating(session):
            with launch.as_on_device():
                of_row = operator.candidates(row, *inputs)
            candidate = next(c for c in of_row if c.kernel == kernel and c.source == "the kernel's default")
            listings: list[str] = []
            session.edit = lambda listing, seen=listings: seen.append(listing) or listing
            session.model = Model()
            expected = candidate.run(*inputs)
            for kind, line, changed in mutants(listings[0], each):
                session.edit = lambda listing, one=listings[0], other=changed: (
                    other if listing == one else listing
                )
                session.programs.clear()
                session.written.clear()
                yield {
                    "program": f"{kernel} {row.name}", "kind": kind, "line": line,
                    "text": listings[0].splitlines()[line - 1].strip(),
                    "finder": finder(session, candidate, inputs, truth[candidate.of], expected),
                }  # fmt: skip
            session.edit = str


def wrong(row: dict[str, object]) -> bool:
    """Whether a mutant survives that must not, or an unexpected check found it."""
    kind: Kind = row["kind"]
    return not (row["finder"] in kind.finders or (kind.lives and row["finder"] in ("nothing", "alive")))


def table(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Kinds of fault by finder."""
    finders = list(dict.fromkeys(row["finder"] for row in rows))
    lines = []
    for kind in KINDS:
        counts = collections.Counter(row["finder"] for row in rows if row["kind"] is kind)
        if counts:
            lives = kind.lives if counts["nothing"] + counts["alive"] else ""
            lines.append(
                {
                    "fault": kind.name,
                    **{f: counts[f] or "" for f in sorted(finders)},
                    "why it may live": lives,
                }
            )
    return lines


def main() -> int:
    options = make_parser(len(PROGRAMS), emulate.CACHE).parse_args()
    rows = list(tried(options.device, options.each, options.programs, options.cache.resolve()))
    print(report.table(table(rows)))
    escaped = [row for row in rows if wrong(row)]
    for row in escaped:
        print(
            f"{row['program']}, {row['kind'].name}: {row['finder']}: line {row['line']}: {row['text']}",
            file=sys.stderr,
        )
    alive = sum(row["finder"] in ("nothing", "alive") for row in rows)
    print(
        f"\n{len(rows)} mutants, {len(rows) - alive} found, {len(escaped)} not as expected "
        f"({options.device}, emulated)"
    )
    return bool(escaped)


if __name__ == "__main__":
    sys.exit(main())
