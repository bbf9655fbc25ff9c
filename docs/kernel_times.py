"""Tables of the times that `make tune` stored, each from tuning_cache/ alone.

A test fails when a kernel changes and its entries stay, so these times are those of the present kernels.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks.sinkhorn import report
from ci.gate.markdown import table
from helion_sinkhorn.operators import KERNELS, OPERATORS

CACHE = Path(__file__).resolve().parents[1] / "tuning_cache"
MISSING = "-"
STEADY = 0.1
"""The largest spread, between the quartiles and relative to the median, of a time that is compared."""
GPUS = "h200", "h100"
"""Whose times the tables have: a kernel's of the first with entries of it."""
SLOWER = 1.1
"""How many times as long a call may take under one version of Triton as under another."""


def files(device: str = "*") -> list[tuple[Path, dict[str, Any]]]:
    """Every file of entries for a device, with what it holds."""
    every = [p for p in sorted(CACHE.glob(f"{device}/*.json")) if p.stem in KERNELS]
    return [(path, json.loads(path.read_text())) for path in every]


def tuned() -> str:
    """The times that the tuner stored on an H200 for float32 in the mHC form, those of the present source."""
    best: dict[tuple[int, int], dict[str, str]] = {}
    dates = set()
    for kernel in ("sinkhorn_forward", "sinkhorn_backward", "sinkhorn_backward_history"):
        data = json.loads((CACHE / "h200" / f"{kernel}.json").read_text())
        for entry in data["entries"]:
            key = entry["key"]
            if (key["dtype"], key["form"], key["first"]) == ("float32", "deepseek", "rows"):
                which = f"{kernel.split('_')[1]}, Triton {key['triton']}"
                best.setdefault((key["n"], key["batch"]), {})[which] = stored(entry)
                dates.add(data["runs"][entry["run"]]["utc"][:10])
    columns = sorted({c for row in best.values() for c in row}, key=lambda c: (c[0] != "f", c))
    rows = [
        {"n": n, "matrices": report.power(batch),
         **{c: row.get(c, MISSING) for c in columns}}
        for (n, batch), row in sorted(best.items())
    ]  # fmt: skip
    return (
        f"NVIDIA H200, float32, deepseek, T = 20, us of a call ({', '.join(sorted(dates))}).\n\n{table(rows)}"
    )


def stored(entry: dict[str, Any]) -> str:
    """A time, with its spread where that is too large to compare it."""
    spread = f" (spread {entry['spread']:.0%})" if entry["spread"] > STEADY else ""
    return report.figure(entry["us"]) + spread


def timed(gpus: tuple[str, ...] = GPUS) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """(kernel, its key without the version) -> version of Triton -> the entry of the first of these GPUs."""
    first = {path.stem: (gpu, data) for gpu in reversed(gpus) for path, data in files(gpu)}
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for kernel, (gpu, data) in sorted(first.items()):
        for entry in data["entries"]:
            if entry["evidence"] == "measured":
                names = {k: v for k, v in entry["key"].items() if k != "triton"}
                key = kernel, ", ".join(f"{k}={v}" for k, v in sorted(names.items()))
                found.setdefault(key, {})[entry["key"]["triton"]] = {**entry, "gpu": gpu}
    return found


def named(kernel: str, entry: dict[str, Any]) -> str:
    """A kernel, with the GPU of an entry that is not of the first of GPUS."""
    return f"`{kernel}`" if entry["gpu"] == GPUS[0] else f"`{kernel}` ({entry['gpu'].upper()})"


def versions() -> str:
    """How much longer each kernel takes under Triton 3.9 than under 3.6, each with its own entries."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    for (kernel, key), by_version in timed().items():
        steady = all(entry["spread"] <= STEADY for entry in by_version.values())
        if steady and {"3.6", "3.9"} <= by_version.keys():
            ratio = by_version["3.9"]["us"] / by_version["3.6"]["us"]
            ratios.setdefault(named(kernel, by_version["3.9"]), []).append((ratio, key))
    return table([
        {
            "kernel": kernel, "calls": len(found),
            "3.9 / 3.6, median": f"{statistics.median(r for r, _ in found):.2f}",
            "smallest": f"{min(found)[0]:.2f}", "largest": f"{max(found)[0]:.2f}",
            f"3.9 over {SLOWER}": sum(r > SLOWER for r, _ in found),
            f"3.6 over {SLOWER}": sum(r * SLOWER < 1 for r, _ in found), "the largest is": max(found)[1],
        }
        for kernel, found in sorted(ratios.items())
    ])  # fmt: skip


def of_kernels(names: tuple[str, ...], columns: dict[str, str]) -> str:
    """us of each stored call of some kernels, under both versions of Triton; columns: field -> heading."""
    rows = []
    for (kernel, _), by_version in timed().items():
        if kernel in names:
            entry = next(iter(by_version.values()))
            us = {v: report.figure(e["us"]) for v, e in by_version.items()}
            call = {heading: entry["key"].get(f, MISSING) or "none" for f, heading in columns.items()}
            rows.append({"kernel": named(kernel, entry), **call, **by_triton(us)})
    return table(rows)


def by_triton(us: dict[str, str]) -> dict[str, str]:
    """Two columns of times; versions without one have a mark."""
    return {f"Triton {version}": us.get(version, MISSING) for version in ("3.6", "3.9")}


DIFFERENTIATED = (
    "sinkhorn_backward", "sinkhorn_backward_history", "sinkhorn_implicit_cg", "sinkhorn_implicit_direct"
)  # fmt: skip


def gradients() -> str:
    """us of the exact and the implicit backward of the log form in float32 on an H100 under Triton 3.6."""
    best: dict[tuple[int, int], dict[str, float]] = {}
    for (kernel, _), by_version in timed(("h100",)).items():
        key = by_version.get("3.6", {}).get("key", {})
        call = key.get("dtype"), key.get("form"), key.get("first")
        which = "exact" if kernel.startswith("sinkhorn_backward") else "implicit"
        if kernel in DIFFERENTIATED and call == ("float32", "log", "rows"):
            row = best.setdefault((key["n"], key["batch"]), {})
            row[which] = min(by_version["3.6"]["us"], row.get(which, math.inf))
    return table([
        {
            "n": n, "matrices": report.power(batch), "exact": report.figure(us["exact"]),
            "implicit": report.figure(us["implicit"]),
            "exact / implicit": f"{us['exact'] / us['implicit']:.1f}",
        }
        for (n, batch), us in sorted(best.items())
        if len(us) == 2
    ])  # fmt: skip


def residual() -> str:
    """us of each kernel of the residual path for bfloat16 streams, n = 4, under both versions of Triton."""
    rows, every = [], timed()
    for operator in ("hc_split_sinkhorn", "hc_mixes", "hc_pre", "hc_post", "hc_site"):
        for kernel in OPERATORS[operator].kernels:
            for (name, _), by_version in every.items():
                entry = by_version.get("3.6") or next(iter(by_version.values()))
                key = entry["key"]
                # mixes of a model are float32, whatever the streams are
                dtype = "float32" if operator == "hc_split_sinkhorn" else "bfloat16"
                precise = key.get("precision", "float32") == "float32"
                if name == kernel and key["dtype"] == dtype and precise and key["batch"] in (128, 8192):
                    # hc_mixes counts the columns of all streams
                    width = key.get("columns", 0) // (4 if operator == "hc_mixes" else 1)
                    us = {v: report.figure(e["us"]) for v, e in by_version.items()}
                    rows.append({
                        "kernel": f"`{kernel}`", "C": width or "any", "tokens": key["batch"], **by_triton(us),
                    })  # fmt: skip
    return table(rows)
