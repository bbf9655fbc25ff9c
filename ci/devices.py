"""Print rows of ci/devices.toml as the matrix of a GitHub workflow: python ci/devices.py [sanitizer | ran]

It prints all rows, or the rows in which a field is true.  Standard library of Python 3.11.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tomllib

FIELDS = {
    "key": str,
    "runner": str,
    "image": str,
    "options": str,
    "env": dict,
    "sanitizer": bool,
    "ran": bool,
}


def rows() -> list[dict[str, object]]:
    """The rows, after a check that each has all fields with their types and a key of its own."""
    path = Path(__file__).with_name("devices.toml")
    table = tomllib.loads(path.read_text())["device"]
    for row in table:
        if {k: type(v) for k, v in row.items()} != FIELDS:
            raise ValueError(f"{path}: the row {row} needs exactly {', '.join(FIELDS)}")
    keys = [row["key"] for row in table]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{path}: a key stands twice in {', '.join(keys)}")
    return table


if __name__ == "__main__":
    print(json.dumps({"include": [row for row in rows() if all(row[field] for field in sys.argv[1:])]}))
