"""compile_for: this package's kernels as machine code for a DEVICES row, on a machine without that GPU.

Triton's wheel carries every compiler and disassembler this takes.  torch, Triton and Helion
keep what they learn about the device for the life of a process, so each target has processes
of its own (`python -m helion_sinkhorn.lab.tuning.child DEVICE`): one job a line on stdin, one answer a
line on stdout.  What the child compiles is what the package would have launched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.configs.store import hashable
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.nearest import suggestion
from helion_sinkhorn.runtime.space import Items


def environment(
    device_key: str, folder: Path, packages: Sequence[str] = (), cache: Path | None = None
) -> dict[str, str]:
    """The environment of a process for one device.

    Args:
        folder: where the process and the packages that it uses keep files.
        packages: folders that come before this package's in its path.
        cache: as in `compile_for`.
    """
    package = Path(__file__).resolve().parents[3]
    return {
        **{k: v for k, v in os.environ.items() if k not in ("HELION_INTERPRET", "TRITON_INTERPRET")},
        "HELION_SINKHORN_DEVICE": device_key,
        "PYTHONPATH": os.pathsep.join(
            [*packages, str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        **{name: str(folder) for name in ("HELION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")},
        "TRITON_CACHE_DIR": str(cache or folder),
        # a process that launches the binaries finds their host functions where calls keep them, without
        # Helion
        **({} if cache else {"HELION_SINKHORN_CACHE_DIR": "off"}),
    }


class Compiler(contextlib.AbstractContextManager):
    """A child process for one device, which is started again after a job that ended it."""

    def __init__(
        self,
        device_key: str,
        folder: Path,
        timeout: float,
        cache: Path | None = None,
        packages: Sequence[str] = (),
    ):
        self.device_key, self.timeout = device_key, timeout
        self.log = folder / f"stderr.{threading.get_ident()}"
        self.environment = environment(device_key, folder, packages, cache)
        self.judged = cache is not None
        self.child: subprocess.Popen[str] | None = None
        self.ended = False

    def start(self) -> None:
        with self.log.open("ab") as errors:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "helion_sinkhorn.lab.tuning.child", self.device_key],
                env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                text=True, start_new_session=True,
            )  # fmt: skip
        if self.ended:
            self.stop()
        if self.child.stdout.readline() != "ready\n":
            raise RuntimeError(f"the compiler for {self.device_key} did not start:\n{self.log.read_text()}")

    def stop(self) -> None:
        """End the child and the compilers that it may be running; may be called from any thread."""
        child = self.child
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    def end(self) -> None:
        """Stop the running job and begin no other; may be called from any thread."""
        self.ended = True
        self.stop()

    def __exit__(self, *_: object) -> None:
        if self.child is not None:
            self.stop()
            self.child.communicate()
            self.child = None

    def compile(self, job: Job) -> Binary:
        """This job's Binary; one that crashes or outlasts its compiler is reported like any other."""
        row = self.ask(job, judged=self.judged)
        row["loops"] = tuple(row.get("loops", ()))
        return Binary(self.device_key, job, **row)

    def neighbours(self, job: Job) -> list[Items]:
        """The neighbours of this job's config in Helion's own space; none if Helion refuses the job."""
        configs = self.ask(job, neighbours=True).get("configs", [])
        return [tuple((k, hashable(v)) for k, v in c.items()) for c in configs]

    def ask(self, job: Job, **more: bool) -> dict[str, Any]:
        """What the child answers to a job, with its "problems"."""
        if self.ended:
            return {"problems": ("its compiler was stopped",)}
        if self.child is None:
            self.start()
        heard = self.log.stat().st_size
        choice = {k: dict(v) if k in ("config", "variant") else v for k, v in vars(job.choice).items()}
        said = {**vars(job), "call": vars(job.call), "choice": choice, "options": dict(job.options), **more}
        begin = time.perf_counter()
        timer = threading.Timer(self.timeout, self.stop)
        timer.start()
        try:
            self.child.stdin.write(json.dumps(said) + "\n")
            self.child.stdin.flush()
            answer = self.child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        late = time.perf_counter() - begin >= self.timeout
        if late or not answer:
            self.__exit__()
        errors = self.log.read_bytes()[heard:].decode(errors="replace")
        if not answer:
            died = f"the compiler died: {errors[-500:]}"
            return {"problems": (f"not compiled after {self.timeout:g} s" if late else died,)}
        row = json.loads(answer)
        # if Triton's AMD backend cannot parse inline assembly, it makes a kernel without it
        lines = dict.fromkeys(text for text in errors.splitlines() if text.startswith("error:"))
        row["problems"] = (*row.get("problems", ()), *lines)
        return row


def compile_for(
    device_key: str,
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    timeout: float = 120.0,
    cache: Path | None = None,
    report: Callable[[Binary], None] = lambda binary: None,
    begun: Callable[[Compiler], None] = lambda compiler: None,
    packages: Sequence[str] = (),
) -> list[Binary]:
    """Compile for a device that need not be present; nothing is launched.

    Args:
        device_key: a DEVICES key.
        jobs: any number; a process start costs about 5 s, a job 1 to 15 s.
        workers: processes that share the jobs.
        timeout: seconds a job may take.
        cache: the folder of Triton's cache that keeps the binaries, for a process that will launch and test
            them; generated code is kept then too (runtime.program_cache).
        report: called with each Binary as it comes, from any thread.
        begun: called with each worker before its first job, from any thread; `Compiler.end` stops one.
        packages: folders with another Triton or Helion than those installed here.

    Returns:
        One Binary a job, in the order of the jobs.

    Raises:
        RuntimeError: a worker did not start; whatever a worker or `report` raises ends all of them.
    """
    if device_key not in DEVICES:
        near = suggestion(device_key, DEVICES)
        raise ValueError(f"{device_key!r} is not a known device; use one of {', '.join(DEVICES)}{near}")
    binaries: dict[int, Binary] = {}
    todo = iter(list(enumerate(jobs)))
    compilers: list[Compiler] = []

    def work(folder: str) -> None:
        with Compiler(device_key, Path(folder), timeout, cache, packages) as compiler:
            compilers.append(compiler)
            begun(compiler)
            for index, job in todo:
                binaries[index] = compiler.compile(job)
                report(binaries[index])

    workers = min(workers, len(jobs))
    if workers:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            ThreadPoolExecutor(workers) as pool,
        ):
            running = [pool.submit(work, folder) for _ in range(workers)]
            try:
                for finished in as_completed(running):
                    finished.result()
            except BaseException:
                # otherwise the pool would wait at its end for workers that go through all jobs
                for _ in todo:
                    pass
                for compiler in list(compilers):
                    compiler.end()
                raise
    return [binaries[index] for index in range(len(jobs))]
