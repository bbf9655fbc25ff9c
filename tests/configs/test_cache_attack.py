"""The attacks of cache_attack.py at a size for every change; nightly runs them whole."""

from __future__ import annotations

import json
from pathlib import Path

from forked import printed

ATTACK = Path(__file__).with_name("cache_attack.py")


def told(*arguments: str) -> dict[str, object]:
    return json.loads(printed(ATTACK, *arguments))


def test_no_changed_file_raises_serves_what_no_kernel_takes_or_runs_code():
    found = told("files", "--count", "240")
    assert found["wrong"] == 0
    # attacks of every kind, and files that still serve beside those that do not
    assert min(found[k] for k in ("truncated", "bits", "bytes", "value", "values", "twice")) > 15
    assert found["stored"] > 15
    assert found["default"] > 120


def test_no_entry_of_a_killed_tuner_is_lost():
    found = told("tuners", "--kills", "8")
    assert (found["lost"], found["torn"], found["left"]) == (0, 0, [])
    assert found["acknowledged"] > 8
