"""Docstrings as the API reference shows them: formulas in fences, bold titles, links to pages."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from griffe import Extension

TITLED = re.compile(r"^(Args|Numerical policy|Raises|Source|State dict): (.*(?:\n +\S.*)*)", re.M)
SECTION = re.compile(r"^[A-Z]\w+:$", re.M)
INDENTED = re.compile(r"((?:^ {4,}\S.*\n?)+)", re.M)
PAGE = re.compile(r"\bdocs/((?:dev/)?\w+\.md)\b")


def presented(docstring: str) -> str:
    """The Markdown of a docstring.

    Google's style would take a paragraph that begins with "Source: " for a section with a title, and an
    indented line after a sentence belongs to its paragraph in Markdown.
    """
    text = TITLED.sub(lambda m: f"\n**{m[1]}:** " + re.sub(r"\n +", "\n", m[2]) + "\n", docstring)
    section = SECTION.search(text)
    end = section.start() if section else len(text)
    parts = INDENTED.split(text[:end])
    # every other part is an indented one
    parts[::2] = [PAGE.sub(r"[\1](\1)", part) for part in parts[::2]]
    parts[1::2] = [f"\n```text\n{textwrap.dedent(part).rstrip()}\n```\n" for part in parts[1::2]]
    return "".join(parts) + PAGE.sub(r"[\1](\1)", text[end:])


class Docstrings(Extension):
    """Present every docstring that is read."""

    def on_object(self, *, obj: Any, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = presented(obj.docstring.value)
