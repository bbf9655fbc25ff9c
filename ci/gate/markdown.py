"""Markdown tables, and where generated text stands in a file."""

from __future__ import annotations

from pathlib import Path


def table(rows: list[dict[str, object]]) -> str:
    """Rows as a Markdown table, the columns in the order of the first row that has them."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    lines = [names, ["---"] * len(names), *([row.get(key, "") for key in names] for row in rows)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def replaced(page: str, name: str, text: str, where: object = "the page") -> str:
    """A page with `text` between its `<!-- name -->` and `<!-- /name -->`."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{where} has no place for {name}: put {begin} and {end} where it belongs")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"


def insert(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->` in a file."""
    path.write_text(replaced(path.read_text(), name, text, path))
