"""An artefact as the repository keeps it: one line a result, five digits, no samples.

    python -m ci.gate.kept accuracy/accuracy-h200.json docs/accuracy/h200.json

A run of some workloads (`make accuracy ARGS="--workloads ..."`) replaces these in a file that has more.
`make compare` compares devices by the samples, which are in the full artefact that CI uploads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RUN = "commit", "utc", "command", "versions"
"""Facts of a run that each workload gets if an artefact has workloads of several runs."""


def rounded(value: Any) -> Any:
    """The record with five digits of each float."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items() if k != "sample"}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def text(artefact: dict[str, Any]) -> str:
    """JSON with one line for each fact of the run, each workload and each of its results."""
    artefact = rounded(artefact)
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in artefact.items() if k != "workloads"]
    workloads = []
    for name, record in artefact["workloads"].items():
        facts = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record.items() if k != "results"]
        if "results" in record:
            facts.append('"results": [\n' + ",\n".join(map(json.dumps, record["results"])) + "\n]")
        workloads.append(f"{json.dumps(name)}: {{" + ", ".join(facts) + "}")
    lines.append('"workloads": {\n' + ",\n".join(workloads) + "\n}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def updated(kept: dict[str, Any], artefact: dict[str, Any]) -> dict[str, Any]:
    """A kept artefact with the workloads of a later run put in, each with the facts of its run.

    Workloads that the run could not test stay unchanged.  An artefact of another device raises ValueError.
    """
    if kept["device"]["key"] != artefact["device"]["key"]:
        raise ValueError(f"{kept['device']['key']} is kept, and this is of {artefact['device']['key']}")
    run = {name: artefact[name] for name in RUN}
    tested = {name: {**r, "run": run} for name, r in artefact["workloads"].items() if "error" not in r}
    return {**kept, "workloads": kept["workloads"] | tested}


def main() -> int:
    """Status 1 if a workload of the run was not tested."""
    source, target = map(Path, sys.argv[1:])
    artefact = json.loads(source.read_text())
    old = json.loads(target.read_text()) if target.exists() else artefact
    unjudged = [name for name, record in artefact["workloads"].items() if "error" in record]
    whole = artefact["workloads"].keys() - set(unjudged) >= old["workloads"].keys()
    target.write_text(text(artefact if whole else updated(old, artefact)))
    if unjudged:
        print(f"not tested: {', '.join(unjudged)}", file=sys.stderr)
    return bool(unjudged)


if __name__ == "__main__":
    sys.exit(main())
