"""Whether a run of the operator may count as passed; tritonbench itself exits with 0 whatever happened."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Collection, Mapping, Sequence

VERDICTS = "SINKHORN_TRITONBENCH_VERDICTS"
"""Names the file in which `launch` collects the verdicts of this process and its children."""
PASSED = "passed"


def failures(
    results: Sequence[tuple[str, Mapping[str, object]]],
    inputs: int,
    wanted: Collection[str],
    judged: Collection[str],
    baselines: Collection[str],
    accurate: Mapping[tuple[str, str], bool],
) -> list[str]:
    """What keeps a run from passing, in sentences.

    Args:
        results: (x value, backend -> tritonbench's metrics of it) of each input that was completed.
        inputs: how many there should be.
        wanted: backends that have to be there at every input and not have raised.
        judged: those of them whose result has to be right.
        baselines: judged only beside another backend, so a missing judgement is no failure.
        accurate: (x value, backend) -> whether its result was right.
    """
    found = []
    if not inputs or len(results) < inputs:
        found.append(f"{len(results)} of {inputs} inputs were completed")
    for x_value, row in results:
        for name in wanted:
            if name not in row:
                found.append(f"{name} did not run at {x_value}")
            elif row[name].error_msg:
                found.append(f"{name} raised at {x_value}: {row[name].error_msg}")
            elif name in judged and not accurate.get((x_value, name), name in baselines):
                found.append(f"{name} is inaccurate at {x_value}")
    return found


def report(found: Sequence[str]) -> None:
    """Print the failures and make the process, or the launcher that waits for it, exit with 1."""
    for sentence in found:
        print(f"FAILED: {sentence}", file=sys.stderr)
    path = os.environ.get(VERDICTS)
    if path:
        with open(path, "a") as file:
            file.write("".join(f"{line}\n" for line in found or [PASSED]))
    elif found:
        # run.py swallows what is raised, SystemExit included, and then ends with 0
        atexit.unregister(_fail)
        atexit.register(_fail)


def _fail() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def verdict(path: str) -> str:
    """Why the runs that reported to `path` did not pass; empty if they did."""
    with open(path) as file:
        lines = file.read().splitlines()
    if not lines:
        return "the operator reported no result"
    found = [line for line in lines if line != PASSED]
    return f"{len(found)} failures, listed above as FAILED" if found else ""
