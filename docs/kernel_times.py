"""Tables of the times that `make tune` stored, each from tuning_cache/ alone.

A test fails when a kernel changes and its entries stay, so these times are those of the present kernels.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.sinkhorn.report import figure, power
from ci.gate.markdown import table
from helion_sinkhorn.lab.operators import KERNELS, OPERATORS

Entry = dict[str, Any]
CACHE = Path(__file__).resolve().parents[1] / "tuning_cache"
MISSING = "-"
VERSIONS = "3.6", "3.9"
STEADY = 0.1
"""The largest spread, between the quartiles and relative to the median, of a time that is compared."""
GPUS = "h200", "h100"
"""Whose times the tables have: a kernel's of the first with entries of it."""
SLOWER = 1.1
"""How many times as long a call may take under one version of Triton as under another."""
PLAIN = {"dtype": "float32", "first": "rows"}


def files(device: str = "*") -> list[tuple[Path, dict[str, Any]]]:
    """Every file of entries for a device, with what it holds."""
    every = [p for p in sorted(CACHE.glob(f"{device}/*.json")) if p.stem in KERNELS]
    return [(path, json.loads(path.read_text())) for path in every]


def timed(*gpus: str) -> Iterator[tuple[str, str, dict[str, Entry]]]:
    """A kernel, its key without the version, and by Triton's version the entry of the first of these GPUs."""
    first = {path.stem: (gpu, data) for gpu in reversed(gpus or GPUS) for path, data in files(gpu)}
    for kernel, (gpu, data) in sorted(first.items()):
        found: dict[str, dict[str, Entry]] = {}
        for entry in data["entries"]:
            if entry["evidence"] == "measured":
                key = ", ".join(f"{k}={v}" for k, v in sorted(entry["key"].items()) if k != "triton")
                date = data["runs"][entry["run"]]["utc"][:10]
                found.setdefault(key, {})[entry["key"]["triton"]] = {**entry, "gpu": gpu, "date": date}
        yield from ((kernel, key, by_version) for key, by_version in found.items())


def named(kernel: str, entry: Entry) -> str:
    """A kernel, with the GPU of an entry that is not of the first of GPUS."""
    return f"`{kernel}`" if entry["gpu"] == GPUS[0] else f"`{kernel}` ({entry['gpu'].upper()})"


def by_triton(by_version: dict[str, Entry]) -> dict[str, str]:
    """Two columns of times; versions without one have a mark."""
    return {f"Triton {v}": figure(by_version[v]["us"]) if v in by_version else MISSING for v in VERSIONS}


def tuned() -> str:
    """The times that the tuner stored on an H200 for float32 in the mHC form, those of the present source."""
    best: dict[tuple[int, int], dict[str, str]] = {}
    dates = set()
    for kernel, _, by_version in timed("h200"):
        for version, entry in by_version.items():
            key = entry["key"]
            if (
                kernel.startswith(("sinkhorn_f", "sinkhorn_b"))
                and {**PLAIN, "form": "deepseek"}.items() <= key.items()
            ):
                # a spread that is too large to compare the time is said
                spread = f" (spread {entry['spread']:.0%})" if entry["spread"] > STEADY else ""
                which = f"{kernel.split('_')[1]}, Triton {version}"
                best.setdefault((key["n"], key["batch"]), {})[which] = figure(entry["us"]) + spread
                dates.add(entry["date"])
    columns = [f"{which}, Triton {v}" for which in ("forward", "backward") for v in VERSIONS]
    rows = [
        {"n": n, "matrices": power(batch), **{c: row.get(c, MISSING) for c in columns}}
        for (n, batch), row in sorted(best.items())
    ]
    return (
        f"NVIDIA H200, float32, deepseek, T = 20, us of a call ({', '.join(sorted(dates))}).\n\n{table(rows)}"
    )


def versions() -> str:
    """How much longer each kernel takes under Triton 3.9 than under 3.6, each with its own entries."""
    old, new = VERSIONS
    ratios: dict[str, list[tuple[float, str]]] = {}
    for kernel, key, of in timed():
        if {*VERSIONS} <= of.keys() and all(entry["spread"] <= STEADY for entry in of.values()):
            ratios.setdefault(named(kernel, of[new]), []).append((of[new]["us"] / of[old]["us"], key))
    return table([
        {
            "kernel": kernel, "calls": len(found),
            f"{new} / {old}, median": f"{statistics.median(r for r, _ in found):.2f}",
            "smallest": f"{min(found)[0]:.2f}", "largest": f"{max(found)[0]:.2f}",
            f"{new} over {SLOWER}": sum(r > SLOWER for r, _ in found),
            f"{old} over {SLOWER}": sum(r * SLOWER < 1 for r, _ in found), "the largest is": max(found)[1],
        }
        for kernel, found in sorted(ratios.items())
    ])  # fmt: skip


def of_kernels(*words: str) -> str:
    """us of each stored call of some kernels, under both versions of Triton; field=heading: more columns."""
    columns = dict(word.split("=") for word in words if "=" in word)
    rows = []
    for kernel, _, by_version in timed():
        if kernel in words:
            entry = next(iter(by_version.values()))
            call = {heading: entry["key"].get(of, MISSING) or "none" for of, heading in columns.items()}
            rows.append({"kernel": named(kernel, entry), **call, **by_triton(by_version)})
    return table(rows)


def gradients() -> str:
    """us of the exact and the implicit backward of the log form in float32 on an H100 under Triton 3.6."""
    best: dict[tuple[int, int], dict[str, float]] = {}
    for kernel, _, by_version in timed("h100"):
        entry = by_version.get("3.6", {"key": {}})
        key = entry["key"]
        if (
            kernel.startswith(("sinkhorn_b", "sinkhorn_i"))
            and {**PLAIN, "form": "log"}.items() <= key.items()
        ):
            row = best.setdefault((key["n"], key["batch"]), {})
            which = "implicit" if "implicit" in kernel else "exact"
            row[which] = min(entry["us"], row.get(which, math.inf))
    return table([
        {
            "n": n, "matrices": power(batch), **{which: figure(us[which]) for which in ("exact", "implicit")},
            "exact / implicit": f"{us['exact'] / us['implicit']:.1f}",
        }
        for (n, batch), us in sorted(best.items())
        if len(us) == 2
    ])  # fmt: skip


def residual() -> str:
    """us of each kernel of the residual path for bfloat16 streams, n = 4, under both versions of Triton."""
    rows, every = [], list(timed())
    for operator in ("hc_split_sinkhorn", "hc_mixes", "hc_pre", "hc_post", "hc_site"):
        # mixes of a model are float32, whatever the streams are
        dtype = "float32" if operator == "hc_split_sinkhorn" else "bfloat16"
        for kernel in OPERATORS[operator].kernels:
            for by_version in (of for name, _, of in every if name == kernel):
                key = (by_version.get("3.6") or next(iter(by_version.values())))["key"]
                precise = key.get("precision", "float32") == "float32"
                if key["dtype"] == dtype and precise and key["batch"] in (128, 8192):
                    # hc_mixes counts the columns of all streams
                    width = key.get("columns", 0) // (4 if operator == "hc_mixes" else 1)
                    at = {"kernel": f"`{kernel}`", "C": width or "any", "tokens": key["batch"]}
                    rows.append({**at, **by_triton(by_version)})
    return table(rows)
