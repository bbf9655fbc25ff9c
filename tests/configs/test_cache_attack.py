"""Attacks on the tuning cache: files changed at random, and tuners killed while they write."""

from __future__ import annotations

import copy
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stored import KERNEL, entry

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.tuning.provenance import device_block
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import default_choice, in_space

DEVICE = DEVICES["h200"]
SHIPPED = store.folders()[-1] / DEVICE.key
FORK = multiprocessing.get_context("fork")
FORBIDDEN = ("exec", "compile", "os.system", "os.exec", "subprocess.Popen", "os.fork", "import")
"""Audit events that no file may cause."""
VALUES = (
    *(-(1 << 63), -4, -1, 0, 1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 1 << 31, 1 << 63, 1 << 200),
    *(0.0, -1.5, 4.0, 1e308, float("nan"), float("inf"), True, False, None, "", "4", "measured", "rows"),
    *([], [4], [[[64]]], [4, 4], {}, {"a": [{}]}, "\0", "é" * 300, "../../../etc/passwd", "$(touch PWNED)"),
    *("__import__('os').system('touch PWNED')", "${HOME}", "%s%n", "'; drop table entries; --", "float32 "),
    *({"__class__": "os.system", "__reduce__": ["touch PWNED"]}, "!!python/object/apply:os.system [id]"),
)
NAMES = (
    "", "__class__", "../../x", "\0", "batch", "dtype", "num_warps", "config", "self", "$(touch PWNED)", "n",
)  # fmt: skip
KINDS = "bytes", "values"


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    yield path
    if isinstance(data, (dict, list)):
        for k, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(inner, (*path, k))


def changed_value(data: Any, rng: random.Random) -> Any:
    """Another value, a name more, or one name or item less, in one place."""
    # a copy: lists and objects among them are changed later
    value, path = copy.deepcopy(rng.choice(VALUES)), rng.choice(list(places(data)))
    if not path:
        return value
    parent = data
    for k in path[:-1]:
        parent = parent[k]
    how = rng.randrange(4)
    if how == 0:
        del parent[path[-1]]
    elif how == 1 and isinstance(parent, dict):
        parent[rng.choice(NAMES)] = parent.pop(path[-1])
    elif how == 2 and isinstance(parent, dict):
        parent[rng.choice(NAMES)] = value
    else:
        parent[path[-1]] = value
    return data


def attacked(data: Any, kind: str, rng: random.Random) -> bytes:
    """The file that this kind of attack leaves."""
    if kind == "values":
        for _ in range(rng.randint(1, 6)):
            if isinstance(data, (dict, list)):
                data = changed_value(data, rng)
        return json.dumps(data).encode()
    text = bytearray(json.dumps(data).encode())
    at = rng.randrange(len(text))
    # a few bytes, or all the rest
    text[at : rng.choice((at + rng.randrange(8), len(text)))] = rng.randbytes(rng.randrange(8))
    return bytes(text)


def attack_files(folder: Path, count: int) -> tuple[Counter[str], list[str]]:
    """Change files of shipped entries and look their keys up: what was served how often, and what is wrong.

    A config that another value turns into another one of its kernel's space is used, as one written by hand
    would be.
    """
    rng, told, wrong, watching = random.Random(0), Counter(), [], False
    shipped = {p.stem: json.loads(p.read_text()) for p in SHIPPED.glob("*.json") if p.stem in KERNELS}
    logging.disable()
    sys.addaudithook(lambda event, _: wrong.append(event) if watching and event in FORBIDDEN else None)
    store.folders = lambda: [folder]
    (folder / DEVICE.key).mkdir()
    os.chdir(folder)
    for number in range(count):
        kernel, kind = rng.choice(list(shipped)), rng.choice(KINDS)
        entries = rng.sample(shipped[kernel]["entries"], min(3, len(shipped[kernel]["entries"])))
        text = attacked(copy.deepcopy({**shipped[kernel], "runs": {}, "entries": entries}), kind, rng)
        path = folder / DEVICE.key / f"{kernel}.json"
        path.write_bytes(text)
        door.forget()
        told[kind] += 1
        for e in entries:
            call, batch = KERNELS[kernel].call.of(store.key_of(e["key"])), e["key"]["batch"]
            watching = True
            try:
                choice = door.choose(KERNELS[kernel], call, batch, DEVICE)
            except Exception as error:
                wrong.append(f"{number}: {kind}: {error!r}: {text[:2000]}")
                continue
            finally:
                watching = False
            is_default = choice == default_choice(KERNELS[kernel], call, DEVICE)
            told["default" if is_default else "stored"] += 1
            if not (is_default or (choice.stored and in_space(KERNELS[choice.kernel], choice, call, DEVICE))):
                wrong.append(f"{number}: {kind}: {choice}")
        if path.read_bytes() != text:
            wrong.append(f"{number}: {kind}: reading has changed the file")
    litter = {p.name for p in folder.rglob("*")} - {DEVICE.key, *(f"{kernel}.json" for kernel in KERNELS)}
    return told, [*wrong, *litter]


@pytest.mark.parametrize("count", [240, pytest.param(100_000, marks=pytest.mark.nightly("6 minutes"))])
def test_no_changed_file_raises_serves_what_no_kernel_takes_or_runs_code(count, tmp_path):
    # in a process of its own, which hears of all that Python does
    with FORK.Pool(1) as pool:
        told, wrong = pool.apply(attack_files, (tmp_path, count))
    assert wrong == []
    # attacks of every kind, and files that still serve beside those that do not
    assert min(told[kind] for kind in KINDS) > 15
    assert told["stored"] > 15
    assert told["default"] > 120


def write_on(folder: Path, worker: int, first: int, acknowledged: int) -> None:
    """Write an entry after another; its batch goes to the file descriptor once `merge` has returned."""
    for batch in range(first, 1 << 40):
        run = {"fingerprint": "0" * 16, "seed": worker}
        writer.merge(folder, KERNEL, device_block(DEVICE, "NVIDIA H200"), run, [entry(batch)])
        os.write(acknowledged, b"%d\n" % batch)


@pytest.mark.parametrize("kills", [8, pytest.param(400, marks=pytest.mark.nightly("half a minute"))])
@pytest.mark.usefixtures("fresh_caches")
def test_no_entry_of_a_killed_tuner_is_lost(kills, tmp_path):
    """Eight tuners write one file and are killed and restarted in turn."""
    rng, workers, lengths = random.Random(0), 8, []
    folder, log = tmp_path / "cache", tmp_path / "acknowledged"
    path = folder / DEVICE.key / f"{KERNEL}.json"
    acknowledged = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def begin(number: int) -> multiprocessing.Process:
        # a killed tuner's last entry may be there and not acknowledged: no number is used twice
        given = folder, number % workers, 1 + (number << 20), acknowledged
        tuner = FORK.Process(target=write_on, args=given, daemon=True)
        tuner.start()
        return tuner

    def end(tuner: multiprocessing.Process) -> None:
        os.kill(tuner.pid, signal.SIGKILL)
        tuner.join()

    tuners = [begin(k) for k in range(workers)]
    for kill in range(kills):
        time.sleep(rng.uniform(0, 0.05))
        end(tuners[kill % workers])
        # a reader sees a whole file, and never fewer entries than before
        store.read.cache_clear()
        lengths.append(len(store.read(folder, DEVICE.key, KERNEL)))
        tuners[kill % workers] = begin(workers + kill)
    for tuner in tuners:
        end(tuner)
    os.close(acknowledged)
    writer.merge(folder, KERNEL, device_block(DEVICE, "NVIDIA H200"), {"seed": -1}, [])
    there = {e["key"]["batch"] for e in json.loads(path.read_text())["entries"]}
    known = set(map(int, log.read_text().split()))
    assert len(known) > 8
    assert known <= there
    assert lengths == sorted(lengths)
    assert {p.name for p in path.parent.iterdir()} == {path.name, path.with_suffix(".lock").name}
