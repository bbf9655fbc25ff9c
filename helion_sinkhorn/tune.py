"""The tuner: time every candidate of a kernel's space on this device and keep what pays.

Keys that differ in the batch alone share their binaries, so they are tuned as one group: its
candidates are compiled once, by processes of their own (offline.compile_for, whose binaries
Triton's cache hands over), while the group before is being timed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from helion_sinkhorn import calibration, ranking
from helion_sinkhorn.configs import store, writer
from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.kernels import Choice, candidates, in_space
from helion_sinkhorn.kernels.fingerprint import fingerprint
from helion_sinkhorn.offline import Binary, Job, compile_for
from helion_sinkhorn.timing import Sampler, sampler
from helion_sinkhorn.trials import TRIALS, bytes_of, programs

log = logging.getLogger("helion_sinkhorn")

GAIN = 0.02
"""An incumbent stays unless the winner takes this share less time."""
PASSES = 2
FINALISTS = 3
ROUNDS = {"quick": 7, "full": 21}
COMPILE_TIMEOUT = 60.0
# what an H200 and its host take, for the plan's estimate
TIMED_SPILLS = 256
"""Bytes a thread: some values that wait in local memory may cost less than what keeps them out of it."""
SECONDS_GENERATE, SECONDS_TIME = 0.6, 0.05
SECONDS_COMPILE = {"sinkhorn_forward": 1.0, "sinkhorn_backward": 6.0}


@dataclass(frozen=True)
class Group:
    """Keys of one kernel that differ in the batch alone."""

    kernel: str
    call: Any
    """Of the type that the kernel's row of KERNELS names."""
    batches: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.call}"

    def seconds(self, device: Device, workers: int) -> float:
        """A rough cost, for the plan."""
        count = len(candidates(self.kernel, self.call, device))
        finals = (FINALISTS + 2) * (ROUNDS["quick"] / 2) * SECONDS_TIME
        own = SECONDS_GENERATE + len(self.batches) * SECONDS_TIME
        return count * max(own, SECONDS_COMPILE.get(self.kernel, 3.0) / workers) + len(self.batches) * finals


def groups_of(workloads: Iterable[Any], kernel: str | None = None) -> list[Group]:
    """The groups of these workloads, in their order; of one kernel where one is named."""
    batches: dict[tuple[str, Any], set[int]] = {}
    for workload in workloads:
        for name, call in programs(workload):
            if kernel in (None, name):
                batches.setdefault((name, call), set()).add(workload.batch)
    return [Group(*key, tuple(sorted(b))) for key, b in batches.items()]


def share(groups: Sequence[Group], costs: Sequence[float], rank: int, world: int) -> list[Group]:
    """What one of `world` ranks takes: the dearest first to whoever has least; order is kept."""
    load, owner = [0.0] * world, {}
    for index in sorted(range(len(groups)), key=lambda i: -costs[i]):
        owner[index] = min(range(world), key=load.__getitem__)
        load[owner[index]] += costs[index]
    return [g for index, g in enumerate(groups) if owner[index] == rank]


# ---------------------------------------------------------------------------------------- what is there


def entry_key(group: Group, batch: int) -> dict[str, Any]:
    return {**dict(group.call.key), "batch": batch, "triton": store.triton_minor()}


def stored(folder: Path, device: str, kernel: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Entries of a file by identity, each with its run's fingerprint."""
    data = writer.load(folder / device / f"{kernel}.json") or {"runs": {}, "entries": []}
    return {
        writer.identity(e): {**e, "fingerprint": data["runs"].get(e["run"], {}).get("fingerprint")}
        for e in data["entries"]
    }


def unfinished(groups: Iterable[Group], folder: Path, device: str, evidence: str) -> list[Group]:
    """The groups without the batches that have an entry as good as this run's from the same source."""
    left = []
    for group in groups:
        have = stored(folder, device, group.kernel)

        def fresh(batch, have=have, group=group):
            entry = have.get(writer.identity({"key": entry_key(group, batch)}))
            return (
                entry is not None
                and entry["fingerprint"] == fingerprint(group.kernel)
                and writer.EVIDENCE.index(entry["evidence"]) >= writer.EVIDENCE.index(evidence)
            )

        batches = tuple(b for b in group.batches if not fresh(b))
        if batches:
            left.append(Group(group.kernel, group.call, batches))
    return left


def choice_of(kernel: str, entry: dict[str, Any] | None) -> Choice | None:
    """The choice an entry stores."""
    if entry is None:
        return None
    return Choice(kernel, store.frozen(entry["config"]), store.frozen(entry["variant"]), "the incumbent")


def thawed(items: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Items as JSON holds them, by name."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in sorted(items)}


def same(a: Choice, b: Choice) -> bool:
    return (thawed(a.config), thawed(a.variant)) == (thawed(b.config), thawed(b.variant))


def distinct(choices: Iterable[Choice | None]) -> list[Choice]:
    """Without None and repetitions, in order."""
    kept: list[Choice] = []
    for choice in choices:
        if choice is not None and not any(same(choice, k) for k in kept):
            kept.append(choice)
    return kept


# ------------------------------------------------------------------------------------- how it is timed


def gpu_clock(group: Group, batch: int) -> Callable[[Choice], Sampler]:
    """Samplers of this group's kernel on `batch` matrices of the current GPU."""
    trial = TRIALS[group.kernel]
    operands = trial.operands(group.call, batch, "cuda")

    def prepare(choice: Choice) -> Sampler:
        def run() -> torch.Tensor | tuple[torch.Tensor, ...]:
            return trial.run(group.call, choice, *operands)

        written = run()
        results = written if isinstance(written, tuple) else (written,)
        return sampler(run, bytes_of(*operands, *results))

    return prepare


Clock = Callable[[Group, int], Callable[[Choice], Sampler]]


ALONE = contextlib.nullcontext()


def turn_on_gpu(cache: Path | None) -> contextlib.AbstractContextManager[object]:
    """What the ranks on one GPU pass on to each other: one at a time samples times.

    First calls of candidates and checks of others may still run then, and show in the spread.
    """
    if cache is None or not torch.cuda.is_available():
        return ALONE
    cache.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return FileLock(cache / f"{gpu.uuid}.lock")


@functools.lru_cache(maxsize=1024)
def error(call: Any, choice: Choice, device: str) -> float:
    """The largest error of a choice in units of its budget; above 1 it is refused."""
    return TRIALS[choice.kernel].error(call, choice, device)


@dataclass
class Result:
    """What came of one key."""

    group: Group
    batch: int
    winner: Choice
    us: float
    default_us: float
    spread: float
    err: float
    old_us: float | None = None
    """The incumbent's time now, where there was one."""
    times: list[tuple[Choice, float]] = field(default_factory=list)
    """Microseconds of every candidate, before the finals."""
    seconds: float = 0.0

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "key": entry_key(self.group, self.batch),
            "config": thawed(self.winner.config),
            "variant": thawed(self.winner.variant),
            "evidence": "measured",
            "us": digits(self.us),
            "default_us": digits(self.default_us),
            "spread": round(self.spread, 3),
            "err": round(self.err, 3),
        }

    def __str__(self) -> str:
        values = ", ".join(f"{k}={v}" for k, v in (*self.winner.config, *self.winner.variant))
        return (
            f"{self.group.name} B={self.batch}: {digits(self.us)} us, default {digits(self.default_us)} "
            f"({self.default_us / self.us:.2f}x), err {self.err:.2f}, {len(self.times)} candidates "
            f"in {self.seconds:.1f} s: {values}"
        )


def digits(us: float) -> float:
    """Four figures: what a timing is good for."""
    return float(f"{us:.4g}")


def spread(samples: Sequence[float]) -> float:
    """Between the quartiles, relative to the median."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / middle


def tune_key(
    group: Group,
    batch: int,
    choices: Sequence[Choice],
    incumbent: Choice | None,
    clock: Clock,
    judge: Callable[[Group, Choice], float],
    rounds: int,
    budget: float,
    turn: contextlib.AbstractContextManager[object] = ALONE,
) -> Result:
    """Time the choices, the default first, then the best of them against default and incumbent.

    turn: held while anything is timed.

    Raises:
        RuntimeError: the default itself does not run or is outside the budget of error.
    """
    begin = time.perf_counter()
    prepare = clock(group, batch)
    default = choices[0]
    tried: list[tuple[Choice, Sampler]] = []
    for choice in distinct((default, incumbent, *choices)):
        if len(tried) > 1 and time.perf_counter() - begin > budget:
            break
        try:
            tried.append((choice, prepare(choice)))
        except Exception as refusal:  # whatever Helion, Triton or a driver raised: not a candidate
            if choice is default:
                raise RuntimeError(f"{group.name} B={batch}: the default config does not run") from refusal
            log.warning("%s B=%d: %s does not run: %s", group.name, batch, choice, refusal)
    # every candidate in each pass: what disturbs one pass disturbs all of them
    with turn:
        passes = [[sample() for _, sample in tried] for _ in range(PASSES)]
    times = [min(each) for each in zip(*passes, strict=True)]
    fast = [tried[index][0] for index in sorted(range(len(tried)), key=times.__getitem__)]
    best = list(itertools.islice((c for c in fast if judge(group, c) <= 1), FINALISTS))
    if judge(group, default) > 1:
        raise RuntimeError(f"{group.name}: the default config is outside the error budget")
    seated = incumbent is not None and any(same(c, incumbent) for c in fast) and judge(group, incumbent) <= 1
    finalists = distinct((default, incumbent if seated else None, *best))
    samplers = [next(sample for c, sample in tried if same(c, choice)) for choice in finalists]
    samples: list[list[float]] = [[] for _ in finalists]
    with turn:
        for _ in range(rounds):
            for one, sample in zip(samples, samplers, strict=True):
                one.append(sample())
    us = [statistics.median(one) for one in samples]
    spreads = [spread(one) for one in samples]
    seat = next((i for i, c in enumerate(finalists) if seated and same(c, incumbent)), 0)
    first = min(range(len(finalists)), key=us.__getitem__)
    gain = max(GAIN, spreads[first], spreads[seat])
    kept = first if us[first] <= (1 - gain) * us[seat] else seat
    screened = [(choice, us_once) for (choice, _), us_once in zip(tried, times, strict=True)]
    return Result(
        group, batch, finalists[kept], us[kept], us[0], spreads[kept],
        judge(group, finalists[kept]), us[seat] if seated else None, screened,
        time.perf_counter() - begin,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- compiling


class Compilation:
    """All candidates of some groups on their way to machine code, in the background and in order."""

    def __init__(self, device: Device, groups: Sequence[Group], workers: int, cache: Path | None):
        self.device = device
        self.jobs = {
            # of the size that will run: beyond 2^31 entries offsets take 64 bits, and other code
            group: [
                Job(group.call, c, max(group.batches)) for c in candidates(group.kernel, group.call, device)
            ]
            for group in groups
        }
        every = [job for jobs in self.jobs.values() for job in jobs]
        self.futures: dict[Job, Future[Binary]] = {job: Future() for job in every}
        self.stopped = False

        def report(binary: Binary) -> None:
            self.futures[binary.job].set_result(binary)
            if self.stopped:
                raise InterruptedError("no more binaries are wanted")

        def work() -> None:
            try:
                compile_for(
                    device.key, every, workers=workers, timeout=COMPILE_TIMEOUT, cache=cache, report=report
                )
            except BaseException as failure:
                for future in self.futures.values():
                    if not future.done():
                        future.set_exception(failure)

        threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        """Begin no further job: a process that ends waits for those begun."""
        self.stopped = True

    def binaries(self, group: Group) -> list[Binary]:
        """Those of one group, when they are there; without machine code where the compilers do not start."""
        try:
            return [self.futures[job].result() for job in self.jobs[group]]
        except Exception as failure:
            log.warning("%s: to be compiled one by one, as they are timed (%s)", group.name, failure)
            return [Binary(self.device.key, job) for job in self.jobs[group]]


def sound(binaries: Sequence[Binary]) -> list[Choice]:
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


# ------------------------------------------------------------------------------------------ provenance


def output_of(*command: str) -> str:
    """What a program prints, nothing where it is not there or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, cwd=Path(__file__).parent, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def driver_version() -> str:
    if torch.version.hip:
        module = Path("/sys/module/amdgpu/version")
        return module.read_text().strip() if module.exists() else ""
    return output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]


def runtime() -> str:
    """What torch was built for."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "none"


def versions() -> dict[str, str]:
    """What a time depends on besides the device."""
    return {
        "helion": version("helion"),
        "triton": version("triton"),
        "torch": torch.__version__,
        "runtime": runtime(),
        "driver": driver_version() if torch.cuda.is_available() else "",
        "python": platform.python_version(),
    }


def provenance(kernel: str, evidence: str, options: Options) -> dict[str, Any]:
    """One row of the table of runs."""
    return {
        **versions(),
        "fingerprint": fingerprint(kernel),
        "evidence": evidence,
        "commit": options.commit or output_of("git", "rev-parse", "HEAD"),
        "dirty": bool(output_of("git", "status", "--porcelain", "--untracked-files=no")),
        "utc": options.utc,
        "effort": options.effort,
        "seed": 0,
        "command": options.command,
    }


def device_block(device: Device, reported: str) -> dict[str, Any]:
    fields = ("key", "vendor", "arch", "compute_units", "memory_gb")
    return {**{name: getattr(device, name) for name in fields}, "name": reported}


# ------------------------------------------------------------------------------------------- the command


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ")


@dataclass(frozen=True)
class Options:
    """One `tune` command."""

    device: str
    out: Path
    kernel: str | None = None
    effort: str = "quick"
    budget: float = 60.0
    """Seconds for the candidates of one key."""
    limit: float = float("inf")
    """Seconds after which no further key is begun."""
    force: bool = False
    commit: str = ""
    rank: int = int(os.environ.get("RANK", "0"))
    world: int = int(os.environ.get("WORLD_SIZE", "1"))
    workers: int = 1
    cache: Path | None = None
    utc: str = field(default_factory=_now)
    command: str = field(default_factory=lambda: writer.command("helion_sinkhorn", sys.argv[1:]))


def mine(groups: Sequence[Group], options: Options, evidence: str = "measured") -> list[Group]:
    """This rank's share of the plan, without the keys that have fresh entries unless forced."""
    device = DEVICES[options.device]
    costs = [group.seconds(device, options.workers) for group in groups]
    # shared out before looking at what is done: other ranks are writing while this one looks
    share_of_it = share(groups, costs, options.rank, options.world)
    return share_of_it if options.force else unfinished(share_of_it, options.out, options.device, evidence)


def keys_left(groups: Sequence[Group], options: Options, evidence: str = "measured") -> int:
    """Keys that `tune` would go through."""
    return sum(len(group.batches) for group in mine(groups, options, evidence))


def plan(groups: Sequence[Group], options: Options, evidence: str = "measured") -> Iterator[str]:
    """What `tune` would do, in words."""
    device, left = DEVICES[options.device], mine(groups, options, evidence)
    count = sum(len(candidates(g.kernel, g.call, device)) for g in left)
    seconds = sum(g.seconds(device, options.workers) for g in left)
    yield (
        f"{sum(len(g.batches) for g in left)} keys in {len(left)} groups, {count} candidates, "
        f"{options.workers} compiling processes; about {seconds:.0f} s"
    )
    for group in left:
        yield f"  {group.name}, batches {', '.join(map(str, group.batches))}"


def within_limit(
    groups: Sequence[Group], begin: float, limit: float, say: Callable[[str], None]
) -> Iterator[tuple[int, Group]]:
    """The groups, numbered from 1, until `limit` seconds after `begin`."""
    for number, group in enumerate(groups, 1):
        if time.perf_counter() - begin > limit:
            say(f"limit of {limit:g} s: {len(groups) - number + 1} groups left for the next run")
            return
        yield number, group


def tune(
    groups: Sequence[Group],
    options: Options,
    reported: str,
    *,
    clock: Clock = gpu_clock,
    judge: Callable[[Group, Choice], float] | None = None,
    compilation: Callable[..., Any] = Compilation,
    say: Callable[[str], None] = print,
) -> Iterator[Result]:
    """Tune this rank's share of the groups, write after every key, and yield what came of each.

    Args:
        groups: the whole plan, the same on every rank.
        options: of the command.
        reported: the device's name as its driver gives it.
        clock, judge, compilation: how candidates are timed, judged and compiled; the GPU's by default.
        say: where progress goes.
    """
    begin = time.perf_counter()
    device = DEVICES[options.device]
    judge = judge or (lambda group, choice: error(group.call, choice, "cuda"))
    left = mine(groups, options)
    compiled = compilation(device, left, options.workers, options.cache)
    missed, turn = count_compilations(), turn_on_gpu(options.cache)
    try:
        for number, group in within_limit(left, begin, options.limit, say):
            binaries = compiled.binaries(group)
            choices = sound(binaries)
            run, timed = provenance(group.kernel, "measured", options), []
            say(
                f"[{time.perf_counter() - begin:.0f} s] {number}/{len(left)} {group.name}: "
                f"{len(choices)} of {len(binaries)} candidates; compiled here so far: {missed()}"
            )
            for batch in group.batches:
                if time.perf_counter() - begin > options.limit:
                    break
                have = stored(options.out, options.device, group.kernel)
                old = choice_of(group.kernel, have.get(writer.identity({"key": entry_key(group, batch)})))
                if old is not None and not in_space(old, group.call, DEVICES[options.device]):
                    old = None
                try:
                    result = tune_key(
                        group, batch, choices, old, clock, judge, ROUNDS[options.effort], options.budget, turn
                    )
                except RuntimeError as failure:
                    say(f"{failure}: {failure.__cause__ or 'nothing is written for it'}")
                    continue
                writer.merge(options.out, group.kernel, device_block(device, reported), run, [result.entry])
                say(f"  {result}")
                timed.append((result.batch, result.times))
                yield result
            if ranking.knows(group.call):
                path = options.out / options.device / calibration.FILE
                calibration.record(path, group.kernel, group.call, binaries, timed)
    finally:
        compiled.stop()


def tune_offline(
    groups: Sequence[Group],
    options: Options,
    *,
    compilation: Callable[..., Any] = Compilation,
    say: Callable[[str], None] = print,
) -> Iterator[list[dict[str, Any]]]:
    """Rank the candidates by `ranking.score` instead of timing them, and yield the entries of each group.

    One ranking of binaries serves every batch; what is picked may differ with it.  Kernels that the score
    was not made for are left to their defaults.  Arguments as in `tune`.
    """
    begin = time.perf_counter()
    device = DEVICES[options.device]
    left = [group for group in mine(groups, options, "compiled") if ranking.knows(group.call)]
    for kernel in sorted({group.kernel for group in groups if not ranking.knows(group.call)}):
        say(f"{kernel}: no score was made for it; its default serves until it is tuned on the device")
    compiled = compilation(device, left, options.workers, None)
    try:
        for number, group in within_limit(left, begin, options.limit, say):
            binaries = compiled.binaries(group)
            entries = [ranked(group, batch, binaries) for batch in group.batches]
            run = provenance(group.kernel, "compiled", options)
            writer.merge(options.out, group.kernel, device_block(device, "not present"), run, entries)
            moved = sum(e["score"] != e["default_score"] for e in entries)
            say(
                f"[{time.perf_counter() - begin:.0f} s] {number}/{len(left)} {group.name}: "
                f"{sum(not b.problems for b in binaries)} of {len(binaries)} candidates are sound; "
                f"another than the default for {moved} of {len(entries)} batches"
            )
            yield entries
    finally:
        compiled.stop()


def ranked(group: Group, batch: int, binaries: Sequence[Binary]) -> dict[str, Any]:
    """The entry of one key by the model alone."""
    best, own, reference = ranking.pick(binaries, batch)
    return {
        "key": entry_key(group, batch),
        "config": thawed(best.job.choice.config),
        "variant": thawed(best.job.choice.variant),
        "evidence": "compiled",
        "score": digits(own),
        "default_score": digits(reference),
        "model": ranking.MODEL,
    }


def report(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Rows of the table at the end: key, old, new, default, gain over the default."""
    return [
        (
            r.group.name, str(r.batch), f"{digits(r.old_us)}" if r.old_us else "-", f"{digits(r.us)}",
            f"{digits(r.default_us)}", f"{r.default_us / r.us:.2f}",
        )
        for r in results
    ]  # fmt: skip
