"""run(arguments): the driver of tritonbench with our operators registered, and an honest exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tritonbench_ops import flags
from tritonbench_ops import verdict as gate
from tritonbench_ops.register import register


def translated(arguments: Iterable[str], known: Iterable[str]) -> list[str]:
    """The arguments with the time flag that this version of tritonbench knows."""
    words = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        other = flags.TIME_FLAGS.get(flag)
        words.append(f"{other}{equals}{value}" if other in known and flag not in known else word)
    return words


def without(arguments: Sequence[str], *dropped: str) -> list[str]:
    """The arguments without these flags; --op goes with its value."""
    words, rest = [], iter(arguments)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag not in dropped:
            words.append(word)
        elif flag == "--op" and not equals:
            next(rest, None)
    return words


def in_turn(names: Sequence[str], arguments: Sequence[str]) -> str:
    """Run each operator in a process of its own; which of them did not pass, and how they ended.

    tritonbench's own children are `run.py --launch`, which its version of 2025 does not have, and its exit
    status is 0 whatever becomes of them.
    """
    folders = [str(flags.checkout().parent), str(Path(__file__).resolve().parents[1])]
    path = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    common, failed = without(arguments, "--op", "--isolate"), []
    for name in names:
        command = [sys.executable, "-m", "tritonbench_ops", "--op", name, *common]
        status = subprocess.call(
            command, env={**os.environ, "PYTHONPATH": path, flags.STARTED_BY: str(os.getpid())}
        )
        if status:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
            failed.append(f"--op {name} {how}")
    return ", ".join(failed)


def sizes_on_a_cpu(names: Sequence[str], arguments: Iterable[str]) -> Sequence[str]:
    """The sizes of an operator that a CPU finishes soon; none where one is named."""
    if not set(names) <= set(flags.NAMES) or len(names) != 1:
        return ()
    known = flags.parser(names[0])._option_string_actions.keys()
    named = {word.partition("=")[0] for word in arguments} & known
    return () if named else flags.OPERATORS[names[0]].on_a_cpu.split()


def run(arguments: Sequence[str]) -> None:
    """What `run.py` does with these arguments.

    Raises:
        SystemExit: 1 with the reason when a wanted backend of ours is missing, raised or is inaccurate, or
            when there is no result; tritonbench is not importable, or older than the operators; 2 for
            arguments that neither knows.
    """
    names = flags.checked(arguments)
    shown = {"--list-metrics", "--list-backends", "-h", "--help"} & set(arguments)
    if (len(names) > 1 or (names and "--isolate" in arguments)) and not shown:
        if why := in_turn(names, arguments):
            sys.exit(why)
        return
    import torch

    try:
        import tritonbench.utils.triton_op  # noqa: F401
    except ImportError as error:
        sys.exit(f"{error}: tritonbench imports psutil, tabulate, pyyaml and numpy; install them")
    register()
    from tritonbench.utils.parser import get_parser

    try:
        from tritonbench.utils.run_utils import tritonbench_run
    except ImportError:
        # until October 2025 the driver was the script itself
        from run import run as tritonbench_run

    arguments = translated(arguments, get_parser()._option_string_actions)
    if not torch.cuda.is_available() and not any(a.partition("=")[0] == "--device" for a in arguments):
        added = ["--device", "cpu", *sizes_on_a_cpu(names, arguments)]
        print("no GPU here:", *added, file=sys.stderr)
        arguments += added
    # children of tritonbench are started with this
    sys.argv = ["run.py", "--launch", __name__, *arguments]
    if gate.VERDICTS in os.environ:
        # a child, as of --devices: the launcher that started tritonbench waits for its verdict
        gate.begin()
        tritonbench_run(arguments)
        return
    with tempfile.NamedTemporaryFile() as file:
        os.environ[gate.VERDICTS] = file.name
        try:
            tritonbench_run(arguments)
        finally:
            del os.environ[gate.VERDICTS]
        runs = 2 if any(a.partition("=")[0] == "--side-a" for a in arguments) else 1
        why = gate.verdict(file.name, runs) if set(names) & set(flags.NAMES) and not shown else ""
    if why:
        sys.exit(why)
