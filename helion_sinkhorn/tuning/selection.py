"""Which workloads and kernels a command is about; a name that nothing has ends it with status 2."""

from __future__ import annotations

import difflib
import sys
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
        near = difflib.get_close_matches(part, names, SHOWN, cutoff=0.0)
        refuse(
            command,
            f"none of the {len(names)} workloads with the tag {tag!r} has {part!r} in its name; "
            f"the nearest are {', '.join(near)}, and `show` without --only lists all",
        )
    return found


def check_kernel(command: str, kernel: str | None, known: list[str]) -> None:
    """End the command unless the kernel is known, or none was named."""
    if kernel is not None and kernel not in known:
        refuse(command, f"no kernel is called {kernel!r}; --kernel is one of {', '.join(known)}")


def refuse(command: str, why: str) -> NoReturn:
    """End the command as argparse does for a wrong argument."""
    print(f"{command}: {why}.", file=sys.stderr)
    raise SystemExit(2)
