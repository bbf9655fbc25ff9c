"""What a command is asked for; a name that nothing has, or a value out of range, ends it with status 2."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from helion_sinkhorn.workloads import WORKLOADS, tagged

SHOWN = 6
"""Names that a message gives of a long list."""


def workloads(command: str, tag: str, part: str) -> list[Any]:
    """The workloads that carry a tag and have `part` in their names, at least one."""
    of_tag = tagged(tag, object)
    if not of_tag:
        tags = sorted({known for w in WORKLOADS.values() for known in w.tags})
        refuse(command, f"no workload has the tag {tag!r}; --tags is one of {', '.join(tags)}")
    found = [w for w in of_tag if part in w.name]
    if not found:
        names = [w.name for w in of_tag]
        refuse(
            command,
            f"none of the {len(names)} workloads with the tag {tag!r} has {part!r} in its name; "
            f"{like(part, names)}, and `show` without --only lists all",
        )
    return found


def like(part: str, names: list[str]) -> str:
    """The names that resemble a part of one; where none does, what names look like."""
    near = difflib.get_close_matches(part, names, SHOWN)
    if near:
        return f"the nearest are {', '.join(near)}"
    return f"names look like {names[0]} and {names[-1]}"


def kernel(text: str) -> str:
    """The name of a kernel, for argparse: a wrong one is said before what else is missing."""
    # importing it imports Triton
    from helion_sinkhorn.operators import KERNELS

    if text not in KERNELS:
        raise argparse.ArgumentTypeError(f"no kernel is called {text!r}; use one of {', '.join(KERNELS)}")
    return text


def check_workers(command: str, workers: int | None) -> None:
    """End the command unless --workers has a count, or was left out."""
    if workers is not None and workers < 1:
        refuse(command, f"--workers is {workers}; pass an int of at least 1")


def check_seconds(command: str, option: str, value: float) -> None:
    """End the command unless the option has a time to spend."""
    if not value > 0:
        refuse(command, f"{option} is {value:g}; pass seconds > 0")


def check_folder(command: str, folder: Path) -> None:
    """End the command unless --out names a folder of tuning files."""
    if not folder.is_dir():
        refuse(command, f"--out is {folder}, which is no folder; name one laid out like tuning_cache/")


def check_writable(command: str, folder: Path) -> None:
    """End the command unless files may be made in the folder, or the folder where it will be."""
    place = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        refuse(
            command,
            f"{place} may not be written by this user; name a folder of your own with --out, and "
            "HELION_SINKHORN_TUNING_DIR for the calls that are to use it",
        )


def ranks(command: str) -> tuple[int, int, int, int]:
    """RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE as torchrun sets them: 0 of 1 where it did not."""
    usual = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    texts = {name: os.environ.get(name, default) for name, default in usual.items()}
    rank, world, local_rank, local_world = (int(t) if t.isdecimal() else -1 for t in texts.values())
    if not (0 <= rank < world and local_rank >= 0 and local_world >= 1):
        said = ", ".join(f"{name}={text}" for name, text in texts.items())
        refuse(command, f"{said} name no rank; unset them, or start the command with torchrun")
    return rank, world, local_rank, local_world


def refuse(command: str, why: str) -> NoReturn:
    """End the command as argparse does for a wrong argument."""
    print(f"{command}: {why}.", file=sys.stderr)
    raise SystemExit(2)
