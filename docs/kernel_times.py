"""Tables of the times that `make tune` stored, each from tuning_cache/ alone.

A test fails when a kernel changes and its entries stay, so these times belong to the present kernels.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pandas

from benchmarks.sinkhorn.report import figure, power
from ci.gate.markdown import table
from helion_sinkhorn.lab.operators import KERNELS

CACHE = Path(__file__).resolve().parents[1] / "tuning_cache"
OLD, NEW = "3.6", "3.9"
SLOWER = 1.1
"""How many times as long a call may take under one version of Triton as under another."""
PLAIN = "dtype == 'float32' and first == 'rows' and "


def files(device: str = "*") -> list[tuple[Path, dict[str, Any]]]:
    """Every file of entries for a device, with what it holds."""
    every = [p for p in sorted(CACHE.glob(f"{device}/*.json")) if p.stem in KERNELS]
    return [(path, json.loads(path.read_text())) for path in every]


@functools.cache
def timed(gpu: str) -> pandas.DataFrame:
    """A row for each measured entry of a GPU; its columns are the fields of its key too."""
    rows = []
    for path, data in files(gpu):
        for entry in data["entries"]:
            if entry["evidence"] == "measured":
                key = dict(sorted(entry["key"].items()))
                call = ", ".join(f"{k}={v}" for k, v in key.items() if k != "triton")
                rows.append({"kernel": path.stem, "call": call, "us": entry["us"], **key})
    # numbers of a key stay what they are where others have none
    return pandas.DataFrame(rows, dtype=object)


def versions() -> str:
    """How much longer the kernels take under Triton 3.9 than under 3.6, each tuned there."""
    rows = timed("h200")
    both = rows.pivot(index=["kernel", "call"], columns="triton", values="us")
    ratios = (both[NEW] / both[OLD]).dropna().astype(float)
    return (
        f"Of {len(ratios)} calls of kernels that are tuned under both on an H200, {(ratios > SLOWER).sum()} "
        f"take more than {SLOWER} times as long under {NEW}, and {(ratios * SLOWER < 1).sum()} under {OLD}; "
        f"the median of the ratios is {ratios.median():.2f}, the extremes are {ratios.min():.2f} and "
        f"{ratios.max():.2f}."
    )


def gradients() -> str:
    """Times of the exact and the implicit backward of the log form in float32 on an H100 under Triton 3.6."""
    rows = timed("h100").query(
        f"{PLAIN} form == 'log' and triton == '{OLD}' and kernel != 'sinkhorn_forward'"
    )
    names = rows.kernel.str.contains("implicit").map({True: "implicit", False: "exact"})
    us = rows.groupby(["n", "batch", names]).us.min().unstack().dropna()
    return table(
        {"n": n, "matrices": power(batch), "exact": figure(r.exact), "implicit": figure(r.implicit),
         "exact / implicit": f"{r.exact / r.implicit:.1f}"}
        for (n, batch), r in us.iterrows() if batch in (128, 1 << 13, 1 << 17)
    )  # fmt: skip
