"""Candidates on their way to machine code."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures import TimeoutError as OutOfSeconds
from pathlib import Path

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.machine.compiler import Compiler, compile_for
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning.groups import Group
from helion_sinkhorn.runtime.kernel import Choice, candidates

log = logging.getLogger("helion_sinkhorn")

COMPILE_TIMEOUT = 60.0
TIMED_SPILLS = 256
"""Bytes a thread may spill in a timed candidate: a few spills may cost less than avoiding them."""


class Compilation:
    """All candidates of some groups on their way to machine code, in the background and in order.

    choices: the choices of the only group, if they are not its kernel's candidates.
    """

    def __init__(
        self,
        device: Device,
        groups: Sequence[Group],
        workers: int,
        cache: Path | None,
        choices: Sequence[Choice] = (),
    ):
        self.device = device
        self.jobs = {
            # of the size that will run: beyond 2^31 entries offsets take 64 bits, and other code
            group: [
                Job(group.call, c, max(group.batches))
                for c in choices or candidates(KERNELS[group.kernel], group.call, device)
            ]
            for group in groups
        }
        every = [job for jobs in self.jobs.values() for job in jobs]
        self.futures: dict[Job, Future[Binary]] = {job: Future() for job in every}
        self.stopped = False
        self.compilers: list[Compiler] = []

        def begun(compiler: Compiler) -> None:
            self.compilers.append(compiler)
            if self.stopped:
                compiler.end()

        def report(binary: Binary) -> None:
            self.futures[binary.job].set_result(binary)
            if self.stopped:
                raise InterruptedError("no more binaries are wanted")

        def work() -> None:
            try:
                compile_for(
                    device.key, every, workers=workers, timeout=COMPILE_TIMEOUT, cache=cache, report=report,
                    begun=begun,
                )  # fmt: skip
            except BaseException as failure:
                for future in self.futures.values():
                    if not future.done():
                        future.set_exception(failure)

        threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        """End the jobs begun, for which a process that ends would wait, and begin no other."""
        self.stopped = True
        for compiler in list(self.compilers):
            compiler.end()

    def binaries(self, group: Group) -> list[Binary]:
        """The binaries of a group, once they are compiled; without machine code if no compiler starts."""
        try:
            return [self.futures[job].result() for job in self.jobs[group]]
        except Exception as failure:
            log.warning("%s: to be compiled one by one, as they are timed (%s)", group.name, failure)
            return [Binary(self.device.key, job) for job in self.jobs[group]]

    def as_ready(self, group: Group, end: float) -> Iterator[Binary]:
        """Each binary compiled before `end` on time.monotonic's clock, at once; none without a compiler."""
        pending = [self.futures[job] for job in self.jobs[group]]
        try:
            for future in as_completed(pending, timeout=max(0.0, end - time.monotonic())):
                yield future.result()
        except OutOfSeconds:
            log.info("%s: time ended before all of %d configs were compiled", group.name, len(pending))
        except Exception as failure:
            log.warning("%s: not compiled (%s)", group.name, failure)


def launchable(binaries: Sequence[Binary]) -> list[Choice]:
    """The default, and the candidates without problems but spills: few, or where the default spills too."""
    default, *others = binaries

    def fine(binary: Binary) -> bool:
        tolerable = bool(default.spill_bytes) or binary.spill_bytes <= TIMED_SPILLS
        return not binary.problems or (len(binary.problems) == 1 and bool(binary.spill_bytes) and tolerable)

    return [b.job.choice for b in (default, *filter(fine, others))]


def count_compilations() -> Callable[[], int]:
    """How many binaries this process found in no cache and compiled itself, from now on."""
    import triton

    missed = 0

    def listener(*, cache_hit: bool, **_: object) -> None:
        nonlocal missed
        missed += not cache_hit

    triton.knobs.compilation.listener = listener
    return lambda: missed
