"""Which names of a list a wrong one resembles, as every message about such a name says it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 6
"""Most names of one message."""


def nearest(name: object, names: Iterable[str]) -> list[str]:
    """Names that resemble one, the most alike first, in either case."""
    by_lower = {str(known).lower(): str(known) for known in names}
    return [by_lower[lower] for lower in difflib.get_close_matches(str(name).lower(), by_lower, SHOWN)]


def refused(name: object, names: Iterable[str]) -> str:
    """What a command says of a wrong name: a short list, or the nearest names, or all, one a line."""
    names = list(names)
    ending = suggestion(name, names)
    if len(names) <= 8:
        return f"{name!r} is not known; use one of {', '.join(names)}{ending}"
    if ending:
        return f"{name!r} is not known; use one of {len(names)} names{ending}"
    return "\n  ".join([f"{name!r} is not known; use one of", *names])


def suggestion(name: object, names: Iterable[str]) -> str:
    """The end of a message: the nearest name, or several, one a line; empty where none is near."""
    near = nearest(name, names)
    if len(near) < 2:
        return f"; the nearest is {near[0]}" if near else ""
    return "; the nearest are" + "".join(f"\n  {known}" for known in near)
