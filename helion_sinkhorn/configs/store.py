"""Finding and reading tuning_cache/<device>/<kernel>.json, without writing or locking."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs import settings

SCHEMA = 1
Key = tuple[tuple[str, Any], ...]
"""The key of a call without its batch: the fields of its operator by name, sorted."""
WORDS = {"measured": "measured", "compiled": "ranked"}
"""The words of pages for the evidence of an entry: timed on a GPU, or ranked by a score of machine code."""
log = logging.getLogger("helion_sinkhorn")


@dataclass(frozen=True)
class Entry:
    """One tuned key of one kernel on one device."""

    key: Key
    batch: int
    config: tuple[tuple[str, Any], ...]
    variant: tuple[tuple[str, Any], ...]
    evidence: str
    path: str
    triton: str = ""
    """The minor version of the Triton that compiled it, "3.6"; empty if the file does not say."""

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        evidence = WORDS.get(self.evidence, self.evidence)
        return f"{self.path} ({evidence}{f', Triton {self.triton}' if self.triton else ''})"


def installed(package: str) -> str:
    """The version of a package, without importing it; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def installed_triton() -> str:
    """The version of the installed Triton, without importing it; empty if there is none."""
    if importlib.util.find_spec("triton") is None:
        return ""
    if version := installed("triton"):
        return version
    # torch for ROCm brings it as pytorch-triton-rocm or triton-rocm
    names = importlib.metadata.packages_distributions().get("triton", [])
    return installed(names[0]) if names else ""


def minor(version: str) -> str:
    """The first two numbers of a version, "3.9"; empty for an empty one."""
    return ".".join(version.split(".")[:2])


def triton_minor() -> str:
    """The minor version of the installed Triton, "3.9"; empty if there is none."""
    return minor(installed_triton())


def triton_version() -> tuple[int, ...]:
    """`triton_minor` as numbers, (3, 9) of Triton 3.9; () where there is none."""
    return tuple(map(int, filter(None, triton_minor().split("."))))


def folders() -> list[Path]:
    """The folders of entries in order: the user's, then the package's."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "tuning_cache"
    if not shipped.is_dir():  # in a checkout the folder is beside the package
        shipped = package.parent / "tuning_cache"
    return [user_folder(settings.TUNING_DIR), shipped] if settings.TUNING_DIR else [shipped]


@functools.cache
def user_folder(named: str) -> Path:
    """The folder that HELION_SINKHORN_TUNING_DIR names; one warning if it is not a folder."""
    folder = os.path.expanduser(named)
    if not os.path.isdir(folder):
        log.warning(
            "HELION_SINKHORN_TUNING_DIR=%s is not a folder: only the shipped configs are used. "
            "Create it, or name another.", named,
        )  # fmt: skip
    return Path(folder)


def hashable(value: Any) -> Any:
    """Lists and dicts as tuples, so that they can be dictionary keys."""
    if isinstance(value, dict):
        return tuple(sorted((k, hashable(v)) for k, v in value.items()))
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def key_of(fields: dict[str, Any]) -> Key:
    """The Key of a stored entry's fields."""
    return hashable({name: value for name, value in fields.items() if name not in ("batch", "triton")})


class Keyed:
    """A dataclass whose fields are the key of its configs."""

    @property
    def key(self) -> Key:
        return key_of(vars(self))

    @classmethod
    def of(cls, key: Key):
        """The call with this key."""
        return cls(**dict(key))


def _is_setting(value: Any, lists: int = 2) -> bool:
    """Whether the value of an option is a value, a list, or a list for each loop, as in `loop_orders`."""
    if isinstance(value, list):
        return lists > 0 and all(_is_setting(v, lists - 1) for v in value)
    return not isinstance(value, dict)


def _entry(e: dict[str, Any], path: Path) -> Entry:
    key, config, variant, evidence = (e[name] for name in ("key", "config", "variant", "evidence"))
    for name, value in (("key", key), ("config", config), ("variant", variant)):
        if not isinstance(value, dict) or not all(map(_is_setting, value.values())):
            raise TypeError(f"{name} is {value!r:.80}")
    if not isinstance(evidence, str):
        raise TypeError(f"evidence is {evidence!r:.80}")
    batch = key["batch"]
    if type(batch) is not int or not 1 <= batch < 1 << 63:
        raise ValueError(f"batch is {batch!r:.80}")
    triton = key.get("triton", "")
    if not isinstance(triton, str):
        raise TypeError(f"triton is {triton!r:.80}")
    return Entry(key_of(key), batch, hashable(config), hashable(variant), evidence, str(path), triton)


def content(path: Path) -> Any:
    """The value in a JSON file; an OSError for a pipe too, or another file whose reading may wait."""
    if path.exists() and not path.is_file():
        raise OSError("not a regular file")
    return json.loads(path.read_bytes())


def is_current(data: dict[str, Any]) -> bool:
    """Whether a file is in the format of this version."""
    # 1.0 and True equal 1
    return type(data["schema"]) is int and data["schema"] == SCHEMA


def entries_of(data: dict[str, Any], path: Path) -> tuple[Entry, ...]:
    """The entries of a file of this version at <folder>/<device>/<kernel>.json; it may be anything else."""
    for name, stated, expected in (
        ("device", data["device"]["key"], path.parent.name),
        ("kernel", data["kernel"], path.stem),
    ):
        if stated != expected:
            raise ValueError(f"its {name} is {stated!r:.80}, and a file in this place needs {expected!r}")
    entries = tuple(_entry(e, path) for e in data["entries"])
    if len({(e.key, e.batch, e.triton) for e in entries}) < len(entries):
        raise ValueError("two entries for one key")
    return entries


@functools.cache
def read(folder: Path, device: str, kernel: str) -> tuple[Entry, ...]:
    """The entries of one file; none, with one warning, for a broken file, and none if there is no file."""
    path = folder / device / f"{kernel}.json"
    try:
        data = content(path)
        if not is_current(data):
            raise ValueError(f"schema {data['schema']!r:.80}, this version reads {SCHEMA}")
        return entries_of(data, path)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.warning(
            "%s is not a tuning file this version reads (%s: %s): the default config is used. "
            "Restore the file, or write it anew with `make tune DEVICE=%s KERNEL=%s`.",
            path, type(error).__name__, error, device, kernel,
        )  # fmt: skip
        return ()
