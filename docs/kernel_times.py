"""Tables of the times that `make tune` stored, each from tuning_cache/ alone.

A test fails when a kernel changes and its entries stay, so these times are those of the present kernels.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pandas

from benchmarks.sinkhorn.report import figure, power
from ci.gate.markdown import table
from helion_sinkhorn.lab.operators import KERNELS, OPERATORS

CACHE = Path(__file__).resolve().parents[1] / "tuning_cache"
MISSING = "-"
VERSIONS = OLD, NEW = "3.6", "3.9"
STEADY = 0.1
"""The largest spread, between the quartiles and relative to the median, of a time that is compared."""
GPUS = "h200", "h100"
"""Whose times the tables have: a kernel's of the first with entries of it."""
SLOWER = 1.1
"""How many times as long a call may take under one version of Triton as under another."""
PLAIN = "dtype == 'float32' and first == 'rows' and "


def files(device: str = "*") -> list[tuple[Path, dict[str, Any]]]:
    """Every file of entries for a device, with what it holds."""
    every = [p for p in sorted(CACHE.glob(f"{device}/*.json")) if p.stem in KERNELS]
    return [(path, json.loads(path.read_text())) for path in every]


@functools.cache
def timed(*gpus: str) -> pandas.DataFrame:
    """A row for each measured entry of the first of these GPUs with the kernel; columns: its key's fields."""
    first = {path.stem: (gpu, data) for gpu in reversed(gpus or GPUS) for path, data in files(gpu)}
    rows = []
    for kernel, (gpu, data) in sorted(first.items()):
        name = f"`{kernel}`" if gpu == GPUS[0] else f"`{kernel}` ({gpu.upper()})"
        for entry in data["entries"]:
            if entry["evidence"] == "measured":
                call = {k: v for k, v in sorted(entry["key"].items()) if k != "triton"}
                said = ", ".join(f"{k}={v}" for k, v in call.items())
                date = data["runs"][entry["run"]]["utc"][:10]
                kept = {"us": entry["us"], "spread": entry["spread"], "date": date}
                triton = entry["key"]["triton"]
                rows.append({"kernel": kernel, "named": name, "call": said, "triton": triton, **kept, **call})
    # numbers of a key stay what they are where others have none
    return pandas.DataFrame(rows, dtype=object)


def by_triton(us: dict[str, str]) -> dict[str, str]:
    """Two columns of times; versions without one have a mark."""
    return {f"Triton {version}": us.get(version, MISSING) for version in VERSIONS}


def calls(rows: pandas.DataFrame) -> list[tuple[pandas.Series, dict[str, str]]]:
    """Each call as its first entry has it, and its times by version of Triton."""
    groups = rows.groupby(["kernel", "call"], sort=False)
    return [(of.iloc[0], dict(zip(of.triton, map(figure, of.us), strict=True))) for _, of in groups]


def tuned() -> str:
    """The times that the tuner stored on an H200 for float32 in the mHC form, those of the present source."""
    rows = timed("h200").query(f"{PLAIN} form == 'deepseek'")
    rows = rows[rows.kernel.str.match("sinkhorn_[fb]")]
    best: dict[tuple[int, int], dict[str, str]] = {}
    for r in rows.itertuples():
        # a spread that is too large to compare the time is said
        spread = f" (spread {r.spread:.0%})" if r.spread > STEADY else ""
        which = f"{r.kernel.split('_')[1]}, Triton {r.triton}"
        best.setdefault((r.n, r.batch), {})[which] = figure(r.us) + spread
    columns = [f"{which}, Triton {v}" for which in ("forward", "backward") for v in VERSIONS]
    lines = [
        {"n": n, "matrices": power(batch), **{c: of.get(c, MISSING) for c in columns}}
        for (n, batch), of in sorted(best.items())
    ]
    dates = ", ".join(sorted(set(rows.date)))
    return f"NVIDIA H200, float32, deepseek, T = 20, us of a call ({dates}).\n\n{table(lines)}"


def versions() -> str:
    """How much longer each kernel takes under Triton 3.9 than under 3.6, each with its own entries."""
    rows = timed()
    unsteady = set(rows[rows.spread > STEADY].call + rows[rows.spread > STEADY].kernel)
    rows = rows[~(rows.call + rows.kernel).isin(unsteady)]
    both = rows.pivot(index=["named", "call"], columns="triton", values="us").dropna(subset=[*VERSIONS])
    lines = []
    for kernel, ratio in (both[NEW] / both[OLD]).groupby(level="named"):
        largest = max((r, call) for (_, call), r in ratio.items())
        lines.append({
            "kernel": kernel, "calls": len(ratio), f"{NEW} / {OLD}, median": f"{ratio.median():.2f}",
            "smallest": f"{ratio.min():.2f}", "largest": f"{largest[0]:.2f}",
            f"{NEW} over {SLOWER}": (ratio > SLOWER).sum(),
            f"{OLD} over {SLOWER}": (ratio * SLOWER < 1).sum(), "the largest is": largest[1],
        })  # fmt: skip
    return table(lines)


def of_kernels(*words: str) -> str:
    """us of each stored call of some kernels, under both versions of Triton; field=heading: more columns."""
    columns = dict(word.split("=") for word in words if "=" in word)
    rows = timed()
    return table(
        {"kernel": r.named, **{title: r[of] or "none" for of, title in columns.items()}, **by_triton(us)}
        for r, us in calls(rows[rows.kernel.isin(words)].fillna(MISSING))
    )


def gradients() -> str:
    """us of the exact and the implicit backward of the log form in float32 on an H100 under Triton 3.6."""
    rows = timed("h100").query(
        f"{PLAIN} form == 'log' and triton == '{OLD}' and kernel != 'sinkhorn_forward'"
    )
    names = rows.kernel.str.contains("implicit").map({True: "implicit", False: "exact"})
    us = rows.groupby(["n", "batch", names]).us.min().unstack().dropna()
    return table(
        {"n": n, "matrices": power(batch), "exact": figure(r.exact), "implicit": figure(r.implicit),
         "exact / implicit": f"{r.exact / r.implicit:.1f}"}
        for (n, batch), r in us.iterrows()
    )  # fmt: skip


def residual() -> str:
    """us of each kernel of the residual path for bfloat16 streams, n = 4, under both versions of Triton."""
    lines, every = [], timed().query("batch in (128, 8192) and precision != 'tf32'")
    for operator in ("hc_split_sinkhorn", "hc_mixes", "hc_pre", "hc_post", "hc_site"):
        # mixes of a model are float32, whatever the streams are
        rows = every[every.dtype == ("float32" if operator == "hc_split_sinkhorn" else "bfloat16")]
        for kernel in OPERATORS[operator].kernels:
            for r, us in calls(rows[rows.kernel == kernel]):
                # hc_mixes counts the columns of all streams
                width = (
                    0 if pandas.isna(r["columns"]) else r["columns"] // (4 if operator == "hc_mixes" else 1)
                )
                lines.append(
                    {"kernel": f"`{kernel}`", "C": width or "any", "tokens": r.batch, **by_triton(us)}
                )
    return table(lines)
