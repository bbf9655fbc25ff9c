"""Checks a command line before torch is imported: the flags of run.py and of an operator."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.command import size

if TYPE_CHECKING:
    import torch

Workload = TypeVar("Workload")
NAMES = (
    "dot_compress", "hc_mixes", "hc_post", "hc_pre", "hc_site", "hc_split_sinkhorn",
    "recurrent_linear_attention", "sinkhorn", "sinkhorn_balance",
)  # fmt: skip
STARTED_BY = "TRITONBENCH_OPS_STARTED_BY"
"""A variable with the id of the process that runs operators in turn, each in a process that ends with it."""
MODES = ("fwd", "bwd", "fwd_bwd", "fwd_no_grad")
TIME_FLAGS = {"--rep": "--iter", "--iter": "--rep"}
"""Milliseconds of a measurement: --iter until September 2025, --rep since."""
OLDEST = "--rtol"
"""A flag of run.py since 14 August 2025, the oldest tritonbench that the operators run in."""


def parser(operator: str, sizes: Mapping[str, str]) -> argparse.ArgumentParser:
    """A parser with a flag for each size; sizes: name -> what it counts."""
    made = argparse.ArgumentParser(f"--op {operator}", allow_abbrev=False)
    for name, what in sizes.items():
        made.add_argument(
            f"--{name.replace('_', '-')}", type=size, help=f"{what}; default: as in the bench workloads"
        )
    return made


def bench(
    kind: type[Workload],
    fields: Mapping[str, str],
    options: argparse.Namespace,
    dtype: torch.dtype,
    **others: Any,
) -> list[Workload]:
    """The bench workloads of an operator in this dtype, with the sizes that were given, each once.

    Args:
        kind: the type of its workloads.
        fields: flag -> the field of a workload that it replaces.
        others: fields that are the same for all.
    """
    from helion_sinkhorn.lab.workloads import tagged

    named = {field: v for flag, field in fields.items() if (v := getattr(options, flag)) is not None}
    rows = [dataclasses.replace(row, **named, **others, dtype=dtype) for row in tagged("bench", kind)]
    return list({tuple(getattr(row, field) for field in fields.values()): row for row in rows}.values())


def arguments_of(name: str) -> ModuleType:
    """The module with the flags of an operator."""
    return importlib.import_module(f"tritonbench_ops.{name}.arguments")


def checkout() -> Path:
    """The folder `tritonbench` that Python would import; the process ends where it is missing or old."""
    spec = importlib.util.find_spec("tritonbench")
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        if (folder / "utils" / "parser.py").is_file():
            if OLDEST not in flags_of(folder):
                sys.exit(
                    f"{folder.parent} is tritonbench of before 14 August 2025 (its run.py has no {OLDEST}), "
                    "and the operators run in newer ones; update it"
                )
            return folder
    sys.exit(
        "there is no tritonbench: put a checkout of https://github.com/meta-pytorch/tritonbench on PYTHONPATH"
    )


def flags_of(folder: Path) -> set[str]:
    """The flags of run.py, from the source of its parser, whose import takes torch."""
    return {*re.findall(r'"(--[a-z][\w-]*)"', (folder / "utils" / "parser.py").read_text(encoding="utf-8"))}


def checked(arguments: Sequence[str]) -> list[str]:
    """The names in --op; names of this package are in lower case.

    Raises:
        SystemExit: 2 where a name, a mode or a flag is neither tritonbench's nor of one of these operators,
            or a flag of theirs has no such value.
    """
    folder = checkout()
    whole = argparse.ArgumentParser("python -m tritonbench_ops", allow_abbrev=False, add_help=False)
    whole.add_argument("--op", default="")
    whole.add_argument("--mode", choices=MODES)
    given, rest = whole.parse_known_args(arguments)
    theirs = [path.parent.name for path in folder.glob("operators/**/__init__.py")]
    found = []
    for name in filter(None, map(str.strip, given.op.split(","))):
        ours = name.lower() in NAMES
        found.append(name.lower() if ours else name)
        near = difflib.get_close_matches(name.lower(), [*NAMES, *theirs], 1)
        if not ours and near and name.lower() not in map(str.lower, theirs):
            whole.error(
                f"argument --op: {name} is no operator of tritonbench or of this package; is it {near[0]}?"
            )
    known = {"--help", *TIME_FLAGS, *flags_of(folder)}
    for name in set(found) & set(NAMES):
        own = arguments_of(name).PARSER
        _, left = own.parse_known_args([word for word in rest if word not in ("-h", "--help")])
        refuse_unknown(own, left, known)
    return found


def refuse_unknown(own: argparse.ArgumentParser, words: Iterable[str], known: set[str]) -> None:
    """End the process at an unknown flag; a word with a space in it is a flag's value."""
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--") and " " not in flag and flag not in known:
            near = difflib.get_close_matches(flag, [*known, *own._option_string_actions], 1)
            is_it = f"; is it {near[0]}?" if near else ""
            own.error(f"{flag} is a flag neither of the operator nor of this tritonbench's run.py{is_it}")
