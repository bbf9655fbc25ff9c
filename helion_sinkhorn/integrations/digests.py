"""Digests of the code of functions of other packages."""

from __future__ import annotations

import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable
from typing import Any


def digest(function: Callable[..., Any]) -> str:
    """A hash of a function's source without comments, strings and blanks."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return "no source"
    words: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        word = token.string.strip() or tokenize.tok_name[token.type]
        is_empty_line = word == "NEWLINE" and words[-1] in ("NEWLINE", "INDENT")
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.STRING) and not is_empty_line:
            words.append(word)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
