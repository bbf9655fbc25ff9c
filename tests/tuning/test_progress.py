"""Lines of a command that takes long, on no terminal, and what they say is left."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from helion_sinkhorn.lab.tuning import progress
from helion_sinkhorn.lab.tuning.progress import Progress, seconds_left


def test_what_is_left_is_the_rest_at_the_same_speed(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    counted = Progress("programs", 40, Console(file=io.StringIO()))
    for seconds, steps, said in (
        (30, 0, "0 of 40 programs, 30 s"),
        (0, 10, "10 of 40 programs, 30 s, about 1 min 30 s left"),
        (20, 0, "10 of 40 programs, 50 s, about 1 min 10 s left"),
        (1000, 0, "10 of 40 programs, 17 min 30 s"),
        (0, 30, "40 of 40 programs, 17 min 30 s"),
    ):
        now[0] += seconds
        for _ in range(steps):
            counted.step()
        assert counted.line() == said


def test_what_comes_once_is_not_expected_again():
    """40 steps of 4 s after processes that take 20 s to start: 128 s are left, not 208."""
    ended = [(20.0 + 4 * k, 1.0) for k in range(1, 9)]
    assert seconds_left(ended, 40, 52.0) == pytest.approx(128)
    assert seconds_left(ended, 40, 54.0) == pytest.approx(126)
    # the first says nothing of it
    assert seconds_left(ended[:1], 40, 24.0) == pytest.approx(39 * 24)
    # steps of unequal length count by their work
    assert seconds_left([(5.0, 1.0), (40.0, 7.0)], 10, 40.0) == pytest.approx(10)
    for nothing_known in ([], [(1.0, 0.0)]):
        assert seconds_left(nothing_known, 40, 3.0) is None


def test_a_line_comes_every_ten_seconds_though_no_step_ends():
    assert progress.EVERY == 10
    out = io.StringIO()
    with Progress("keys", 3, Console(file=out), every=0.02) as counted:
        counted.step()
        deadline = time.monotonic() + 20
        while out.getvalue().count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = out.getvalue().splitlines()
    assert len(lines) >= 3
    assert all(re.fullmatch(r"1 of 3 keys, \d+ s(, about \d+ s left)?", line) for line in lines)
    assert not counted._lines.is_alive()


def test_a_terminal_has_a_bar():
    out = io.StringIO()
    with Progress("calls", 1, Console(file=out, force_terminal=True, width=80)) as counted:
        counted.step()
    assert "━" in out.getvalue()
