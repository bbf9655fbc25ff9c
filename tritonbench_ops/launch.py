"""run(arguments): the driver of tritonbench with our operators registered, and an honest exit status."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Sequence

import torch

from tritonbench_ops import verdict as gate
from tritonbench_ops.register import NAMES, register

TIME_FLAGS = {"--rep": "--iter", "--iter": "--rep"}
"""Milliseconds of a measurement: --iter until September 2025, --rep since."""


def translated(arguments: Iterable[str], known: Iterable[str]) -> list[str]:
    """The arguments with the time flag that this version of tritonbench knows."""
    words = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        other = TIME_FLAGS.get(flag)
        words.append(f"{other}{equals}{value}" if other in known and flag not in known else word)
    return words


def run(arguments: Sequence[str]) -> None:
    """What `run.py` does with these arguments.

    Raises:
        SystemExit: 1 with the reason when a wanted backend of ours is missing, raised or is inaccurate, or
            when there is no result; tritonbench is not importable.
    """
    try:
        import tritonbench.utils.triton_op  # noqa: F401
    except ImportError as error:
        sys.exit(
            f"{error}: put a checkout of https://github.com/meta-pytorch/tritonbench on PYTHONPATH, and "
            "install psutil, tabulate, pyyaml and numpy"
        )
    register()
    from tritonbench.utils.parser import get_parser

    try:
        from tritonbench.utils.run_utils import tritonbench_run
    except ImportError:
        # until October 2025 the driver was the script itself
        from run import run as tritonbench_run

    arguments = translated(arguments, get_parser()._option_string_actions)
    if not torch.cuda.is_available() and not any(a.partition("=")[0] == "--device" for a in arguments):
        print("no GPU here: --device cpu", file=sys.stderr)
        arguments += ["--device", "cpu"]
    options, _ = get_parser().parse_known_args(arguments)
    # children of tritonbench are started with this
    sys.argv = ["run.py", "--launch", __name__, *arguments]
    if gate.VERDICTS in os.environ:
        # a child, as of --isolate: the launcher that started tritonbench waits for its verdict
        tritonbench_run(arguments)
        return
    with tempfile.NamedTemporaryFile() as file:
        os.environ[gate.VERDICTS] = file.name
        try:
            tritonbench_run(arguments)
        finally:
            del os.environ[gate.VERDICTS]
        asked = set(NAMES) & set((options.op or "").split(","))
        why = gate.verdict(file.name) if asked and not (options.list_metrics or options.list_backends) else ""
    if why:
        sys.exit(why)
