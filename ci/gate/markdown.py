"""The tables of the gate's pages, and the places of generated text in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from helion_sinkhorn.lab.tuning import markdown


def table(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows by title, the rule below the titles as the committed pages have it."""
    return markdown.of_records(rows, " --- ")


def replaced(page: str, name: str, text: str, where: object) -> str:
    """A page with `text` between its `<!-- name -->` and `<!-- /name -->`."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, opened, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"{where} has no place for {name}: put {begin} and {end} where it belongs")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"
