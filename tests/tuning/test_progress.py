"""Lines of a command that takes long, on no terminal, and what they say is left."""

from __future__ import annotations

import io
import random
import re
import threading
import time

import pytest
from rich.console import Console

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning import plan, progress
from helion_sinkhorn.lab.tuning.groups import groups_of
from helion_sinkhorn.lab.tuning.progress import Progress, duration, seconds_left
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.runtime.kernel import candidates


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
    assert counted.line() == "10 of 40 programs, 17 min 30 s"
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


def test_what_comes_once_is_not_expected_again():
    """40 steps of 4 s after processes that take 20 s to start: 128 s are left, not 208."""
    ended = [(20.0 + 4 * k, 1.0) for k in range(1, 9)]
    assert seconds_left(ended, 40, 52.0) == pytest.approx(128)
    assert seconds_left(ended, 40, 54.0) == pytest.approx(126)
    # the first says nothing of it
    assert seconds_left(ended[:1], 40, 24.0) == pytest.approx(39 * 24)
    assert seconds_left([], 40, 3.0) is None
    assert seconds_left([(1.0, 0.0)], 40, 3.0) is None


def programs(seed, workers, start):
    """When programs of 1 to 15 s are compiled, by so many processes: (seconds since the begin, work 1)."""
    draw, free = random.Random(seed), [start] * workers
    ended = []
    for _ in range(200):
        earliest = min(range(workers), key=free.__getitem__)
        free[earliest] += min(15.0, draw.expovariate(0.25) + 1)
        ended.append((free[earliest], 1.0))
    return sorted(ended)


def tuned(seed, workers, start, only=""):
    """When the keys of the whole plan are tuned on another host than the plan's.

    Twice the time of a compiler, a third of that to make a program ready, each key timed for half to twice as
    long.
    """
    draw, now, ended = random.Random(seed), start, []
    for group in groups_of([w for w in tagged("tune", object) if only in w.name]):
        work = plan.seconds(group, DEVICES["h200"], workers)
        count = len(candidates(KERNELS[group.kernel], group.call, DEVICES["h200"]))
        timed = [(0.05 * count + finals) * 2 ** draw.uniform(-1, 1) for finals in [0.9] * len(work)]
        waited = max(0.2 * count, 2 * 3.0 * count / workers - sum(timed))
        for own, cost in zip(timed, work, strict=True):
            now, waited = now + own + waited, 0.0
            ended.append((now, cost))
    return ended


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("start", [2.0, 20.0])
@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("run", [programs, tuned])
def test_what_is_said_to_be_left_is_right_within_a_factor_of_two(run, workers, start, seed):
    """From a twentieth of the steps to the last twentieth."""
    ended = run(seed, workers, start)
    work, whole = sum(own for _, own in ended), ended[-1][0]
    few = len(ended) // 20
    for done in range(few, len(ended) - few):
        now = ended[done - 1][0]
        assert 0.5 < seconds_left(ended[:done], work, now) / (whole - now) < 2, done


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_keys_behind_the_first_of_a_group_wait_for_no_compiler(workers):
    """Within a factor of three on a host whose compilers are slower; 4 to 55 if all were alike."""
    ended = tuned(0, workers, 1.0, "deepseek_4x4_fp32")[:5]
    said = seconds_left(ended[:1], sum(own for _, own in ended), ended[0][0])
    assert 1 / 3 < said / (ended[-1][0] - ended[0][0]) < 3


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
    with Progress("calls", 2, Console(file=out, force_terminal=True, width=80)) as counted:
        threads = [threading.Thread(target=counted.step) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(counted.ended) == 2
    assert "━" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "said"), [(45.4, "45 s"), (460, "7 min 40 s"), (7500, "2 h 5 min"), (59.9, "1 min 0 s")]
)
def test_durations(seconds, said):
    assert duration(seconds) == said
