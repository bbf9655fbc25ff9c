"""Checks a command line before torch is imported: the flags of run.py and of an operator."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

Workload = TypeVar("Workload")
STARTED_BY = "TRITONBENCH_OPS_STARTED_BY"
"""A variable with the id of the process that runs operators in turn, each in a process that ends with it."""
MODES = ("fwd", "bwd", "fwd_bwd", "fwd_no_grad")
TIME_FLAGS = {"--rep": "--iter", "--iter": "--rep"}
"""Milliseconds of a measurement: --iter until September 2025, --rep since."""
OLDEST = "--rtol"
"""A flag of run.py since 14 August 2025, the oldest tritonbench that the operators run in."""


BASELINE, INDUCTOR = "eager", "torch_compile"
"""Backends of every operator."""
GATES = ("g", "g_gamma", "gk", "gv")
FORMS, FIRSTS = ("deepseek", "log"), ("rows", "cols")


def size(text: str) -> int:
    """An int of at least 1, for argparse; `benchmarks`, which has this too, is Helion's in its driver."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; pass an int of at least 1")
    return int(text)


def gates(text: str) -> str:
    """Names of GATES with spaces between, for argparse."""
    if unknown := set(text.split()) - set(GATES):
        raise argparse.ArgumentTypeError(
            f"names {', '.join(sorted(unknown))}; pass some of {' '.join(GATES)}"
        )
    return text


@dataclass(frozen=True)
class Flags:
    """The flags of an operator, which tritonbench hands on."""

    fields: Mapping[str, tuple[str, str]]
    """Flag -> the field of a workload that it replaces, and what it says."""
    on_a_cpu: str
    """Sizes where there is no GPU and none of these flags was given."""
    types: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    """How flags that are no sizes are read."""
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Flags that replace no field -> what argparse takes."""


OF_TOKENS = {"tokens": ("batch", "T"), "streams": ("n", "n"), "hidden": ("c", "C")}
FEW_TOKENS = "--tokens 64 --hidden 1024"
OPERATORS = {
    "dot_compress": Flags(
        {"batch": ("batch", "elements"), "m": ("m", "rows of x and y"), "d": ("d", "columns of x"),
         "k": ("k", "columns of y")},
        "--batch 2", others={"with_z": {"action": "store_true", "help": "add z to the intermediate"}},
    ),
    "hc_mixes": Flags({**OF_TOKENS, "rows": ("m", "M, of fn")}, FEW_TOKENS),
    "hc_post": Flags(OF_TOKENS, FEW_TOKENS),
    "hc_pre": Flags(OF_TOKENS, FEW_TOKENS),
    "hc_site": Flags(OF_TOKENS, FEW_TOKENS),
    "hc_split_sinkhorn": Flags(
        {"tokens": ("batch", "rows of mixes"), "streams": ("n", "n"), "n_iters": ("n_iters", "of Sinkhorn")},
        "--tokens 1024",
    ),
    "recurrent_linear_attention": Flags(
        {"batch": ("sequences", "sequences"), "steps": ("steps", "T"), "heads": ("heads", "H"),
         "dk": ("dk", "columns of q and k"), "dv": ("dv", "columns of v"),
         "gates": ("gates", 'of "g g_gamma gk gv", with spaces between')},
        "--batch 1 --steps 16 --heads 2", {"gates": gates},
    ),
    "sinkhorn": Flags(
        {"n": ("n", "rows and columns"), "n_iters": ("n_iters", "T"), "batch": ("batch", "matrices")},
        "--n 4 --batch 4096",
        others={"form": {"choices": FORMS, "default": FORMS[0], "help": "definition (README); %(default)s"},
                "first": {"choices": FIRSTS, "default": FIRSTS[0], "help": "normalised first; %(default)s"}},
    ),
    "sinkhorn_balance": Flags(
        {"rows": ("batch", "rows of a matrix"), "columns": ("n", "columns")}, "--rows 256 --columns 128"
    ),
}  # fmt: skip
NAMES = tuple(OPERATORS)


@functools.cache
def parser(operator: str) -> argparse.ArgumentParser:
    """The parser of an operator's flags."""
    made, flags = argparse.ArgumentParser(f"--op {operator}", allow_abbrev=False), OPERATORS[operator]
    of_fields = {
        name: {"type": flags.types.get(name, size), "help": f"{said}; default: as in the bench workloads"}
        for name, (_, said) in flags.fields.items()
    }
    for name, options in {**of_fields, **flags.others}.items():
        made.add_argument(f"--{name.replace('_', '-')}", **options)
    return made


def bench(
    operator: str, kind: type[Workload], options: argparse.Namespace, dtype: torch.dtype, **others: Any
) -> list[Workload]:
    """The bench workloads of an operator in this dtype as the options change them, each once.

    Args:
        kind: the type of its workloads.
        others: fields that are the same for all.
    """
    from helion_sinkhorn.lab.workloads import tagged

    fields = {flag: name for flag, (name, _) in OPERATORS[operator].fields.items()}
    named = {name: v for flag, name in fields.items() if (v := getattr(options, flag)) is not None}
    rows = [dataclasses.replace(row, **named, **others, dtype=dtype) for row in tagged("bench", kind)]
    return list({tuple(getattr(row, name) for name in fields.values()): row for row in rows}.values())


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
    names = []
    for name in filter(None, map(str.strip, given.op.split(","))):
        ours = name.lower() in NAMES
        names.append(name.lower() if ours else name)
        near = difflib.get_close_matches(name.lower(), [*NAMES, *theirs], 1)
        if not ours and near and name.lower() not in map(str.lower, theirs):
            whole.error(
                f"argument --op: {name} is no operator of tritonbench or of this package; is it {near[0]}?"
            )
    known = {"--help", *TIME_FLAGS, *flags_of(folder)}
    for name in set(names) & set(NAMES):
        own = parser(name)
        _, left = own.parse_known_args([word for word in rest if word not in ("-h", "--help")])
        refuse_unknown(own, left, known)
    return names


def refuse_unknown(own: argparse.ArgumentParser, words: Iterable[str], known: set[str]) -> None:
    """End the process at an unknown flag; a word with a space in it is a flag's value."""
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--") and " " not in flag and flag not in known:
            near = difflib.get_close_matches(flag, [*known, *own._option_string_actions], 1)
            is_it = f"; is it {near[0]}?" if near else ""
            own.error(f"{flag} is a flag neither of the operator nor of this tritonbench's run.py{is_it}")
