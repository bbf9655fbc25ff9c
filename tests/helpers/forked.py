"""A Python command in a process of its own, forked from one that has imported torch.

To import torch takes a new process two seconds, and what Helion imports takes seven more.  The process that
forks does nothing else: it has called no function of torch, and knows neither Helion nor this package; Triton
and Inductor only where a test says that its process takes them.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OF_HELION = (
    "triton", "torch._inductor.compile_fx", "pandas", "sklearn.ensemble", "sklearn.gaussian_process", "rich",
)  # fmt: skip


def python(
    *words: object, env: Mapping[str, str] | None = None, cwd: str | Path | None = None, loaded: bool = False
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, ...).

    Args:
        words: of the command: "-c" and a program, "-m" and a module, or a script; and their arguments.
        env: the environment, this process's if left out; torch has one thread whatever it says.
        cwd: the folder to run in.
        loaded: whether what Helion imports is imported already; not where Triton interprets, which it decides
            when it is imported.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = {
            "words": [*map(str, words)],
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "folder": folder,
        }
        forks = forking(loaded)
        forks.stdin.write(json.dumps(said) + "\n")
        forks.stdin.flush()
        status = int(forks.stdout.readline())
        out, err = ((Path(folder) / name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(said["words"], status, out, err)


def printed(*words: object, **options: Any) -> str:
    """What a command that ends well prints."""
    done = python(*words, **options)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    return done.stdout


def of_ci() -> dict[str, Any]:
    """Options for a command of ci/ that presents another device, which a process then keeps for its life."""
    root, given = Path(__file__).resolve().parents[2], os.environ.get("PYTHONPATH")
    unset = ("HELION_INTERPRET", "TRITON_INTERPRET", "TRITON_CACHE_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [given])])
    return {"env": environment, "cwd": root, "loaded": True}


@functools.cache
def forking(loaded: bool) -> subprocess.Popen[str]:
    """The process that forks, one for all such commands of this process; it ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, __file__, *(OF_HELION if loaded else ())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    atexit.register(process.communicate)
    return process


def serve() -> None:
    """A process for each line of the input; its exit status is a line of the output."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # the folder of this file is no place to import from
    sys.path[:] = packages = [p for p in sys.path[1:] if p not in given]
    gc.set_threshold(100_000, 20, 20)
    import numpy  # noqa: F401
    import torch  # noqa: F401

    for name in sys.argv[1:]:
        # some are there if others are
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(packages, **json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def run(packages: list[str], words: list[str], env: dict[str, str], cwd: str, folder: str) -> None:
    """Run a command in this process, as in a new one with these packages."""
    for stream, path in enumerate((os.devnull, f"{folder}/out", f"{folder}/err")):
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    # nothing is left in a buffer where a process is killed
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(stream, "w", closefd=False), write_through=True) for stream in (1, 2)
    )
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    what, *rest = words
    beside = {"-c": "", "-m": cwd}.get(what, str(Path(cwd, what).parent))
    sys.path[:] = [beside, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *packages]
    if what == "-c":
        sys.argv = [what, *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif what == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    serve()
