"""A hash of the source that a function reaches, by which stale configs and programs are recognised."""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
HOST = PACKAGE / "configs"
"""Left out: kernels take only Triton's version from it, and that is in the key of every entry."""


def without_docstrings(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            body[:] = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return tree


def structure(value: object) -> object:
    """A syntax tree as nested tuples, equal under every Python: empty fields, which newer ones add, are left
    out.
    """
    if isinstance(value, list):
        return tuple(map(structure, value))
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = tuple(
        (name, structure(field)) for name, field in ast.iter_fields(value) if field not in (None, [])
    )
    return type(value).__name__, fields


@functools.cache
def definitions(path: Path, source: str | None = None) -> dict[str, ast.AST]:
    """What a module defines or imports, by name; `source` replaces its text."""
    named = {}
    for node in without_docstrings(ast.parse(path.read_text() if source is None else source)).body:
        if isinstance(node, ast.ImportFrom):
            names = [alias.asname or alias.name for alias in node.names]
        else:
            names = [getattr(t, "id", getattr(t, "name", "")) for t in getattr(node, "targets", [node])]
        named.update(dict.fromkeys(names, node))
    return named


def path_of(module: str) -> Path | None:
    """The file of a module of this package."""
    top, *parts = module.split(".")
    return PACKAGE.joinpath(*parts).with_suffix(".py") if top == PACKAGE.name else None


@functools.cache
def fingerprint_of(function: str, sources: tuple[tuple[str, str], ...] = ()) -> str:
    """Sixteen hex digits that change with the code "module:name" runs, not with comments, layout or module.

    The hash follows imports to other modules; `sources` are files within the package with other texts.
    """
    texts = dict(sources)
    module, _, body = function.partition(":")
    reached, todo = {}, [(path_of(module), body)]
    while todo:
        path, name = todo.pop()
        node = definitions(path, texts.get(path.relative_to(PACKAGE).as_posix())).get(name)
        if isinstance(node, ast.ImportFrom):
            original = next(a.name for a in node.names if name in (a.asname, a.name))
            source = path_of(node.module)
            if source is not None and source.parent != HOST:
                todo.append((source, original))
        elif node is not None and reached.get(name) != (code := repr(structure(node))):
            if name in reached:
                raise ValueError(f"{body} reaches two definitions of {name}: give one another name")
            reached[name] = code
            todo += [(path, n.id) for n in ast.walk(node) if isinstance(n, ast.Name)]
    return hashlib.sha256("\n".join(reached[n] for n in sorted(reached)).encode()).hexdigest()[:16]
