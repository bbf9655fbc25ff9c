"""Attacks on the tuning cache: files changed at random, and tuners killed while they write.

    python tests/configs/cache_attack.py files --count 100000     about 6 minutes
    python tests/configs/cache_attack.py tuners --kills 400       about 30 s

Each prints one line of JSON; the exit status is 1 where something is not as it should be.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.tuning.provenance import device_block
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import default_choice, in_space

DEVICE = DEVICES["h200"]
SHIPPED = store.folders()[-1]
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


# ------------------------------------------------------------------------------------------ files


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    yield path
    if isinstance(data, (dict, list)):
        for k, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(inner, (*path, k))


def value(rng: random.Random) -> Any:
    # a copy: lists and objects among them are changed later
    return copy.deepcopy(rng.choice(VALUES))


def changed_value(data: Any, rng: random.Random) -> Any:
    """Another value, a name more, or one name or item less, in one place."""
    path = rng.choice(list(places(data)))
    if not path:
        return value(rng)
    parent = data
    for k in path[:-1]:
        parent = parent[k]
    how = rng.randrange(4)
    if how == 0:
        del parent[path[-1]]
    elif how == 1 and isinstance(parent, dict):
        parent[rng.choice(NAMES)] = parent.pop(path[-1])
    elif how == 2 and isinstance(parent, dict):
        parent[rng.choice(NAMES)] = value(rng)
    else:
        parent[path[-1]] = value(rng)
    return data


def attacked(data: dict[str, Any], rng: random.Random) -> tuple[str, bytes]:
    """(the kind of attack, the file it leaves)."""
    kind = rng.choice(("truncated", "bits", "bytes", "value", "values", "twice"))
    if kind in ("value", "values"):
        for _ in range(1 if kind == "value" else rng.randint(2, 6)):
            if isinstance(data, (dict, list)):
                data = changed_value(data, rng)
        return kind, json.dumps(data).encode()
    text = bytearray(json.dumps(data).encode())
    at = rng.randrange(len(text))
    if kind == "truncated":
        del text[at:]
    elif kind == "bits":
        for _ in range(rng.randint(1, 8)):
            text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
    elif kind == "bytes":
        text[at : at + rng.randrange(8)] = rng.randbytes(rng.randrange(8))
    else:
        text[at:at] = text[rng.randrange(len(text)) :]
    return kind, bytes(text)


def attack_files(count: int, seed: int) -> dict[str, Any]:
    """Changed files of shipped entries, and the entries that their keys then get.

    A config that another value turns into another one of its kernel's space is used, as one written by hand
    would be: `another` counts these.  `wrong` counts what no attack may do.
    """
    rng = random.Random(seed)
    paths = {k: SHIPPED / DEVICE.key / f"{k}.json" for k in KERNELS}
    shipped = {k: json.loads(path.read_text()) for k, path in paths.items() if path.exists()}
    warned, forbidden, told, watching = [], Counter(), Counter(), False
    # a filter that returns None keeps the record from being printed
    logging.getLogger("helion_sinkhorn").addFilter(warned.append)
    sys.addaudithook(lambda event, _: forbidden.update([event]) if watching and event in FORBIDDEN else None)
    with tempfile.TemporaryDirectory() as folder:
        store.folders = lambda: [Path(folder)]
        os.chdir(folder)
        for number in range(count):
            kernel = rng.choice(list(shipped))
            data = {**shipped[kernel], "runs": {}}
            data["entries"] = rng.sample(data["entries"], min(3, len(data["entries"])))
            keys = [e["key"] for e in data["entries"]]
            calls = [(KERNELS[kernel].call.of(store.key_of(key)), key["batch"]) for key in keys]
            right = {(store.hashable(e["config"]), store.hashable(e["variant"])) for e in data["entries"]}
            kind, text = attacked(json.loads(json.dumps(data)), rng)
            path = Path(folder, DEVICE.key, f"{kernel}.json")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text)
            door.forget()
            watching = True
            try:
                served = [(call, door.choose(KERNELS[kernel], call, batch, DEVICE)) for call, batch in calls]
            except Exception as error:
                told["wrong"] += 1
                print(f"{number}: {kind}: {type(error).__name__}: {error}", text[:2000], file=sys.stderr)
                continue
            finally:
                watching = False
            for call, choice in served:
                default = default_choice(KERNELS[kernel], call, DEVICE)
                if choice == default:
                    told["default"] += 1
                elif not (choice.stored and in_space(KERNELS[choice.kernel], choice, call, DEVICE)):
                    told["wrong"] += 1
                    print(f"{number}: {kind}: {choice}", file=sys.stderr)
                else:
                    told["stored" if (choice.config, choice.variant) in right else "another"] += 1
            told[kind] += 1
        litter = {p.name for p in Path(folder).rglob("*")} - {DEVICE.key, *(f"{k}.json" for k in KERNELS)}
    told["wrong"] += len(litter) + sum(forbidden.values())
    return {
        "files": count, "seed": seed, **dict(sorted(told.items())), "warnings": len(warned),
        "events": dict(forbidden), "litter": sorted(litter),
    }  # fmt: skip


# ----------------------------------------------------------------------------------------- tuners

KERNEL = "sinkhorn_forward"
KEY = {"form": "deepseek", "first": "rows", "dtype": "float32", "n": 4, "m": 4, "iters": 20}


def write_on(folder: Path, worker: int, first: int, acknowledged: int) -> None:
    """Write an entry after another; its batch goes to the file descriptor once `merge` has returned."""
    for batch in range(first, 1 << 40):
        entry = {
            "key": {**KEY, "batch": batch}, "config": {"block_sizes": [128], "num_warps": 4},
            "variant": {"thread": [4, 4], "paired": False, "pivoted": True, "ordered": False},
            "evidence": "measured",
        }  # fmt: skip
        run = {"fingerprint": "0" * 16, "seed": worker}
        writer.merge(folder, KERNEL, device_block(DEVICE, "NVIDIA H200"), run, [entry])
        os.write(acknowledged, b"%d\n" % batch)


def attack_tuners(kills: int, seed: int, workers: int = 8) -> dict[str, Any]:
    """Several tuners write one file and are killed and restarted in turn; reports what they lost."""
    rng, context = random.Random(seed), multiprocessing.get_context("fork")
    torn = 0
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name, "cache"), Path(name, "acknowledged")
        path = folder / DEVICE.key / f"{KERNEL}.json"
        acknowledged = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

        def begin(number: int) -> multiprocessing.Process:
            # a killed tuner's last entry may be there and not acknowledged: no number is used twice
            given = folder, number % workers, 1 + (number << 20), acknowledged
            tuner = context.Process(target=write_on, args=given)
            tuner.start()
            return tuner

        tuners = [begin(k) for k in range(workers)]
        for kill in range(kills):
            time.sleep(rng.uniform(0, 0.05))
            one = kill % workers
            os.kill(tuners[one].pid, signal.SIGKILL)
            tuners[one].join()
            store.read.cache_clear()
            torn += path.exists() and not store.read(folder, DEVICE.key, KERNEL)
            tuners[one] = begin(workers + kill)
        for tuner in tuners:
            os.kill(tuner.pid, signal.SIGKILL)
            tuner.join()
        os.close(acknowledged)
        writer.merge(folder, KERNEL, device_block(DEVICE, "NVIDIA H200"), {"seed": -1}, [])
        there = {e["key"]["batch"] for e in json.loads(path.read_text())["entries"]}
        known = set(map(int, log.read_text().split()))
        left = {p.name for p in path.parent.iterdir()} - {path.name, path.with_suffix(".lock").name}
    return {
        "kills": kills + workers, "acknowledged": len(known), "wrong": len(known - there) + torn + len(left),
        "lost": len(known - there), "torn": torn, "left": sorted(left),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("files", "tuners"))
    parser.add_argument("--count", type=int, default=100_000, help="files")
    parser.add_argument("--kills", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.perf_counter()
    attack, count = (
        (attack_files, options.count) if options.what == "files" else (attack_tuners, options.kills)
    )
    told = attack(count, options.seed)
    print(json.dumps({**told, "seconds": round(time.perf_counter() - begin)}))
    return 1 if told.get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
