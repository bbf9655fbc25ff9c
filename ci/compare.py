"""Join the artefacts of several devices: python -m ci.compare accuracy-*.json [--out FOLDER]

The command prints each device's error in units of its budget, and how far devices are apart, beside the gap
that models of NVIDIA's and AMD's arithmetic have, and writes compare.md.  Gaps are only reported: the exit
status is 1 if a device exceeds its own limits, and 2 if artefacts cannot be compared.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import sys
from pathlib import Path


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ci.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artefacts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("accuracy"), help="folder of compare.md")
    return parser


if __name__ == "__main__":
    # the next lines import torch, which takes seconds
    make_parser().parse_args()

import numpy as np
import torch

from ci.accuracy import SCHEMA, failures
from ci.gate import gate
from ci.gate import markdown as report

Artefact = dict[str, dict]


def load(path: Path) -> Artefact:
    """An artefact of ci/accuracy.py."""
    artefact = json.loads(path.read_text())
    if artefact.get("schema") != SCHEMA:
        raise ValueError(
            f"{path} has schema {artefact.get('schema')!r}, this version reads {SCHEMA}: run it anew"
        )
    return artefact


def served(artefact: Artefact, workload: str, of: str) -> dict | None:
    """The record of the result of the config that calls get."""
    records = artefact["workloads"].get(workload, {}).get("results", [])
    return next((r for r in records if r["of"] == of and r["served"]), None)


def sample(record: dict, result: dict) -> torch.Tensor:
    """The first matrices of a stored result."""
    arguments = record["arguments"]
    # the oldest artefacts, of `sinkhorn` only, have neither dtype nor shape
    dtype = getattr(torch, result.get("dtype") or arguments["dtype"])
    bits = np.int32 if dtype == torch.float32 else np.int16
    flat = torch.from_numpy(np.frombuffer(base64.b64decode(result["sample"]), bits).copy())
    shape = result.get("shape") or (arguments["n"], arguments["m"])
    return flat.view(dtype).view(-1, *shape)


def verdict(result: dict) -> bool:
    """The gate's verdict, computed again from the artefact's numbers."""
    inside = result["worst"] <= 1 and result["rms"] <= 1 and abs(result["bias"]) <= result["bias_limit"]
    return inside and all(result["reproducible"].values())


def compared(artefacts: dict[str, Artefact]) -> list[tuple[str, str]]:
    """The (workload, result) pairs that calls return on any device, in order."""
    return list(dict.fromkeys(
        (name, result["of"])
        for artefact in artefacts.values()
        for name, record in artefact["workloads"].items()
        for result in record.get("results", [])
        if result["served"]
    ))  # fmt: skip


def errors(artefacts: dict[str, Artefact]) -> list[dict[str, object]]:
    """One row for each workload and result: worst and rms of every device, of Inductor, of the model."""
    rows = []
    for name, of in compared(artefacts):
        row: dict[str, object] = {"workload": name, "result": of}
        for device, artefact in artefacts.items():
            result = served(artefact, name, of)
            other = artefact["workloads"].get(name, {}).get("inductor", {}).get(of)
            row[f"{device}: worst, rms"] = f"{result['worst']:.3f}, {result['rms']:.3f}" if result else "-"
            row[f"{device}: Inductor"] = f"{other['worst']:.3f}, {other['rms']:.3f}" if other else "-"
        model = next(r["model"] for a in artefacts.values() if "model" in (r := a["workloads"].get(name, {})))
        for vendor, results in model.items():
            row[f"{vendor}, modelled"] = f"{results[of]['worst']:.3f}, {results[of]['rms']:.3f}"
        rows.append(row)
    return rows


def gaps(artefacts: dict[str, Artefact]) -> list[dict[str, object]]:
    """One row for each workload and result: distance of every two devices, and of the modelled vendors."""
    rows = []
    for name, of in compared(artefacts):
        row: dict[str, object] = {"workload": name, "result": of}
        for (one, a), (two, b) in itertools.combinations(artefacts.items(), 2):
            records = [x["workloads"].get(name, {}) for x in (a, b)]
            results = [served(x, name, of) for x in (a, b)]
            if not all(results):
                text = "-"
            elif records[0]["inputs"] != records[1]["inputs"]:
                text = "other inputs"
            elif not all("sample" in r for r in results):
                text = "same bits" if results[0]["digest"] == results[1]["digest"] else "not kept"
            else:
                gap = gate.gap(of, *(sample(*pair) for pair in zip(records, results, strict=True)))
                text = described(gap) + (
                    ", same bits" if results[0]["digest"] == results[1]["digest"] else ""
                )
            row[f"{one} - {two}"] = text
        model = next(r for a in artefacts.values() if "model_gap" in (r := a["workloads"].get(name, {})))
        row["nvidia - amd, modelled"] = described(model["model_gap"][of])
        rows.append(row)
    return rows


def described(gap: dict[str, float]) -> str:
    return (
        f"{gap['largest_ulps']:.1f} ulp (mean {gap['mean_ulps']:.2f}), "
        f"{gap['largest_relative']:.1e}, {100 * gap['flips']:.2g} % flips"
    )


def called(device: dict) -> str:
    """A column's name, which says if the results were emulated on a CPU (ci/emulate.py)."""
    return f"{device['key']}, emulated" if device.get("emulated") else device["key"]


def conditions(artefact: Artefact) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in artefact["versions"].items() if v)
    return f"{artefact['device']['name']}; {versions}; {artefact['utc'][:10]}"


def main() -> int:
    options = make_parser().parse_args()
    try:
        loaded = [load(path) for path in options.artefacts]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    keys = [called(a["device"]) for a in loaded]
    artefacts = {
        key if keys.count(key) == 1 else f"{key} ({path.parent.name or path.stem})": a
        for key, path, a in zip(keys, options.artefacts, loaded, strict=True)
    }
    if len(artefacts) < len(loaded):
        print(
            f"two artefacts are called the same: put each of {', '.join(keys)} in its own folder",
            file=sys.stderr,
        )
        return 2
    text = [f"- {device}: {conditions(artefact)}" for device, artefact in artefacts.items()]
    text += ["", "Errors, worst and rms, limit 1:", "", report.table(errors(artefacts))]
    text += ["", "Gaps, reported only:", "", report.table(gaps(artefacts))]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "compare.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))
    wrong = [
        f"{device}: {name}: {sentence}"
        for device, artefact in artefacts.items()
        for name, record in artefact["workloads"].items()
        for sentence in (
            failures(record)
            or [f"{r['kernel']}: beyond a limit" for r in record["results"] if not verdict(r)]
        )
    ]
    print(*wrong, sep="\n", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
