"""The child process of a job: it gets ready, says so, waits for its turn, and sends its rows.

A job's `rows` is a generator: what runs before its first, empty yield may disturb other jobs; every later
yield is a row, or None for the end of a turn.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

from benchmarks import autotuning
from benchmarks.jobs import said
from helion_sinkhorn.lab.parent import end_with_parent


def tuples(value: object) -> object:
    """JSON knows lists alone."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def main(module: str, fields: str) -> None:
    end_with_parent()
    # imported packages may print: stdout is theirs, and the answers' no more
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(what: object) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        job = importlib.import_module(module).Job(**{k: tuples(v) for k, v in json.loads(fields).items()})
        rows = job.rows()
        next(rows)
        answer("ready")
        if sys.stdin.readline() != "go\n":
            return
        autotuning.forget()
        for row in rows:
            if row is not None:
                answer(row)
                continue
            answer("next")
            if sys.stdin.readline() != "go\n":
                return
        answer("end")
    except Exception as error:
        if not isinstance(error, ImportError):
            traceback.print_exc()
        answer({"failed": said(error)})


if __name__ == "__main__":
    main(*sys.argv[1:])
