"""An artefact as the repository keeps it: one line a result, five digits, no samples.

    python -m ci.gate.kept accuracy/accuracy-h200.json docs/accuracy/h200.json

`make compare` measures gaps between devices by the samples: they are in the full artefact that CI uploads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def rounded(value: Any) -> Any:
    """The same with five digits of each float."""
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


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(text(json.loads(source.read_text())))
