"""Writing tuning_cache/<device>/<kernel>.json: locked, merged, replaced in one step."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.atomic import locked, replace, target
from helion_sinkhorn.configs.store import SCHEMA, Key, key_of

log = logging.getLogger("helion_sinkhorn")
EVIDENCE = ("compiled", "measured")
"""Weakest first: an entry never replaces one of stronger evidence."""


def command(program: str, arguments: Sequence[str]) -> str:
    """A command line as data tells it: without --out, a folder of the machine it ran on."""
    kept = [a for a in arguments if not a.startswith("--out=")]
    if "--out" in kept:
        at = kept.index("--out")
        del kept[at : at + 2]
    return f"{program} {shlex.join(kept)}"


def run_id(run: dict[str, Any]) -> str:
    """The name of a run in the table of runs: a hash of what it says."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:12]


def identity(entry: dict[str, Any]) -> tuple[Key, int, str]:
    """What no two entries of a file share, in the order of the file."""
    return key_of(entry["key"]), entry["key"]["batch"], entry["key"].get("triton", "")


def load(path: Path) -> dict[str, Any] | None:
    """The whole file <folder>/<device>/<kernel>.json; None where there is none or it holds nothing to keep.

    Raises:
        ValueError: it is in the format of another version, whose fields this one would lose, or a link to
            a file of another kind.
        OSError: it cannot be read, or is no regular file.
    """
    try:
        data = store.content(path)
        current = store.is_current(data)
        if current:
            store.entries_of(data, path)
            # what cannot be sorted is not one operator's keys
            sorted(map(identity, data["entries"]))
            for entry in data["entries"]:
                data["runs"][entry["run"]], EVIDENCE.index(entry["evidence"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if path.is_symlink():
            raise ValueError(
                f"{path} is a link to {target(path)}, which is not a tuning file of this device and kernel "
                f"({type(error).__name__}: {error}): remove the link, or tune into another folder with --out"
            ) from error
        aside = unused(path.with_suffix(".broken"))
        os.replace(path, aside)
        log.warning(
            "%s was not a tuning file of this device and kernel (%s: %s): kept as %s and begun anew",
            path, type(error).__name__, error, aside,
        )  # fmt: skip
        return None
    if not current:
        raise ValueError(
            f"{path} has schema {data['schema']!r:.80}, this version writes {SCHEMA}: "
            "update helion_sinkhorn, or tune into another folder with --out"
        )
    return data


def unused(path: Path) -> Path:
    """The path, or the first of path.1, path.2, ... that is free."""
    names = itertools.chain([path], (path.with_name(f"{path.name}.{k}") for k in itertools.count(1)))
    return next(name for name in names if not os.path.lexists(name))


def merge(
    folder: Path, kernel: str, device: dict[str, Any], run: dict[str, Any], entries: Sequence[dict[str, Any]]
) -> Path:
    """Put entries of one run into <folder>/<device>/<kernel>.json and return its path.

    An entry replaces the one of its key, unless that was measured and this is not.  Safe for any
    number of processes at a time; a reader sees the old file or the new one.

    Raises:
        TypeError, ValueError: the entries are such as no reader takes; the file stays as it was.
    """
    path = folder / device["key"] / f"{kernel}.json"
    with locked(path):
        data = load(path) or {"runs": {}, "entries": [], "device": device}
        there, new = ({e["evidence"] for e in some} for some in (data["entries"], entries))
        if "measured" in there - new:
            # a driver reported it to those runs, and none to this
            device = data["device"]
        kept = {identity(e): e for e in data["entries"]}
        for entry in entries:
            old = kept.get(identity(entry))
            if old is None or EVIDENCE.index(old["evidence"]) <= EVIDENCE.index(entry["evidence"]):
                kept[identity(entry)] = {**entry, "run": run_id(run)}
        runs = {**data["runs"], run_id(run): run}
        used = {e["run"] for e in kept.values()}
        merged = {
            "schema": SCHEMA,
            "kernel": kernel,
            "device": device,
            "runs": {name: runs[name] for name in sorted(used)},
            "entries": [kept[name] for name in sorted(kept)],
        }
        content = text(merged)
        # the next writer would put aside what it cannot read, with all other entries
        store.entries_of(json.loads(content), path)
        replace(path, content)
    return path


def text(data: dict[str, Any]) -> str:
    """One line for each run and each entry: a change of one is a difference of one line."""

    def block(items: list[str], opening: str, closing: str) -> str:
        return opening + "".join(f"\n  {item}," for item in items).rstrip(",") + f"\n{closing}"

    runs = [f"{json.dumps(name)}: {json.dumps(run, sort_keys=True)}" for name, run in data["runs"].items()]
    return (
        f'{{\n"schema": {data["schema"]},\n"kernel": {json.dumps(data["kernel"])},\n'
        f'"device": {json.dumps(data["device"])},\n"runs": {block(runs, "{", "}")},\n'
        f'"entries": {block([json.dumps(e) for e in data["entries"]], "[", "]")}\n}}\n'
    )
