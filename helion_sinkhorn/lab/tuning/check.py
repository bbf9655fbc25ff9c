"""Checks of the files of a tuning cache: their defects, and the programs that do not compile."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.machine.compiler import compile_for
from helion_sinkhorn.lab.operators import KERNELS, fingerprint
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.tuning.ranking import calibration
from helion_sinkhorn.runtime.kernel import Choice, in_space

MOST_BYTES = 800_000
"""The most bytes of one device's files."""


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*/*.json") if p.name != calibration.FILE)


def complaints(folder: Path) -> Iterator[str]:
    """The defects of the files of a folder, found without compiling."""
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(json.loads((store.folders()[-1] / "schema.json").read_text()))
    for path in files(folder):
        device, kernel = path.parent.name, path.stem
        try:
            data = json.loads(path.read_text())
        except ValueError as error:
            yield f"{path}: {error}"
            continue
        wrong = [f"{path}: {'/'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(data)]
        yield from wrong
        if wrong:
            continue
        if device not in DEVICES or data["device"]["key"] != device:
            yield f"{path}: the folder is {device}, the file says {data['device']['key']}"
        if kernel not in KERNELS or data["kernel"] != kernel:
            yield f"{path}: holds {data['kernel']}"
            continue
        strange = [e["key"] for e in data["entries"] if not fits(kernel, store.key_of(e["key"]))]
        yield from (f"{path}: {kernel} is not looked up by {key}" for key in strange)
        if strange:
            continue
        names = [writer.identity(e) for e in data["entries"]]
        if names != sorted(set(names)):
            yield f"{path}: entries are not sorted, or some share a key"
        for run in {e["run"] for e in data["entries"]} ^ set(data["runs"]):
            yield f"{path}: run {run} is missing or not used"
        for entry in data["entries"]:
            of_run = data["runs"].get(entry["run"], {}).get("triton", "")
            if not of_run.startswith(f"{entry['key']['triton']}."):
                yield f"{path}: {entry['key']} is of a run under Triton {of_run}"
        if not store.read(folder, device, kernel):
            yield f"{path}: the reader finds no entries"
        for job in jobs_of(folder, device, kernel) if device in DEVICES else ():
            if not in_space(KERNELS[kernel], job.choice, job.call, DEVICES[device]):
                yield f"{path}: `make tune` tries no such config for {job.call}: {job.choice}"
        if path.read_text() != writer.text(data):
            yield f"{path}: not as the tuner writes it"
        for name, run in data["runs"].items():
            if run["fingerprint"] != fingerprint(kernel):
                yield (
                    f"{path}: run {name} tuned another source of {kernel}; "
                    f"`make tune DEVICE={device} KERNEL={kernel}` tunes this one"
                )
    for device in sorted({p.parent for p in files(folder)}):
        size = sum(p.stat().st_size for p in device.glob("*.json"))
        if size > MOST_BYTES:
            yield f"{device}: {size} bytes, at most {MOST_BYTES}"


def fits(kernel: str, key: store.Key) -> bool:
    """Whether a key has the fields of the kernel's calls."""
    try:
        return KERNELS[kernel].call.of(key).key == key
    except (KeyError, TypeError):
        return False


def jobs(folder: Path, device: str, evidence: str = "") -> list[Job]:
    """Every distinct program that the entries of a device (of this evidence) ask for."""
    return list(dict.fromkeys(job for kernel in KERNELS for job in jobs_of(folder, device, kernel, evidence)))


def jobs_of(folder: Path, device: str, kernel: str, evidence: str = "") -> Iterator[Job]:
    """The programs of one file."""
    for entry in store.read(folder, device, kernel):
        if evidence in ("", entry.evidence):
            call = KERNELS[kernel].call.of(entry.key)
            yield Job(call, Choice(kernel, entry.config, entry.variant, entry.path, True))


def miscompiled(
    folder: Path,
    workers: int,
    every: int = 1,
    devices: Iterable[str] = tuple(DEVICES),
    say: Callable[[str], None] = lambda line: None,
    done: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Programs, each `every`-th, that do not compile for their device or should not be launched there."""
    for device in devices:
        todo = jobs(folder, device)[::every]
        if todo:
            say(f"{device}: {len(todo)} programs to compile")
        # kernels take 1 to 15 s; in mixed order, those compiled show how long the rest takes
        random.Random(0).shuffle(todo)
        for binary in compile_for(
            device, todo, workers=workers, report=file_by_file(device, todo, say, done)
        ):
            serious = [p for p in binary.problems if not (binary.compiled and p.startswith("spills"))]
            if serious:
                yield f"{device}: {binary.job.call} {binary.job.choice}: {'; '.join(serious)}"


def file_by_file(
    device: str, todo: Sequence[Job], say: Callable[[str], None], done: Callable[[], None]
) -> Callable[[Binary], None]:
    """A function that takes each binary as it comes, from any thread, and reports files that are complete."""
    all_of = Counter(job.choice.kernel for job in todo)
    left, counting, begin = all_of.copy(), threading.Lock(), time.perf_counter()

    def compiled(binary: Binary) -> None:
        kernel = binary.job.choice.kernel
        done()
        with counting:
            left[kernel] -= 1
            if not left[kernel]:
                seconds = time.perf_counter() - begin
                say(f"  {device}/{kernel}.json: {all_of[kernel]} programs compiled, {seconds:.0f} s")

    return compiled
