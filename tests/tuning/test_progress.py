"""Lines of a command that takes long, on no terminal, and what they say is left."""

from __future__ import annotations

import io
import re
import threading
import time

import pytest
from rich.console import Console

from helion_sinkhorn.tuning import progress
from helion_sinkhorn.tuning.progress import Progress, duration


def test_what_is_left_is_the_rest_at_the_same_speed(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    counted = Progress("programs", 40, Console(file=io.StringIO()))
    now[0] += 30
    assert counted.line() == "0 of 40 programs, 30 s"
    for _ in range(10):
        counted.step()
    assert counted.line() == "10 of 40 programs, 30 s, about 1 min 30 s left"
    now[0] += 20
    assert counted.line() == "10 of 40 programs, 50 s, about 1 min 10 s left"
    now[0] += 1000
    assert counted.line().endswith("about 1 s left")
    for _ in range(30):
        counted.step()
    assert counted.line() == "40 of 40 programs, 17 min 30 s"


def test_steps_of_unequal_length_count_by_their_work(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    counted = Progress("steps", 3, Console(file=io.StringIO()), work=10)
    now[0] = 5
    counted.step(1)
    assert counted.line() == "1 of 3 steps, 5 s, about 45 s left"
    now[0] = 40
    counted.step(7)
    assert counted.line() == "2 of 3 steps, 40 s, about 10 s left"


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
    assert all(re.fullmatch(r"1 of 3 keys, \d+ s, about \d+ s left", line) for line in lines)
    assert not counted._lines.is_alive()


def test_a_terminal_has_a_bar():
    out = io.StringIO()
    with Progress("calls", 2, Console(file=out, force_terminal=True, width=80)) as counted:
        threads = [threading.Thread(target=counted.step) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counted.done == 2
    assert "━" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "said"), [(45.4, "45 s"), (460, "7 min 40 s"), (7500, "2 h 5 min"), (59.9, "1 min 0 s")]
)
def test_durations(seconds, said):
    assert duration(seconds) == said
