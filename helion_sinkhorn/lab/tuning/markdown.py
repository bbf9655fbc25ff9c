"""Markdown tables: whole ones, or line by line where rows come as they are measured.

The one place that writes them, for generated pages and for what benchmarks print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def line(cells: Iterable[object]) -> str:
    """A row; a | within a cell is escaped, which would end the cell."""
    return "| " + " | ".join(str(cell).replace("|", r"\|") for cell in cells) + " |"


def head(titles: Sequence[object], rule: str = "---") -> str:
    """The two lines above the rows.

    Args:
        rule: what stands below each title: blanks around it change nothing, a colon aligns the column.
    """
    return f"{line(titles)}\n|{f'{rule}|' * len(titles)}"


def table(titles: Sequence[object], rows: Iterable[Iterable[object]], rule: str = "---") -> str:
    return "\n".join([head(titles, rule), *map(line, rows)])


def of_records(records: Iterable[Mapping[str, object]], rule: str = "---") -> str:
    """A table of rows by title: a column for every title, in the order of the first row that has it."""
    records = list(records)
    titles = list(dict.fromkeys(title for record in records for title in record))
    return table(titles, ([record.get(title, "") for title in titles] for record in records), rule)
