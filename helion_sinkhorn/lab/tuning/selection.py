"""The workloads that a command is asked for; a part of a name that none has ends it with status 2."""

from __future__ import annotations

from typing import Any

from helion_sinkhorn.arguments import refuse
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.nearest import suggestion


def workloads(command: str, tag: str, part: str) -> list[Any]:
    """The workloads that carry a tag and have `part` in their names, at least one."""
    of_tag = tagged(tag, object)
    found = [w for w in of_tag if part in w.name]
    if not found:
        names = [w.name for w in of_tag]
        near = suggestion(part, names) or f"; names look like {names[0]} and {names[-1]}"
        refuse(
            command,
            f"none of the {len(names)} workloads with the tag {tag!r} has {part!r} in its name, "
            f"and `show` without --only lists all{near}",
        )
    return found
