"""A child process ends soon after its parent was killed, even during its work."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helion_sinkhorn.lab import parent

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 5.0
"""Within which a child must end; each would go on for longer."""
BUSY = """
import runpy, sys, time
sys.platform = sys.argv[2]
runpy.run_path(sys.argv[1])["end_with_parent"]()
print("works", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    sum(range(1000))
"""
STARTS = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {BUSY!r}, *sys.argv[1:]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
# as a pool does with a worker that takes another's place; the file alone, as the package would import torch
FROM_A_THREAD = """
import runpy, sys, threading, time
from multiprocessing import get_context
def work(ready):
    runpy.run_path(sys.argv[1])["end_with_parent"]()
    ready.set()
    time.sleep(30)
if __name__ == "__main__":
    context = get_context("spawn")
    ready = context.Event()
    worker = context.Process(target=work, args=(ready,))
    def start():
        worker.start()
        ready.wait()
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    # it goes on when the thread that started it ends
    worker.join(1)
    print(worker.pid, flush=True)
    worker.join()
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize(
    ("program", "platform"),
    [(STARTS, "linux"), (STARTS, "another"), (FROM_A_THREAD, "")],
    ids=["the kernel", "the thread", "a worker of a pool"],
)
def test_a_child_ends_with_a_parent_that_is_killed(program, platform, tmp_path):
    script = tmp_path / "starts.py"
    script.write_text(program)
    command = [sys.executable, script, parent.__file__, platform]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        child = int(started.stdout.readline() or pytest.fail(started.stderr.read()))
        assert is_alive(child)
        started.kill()
        end = time.monotonic() + SECONDS
        while is_alive(child) and time.monotonic() < end:
            time.sleep(0.05)
        assert not is_alive(child)


STARTING = re.compile(r"ProcessPoolExecutor\(|\.Pool\(|Popen\(|subprocess\.call\(")


@pytest.mark.parametrize(
    "path",
    [
        path.relative_to(ROOT).as_posix()
        for folder in ("helion_sinkhorn", "ci", "benchmarks", "tritonbench_ops")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if STARTING.search(path.read_text())
    ],
)
def test_whatever_starts_processes_lets_them_end_with_it(path):
    """In the file itself, or in the module that it starts."""
    text = (ROOT / path).read_text()
    started = [name.replace(".", "/") + ".py" for name in re.findall(r'"-m", "([\w.]+)"', text)]
    started = [f"{name[:-3]}/__main__.py" if not (ROOT / name).exists() else name for name in started]
    assert any("end_with_parent" in (ROOT / name).read_text() for name in (path, *started))
