"""The workloads that a command line names; a part of a name that none has ends it with status 2."""

from __future__ import annotations

from typing import Any

from helion_sinkhorn.arguments import refuse
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.nearest import suggestion


def workloads(command: str, tag: str, only: str) -> list[Any]:
    """The workloads that carry a tag and have one of the parts, with commas between them, in their names."""
    of_tag, parts = tagged(tag, object), only.split(",")
    names = [w.name for w in of_tag]
    for part in (p for p in parts if not any(p in name for name in names)):
        near = suggestion(part, names) or f"; names look like {names[0]} and {names[-1]}"
        refuse(
            command,
            f"none of the {len(names)} workloads with the tag {tag!r} has {part!r} in its name, "
            f"and `show` without --only lists all{near}",
        )
    return [w for w in of_tag if any(part in w.name for part in parts)]
