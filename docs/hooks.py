"""Links of pages to files of the repository outside of docs/, which the site does not hold, as plain text."""

from __future__ import annotations

import re

OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    return OUTSIDE.sub(r"\1", markdown)
