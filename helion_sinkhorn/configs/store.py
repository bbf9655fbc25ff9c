"""tuning_cache/<device>/<kernel>.json: where it is and how it is read.  Reading never writes or locks."""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helion_sinkhorn import settings

SCHEMA = 1
Key = tuple[tuple[str, Any], ...]
"""What a call is looked up by, without its batch: the fields of its operator by name, sorted."""
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


def folders() -> list[Path]:
    """Where entries are looked for, in order: the user's folder, then the shipped one."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "tuning_cache"
    if not shipped.is_dir():  # a checkout: the folder stands beside the package
        shipped = package.parent / "tuning_cache"
    return [Path(settings.TUNING_DIR), shipped] if settings.TUNING_DIR else [shipped]


def frozen(value: Any) -> Any:
    """Lists and dicts as tuples, so that an entry can be a dictionary key."""
    if isinstance(value, dict):
        return tuple(sorted((k, frozen(v)) for k, v in value.items()))
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def key_of(fields: dict[str, Any]) -> Key:
    """The Key of a stored entry's fields."""
    return frozen({name: value for name, value in fields.items() if name != "batch"})


class Keyed:
    """A dataclass whose fields, with their names, are the key of its configs."""

    @property
    def key(self) -> Key:
        """What a stored entry is found by."""
        return key_of(vars(self))

    @classmethod
    def of(cls, key: Key):
        """The call with this key."""
        return cls(**dict(key))


def _entry(e: dict[str, Any], path: Path) -> Entry:
    batch, config, variant, evidence = e["key"]["batch"], e["config"], e["variant"], e["evidence"]
    for name, value, kind in (
        ("batch", batch, int),
        ("config", config, dict),
        ("variant", variant, dict),
        ("evidence", evidence, str),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r}")
    if not 1 <= batch < 1 << 63:
        raise ValueError(f"batch is {batch}")
    return Entry(key_of(e["key"]), batch, frozen(config), frozen(variant), evidence, str(path))


@functools.cache
def read(folder: Path, device: str, kernel: str) -> tuple[Entry, ...]:
    """The entries of one file, none where there is no file; a broken one is one warning and no entries."""
    path = folder / device / f"{kernel}.json"
    try:
        data = json.loads(path.read_bytes())
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}, this version reads {SCHEMA}")
        entries = tuple(_entry(e, path) for e in data["entries"])
        if len({(e.key, e.batch) for e in entries}) < len(entries):
            raise ValueError("two entries for one key")
        return entries
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.warning(
            "%s is not a tuning file this version reads (%s): the default config serves. "
            "Restore the file, or write it anew with `make tune DEVICE=%s KERNEL=%s`.",
            path, error, device, kernel,
        )  # fmt: skip
        return ()
