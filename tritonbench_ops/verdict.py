"""Whether a run of the operator may count as passed; tritonbench itself exits with 0 whatever happened."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
from collections.abc import Collection, Mapping, Sequence

VERDICTS = "SINKHORN_TRITONBENCH_VERDICTS"
"""Names the file in which `launch` collects the verdicts of this process and its children."""
BEGUN, ENDED = "begun", "ended"


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
        judged: the wanted backends whose result has to be right.
        baselines: tested only if another backend runs, so a missing result is no failure.
        accurate: (x value, backend) -> whether its result was right.
    """
    sentences = []
    if inputs < 1:
        sentences.append("no input was chosen: --input-id is beyond the last input, or --num-inputs is 0")
    elif len(results) < inputs:
        sentences.append(f"{len(results)} of {inputs} inputs were completed")
    for x_value, row in results:
        for name in wanted:
            if name not in row:
                sentences.append(f"{name} did not run at {x_value}")
            elif row[name].error_msg:
                sentences.append(f"{name} raised at {x_value}: {row[name].error_msg}")
            elif name in judged and not accurate.get((x_value, name), name in baselines):
                sentences.append(f"{name} is inaccurate at {x_value}")
    return sentences


def report(sentences: Sequence[str]) -> None:
    """Print the failures and make the process, or the launcher that waits for it, exit with 1."""
    for sentence in sentences:
        print(f"FAILED: {sentence}", file=sys.stderr)
    path = os.environ.get(VERDICTS)
    if path:
        with open(path, "a") as file:
            file.write(f"{ENDED} {len(sentences)}\n")
    elif sentences:
        # run.py swallows what is raised, SystemExit included, and then ends with 0
        atexit.unregister(_fail)
        atexit.register(_fail)


def _fail() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def begin() -> None:
    """Say that a child began, whose verdict has to follow."""
    with open(os.environ[VERDICTS], "a") as file:
        file.write(f"{BEGUN}\n")


def verdict(path: str, runs: int = 1) -> str:
    """Why the runs that reported to `path` did not pass; empty if they did.

    Args:
        path: of the file.
        runs: of the operator in this process, each of which reports; so does every child that began.
    """
    with open(path) as file:
        words = file.read().split()
    counts = [int(count) for word, count in itertools.pairwise(words) if word == ENDED]
    missing = (words.count(BEGUN) or runs) - len(counts)
    if missing > 0:
        return (
            f"{missing} of the runs that began reported no result"
            if counts
            else "the operator reported no result"
        )
    return f"{sum(counts)} failures, listed above as FAILED" if any(counts) else ""
