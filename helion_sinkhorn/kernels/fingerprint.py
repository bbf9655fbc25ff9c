"""A hash of a kernel's source: entries tuned for another source are stale."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from pathlib import Path

from helion_sinkhorn.kernels import KERNELS


def without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            body[:] = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return tree


def structure(value: object) -> object:
    """A syntax tree as nested tuples, alike under every Python: fields that newer ones added are empty."""
    if isinstance(value, list):
        return tuple(map(structure, value))
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = tuple(
        (name, structure(field)) for name, field in ast.iter_fields(value) if field not in (None, [])
    )
    return type(value).__name__, fields


@functools.cache
def fingerprint(kernel: str, source: str | None = None) -> str:
    """Sixteen hex digits that change with the code a kernel runs, not with its comments or layout.

    Args:
        kernel: a KERNELS name; what its body reaches in its own module counts.
        source: text to take for that module.
    """
    file = Path(inspect.getsourcefile(KERNELS[kernel].body))
    source = file.read_text() if source is None else source
    definitions = {}
    for node in without_docstrings(ast.parse(source)).body:
        for target in getattr(node, "targets", [node]):
            definitions[getattr(target, "id", getattr(target, "name", ""))] = node
    reached, todo = {}, [kernel]
    while todo:
        name = todo.pop()
        if name in definitions and name not in reached:
            reached[name] = repr(structure(definitions[name]))
            todo += [n.id for n in ast.walk(definitions[name]) if isinstance(n, ast.Name)]
    return hashlib.sha256("\n".join(reached[n] for n in sorted(reached)).encode()).hexdigest()[:16]
