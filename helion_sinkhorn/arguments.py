"""The command line of `python -m helion_sinkhorn`, parsed and checked before torch is imported."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.nearest import refused

# the tables with these names import torch and Triton; a test compares them
TAGS = ("bench", "ci", "implicit", "scaled", "stress", "tune")
OPERATORS = (
    "sinkhorn", "sinkhorn_large", "dot_compress", "linear_attention", "hc_split_sinkhorn", "hc_mixes",
    "hc_pre", "hc_post", "hc_site", "sinkhorn_balance", "quantize",
)  # fmt: skip
KERNELS = (
    "sinkhorn_forward", "sinkhorn_backward", "sinkhorn_backward_history", "sinkhorn_implicit_direct",
    "sinkhorn_implicit_cg", "sinkhorn_large_first", "sinkhorn_large_step", "sinkhorn_large_columns",
    "sinkhorn_large_columns_of_logs", "sinkhorn_large_write", "sinkhorn_large_sums", "sinkhorn_large_turn",
    "sinkhorn_large_back", "sinkhorn_large_apart_step", "sinkhorn_large_apart_back", "sinkhorn_large_gather",
    "sinkhorn_large_left", "sinkhorn_large_right", "sinkhorn_large_terms", "sinkhorn_large_gradient",
    "sinkhorn_large_eps_first", "sinkhorn_large_eps_step", "sinkhorn_large_eps_columns",
    "sinkhorn_large_eps_write", "sinkhorn_large_eps_sums", "sinkhorn_large_eps_turn",
    "sinkhorn_large_eps_back", "sinkhorn_large_wide_first",
    "sinkhorn_large_wide_logs", "sinkhorn_large_wide_rows", "sinkhorn_large_wide_columns",
    "sinkhorn_large_wide_gradient", "dot_compress_product", "dot_compress_apply", "dot_compress_expand",
    "linear_attention_walk", "linear_attention_gates", "linear_attention_chunk_scores",
    "linear_attention_chunk_walk", "linear_attention_chunk_gradients", "hc_split_sinkhorn_forward",
    "hc_split_sinkhorn_reduced", "hc_split_sinkhorn_backward", "hc_mixes_split", "hc_mixes_partials",
    "hc_mixes_reduce", "hc_mixes_upstream", "hc_mixes_backward", "hc_pre_forward", "hc_pre_backward",
    "hc_pre_normed_forward", "hc_pre_normed_backward", "hc_post_forward", "hc_post_backward",
    "hc_site_weights", "hc_site_backward", "hc_boundary_split", "hc_boundary_forward", "hc_boundary_finish",
    "hc_boundary_backward", "hc_boundary_second", "hc_boundary_sums", "hc_boundary_projection",
    "hc_boundary_last", "hc_boundary_head_sums", "hc_boundary_head", "balance_norms", "balance_step",
    "balance_columns", "balance_finish", "balance_momentum", "balance_update", "quantize_groups",
)  # fmt: skip

FOLDER = "default: tuning_cache/ of the repository, or of the package where it is installed"
CHECK = (
    "Validate the files of a folder, and compile every config in them for its device, which takes no GPU "
    "but about half an hour on two cores. With --no-compile it takes seconds."
)
README = (
    "Write README.md of a folder of tuning files anew: its text stays, and the tables below it are made from "
    "the files. Without --out that is tuning_cache/ in a checkout of the repository, and "
    "helion_sinkhorn/tuning_cache/ among the installed packages elsewhere."
)
ONLY = "only workloads with this in their names, such as _4x4_fp32_, or one of these, with commas"
WARM = (
    "Generate the code of an operator's calls, so that the first call need not. On the GPU itself it is "
    "launched too, and Triton keeps its machine code."
)


class Parser(argparse.ArgumentParser):
    """A parser that names what resembles a wrong name, and prints a list of names one a line."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, refused(value, action.choices))


def parser() -> Parser:
    tags = ", ".join(TAGS)
    tagged = f"which of the package's example calls (WORKLOADS): those with this tag, one of {tags}"
    whole = Parser(
        prog="python -m helion_sinkhorn",
        description="Find the fastest configs of the kernels on a device, see which config a call gets, "
        "and generate the code of calls before they are made. No call needs any of it.",
    )
    commands = whole.add_subparsers(metavar="command", dest="command")

    def command(name: str, does: str, more: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(name, help=does, description=more or f"{does[0].upper()}{does[1:]}.")

    one = command("tune", "time candidate configs on this device and store the best")
    one.add_argument(
        "--device", required=True, choices=DEVICES,
        help="what to tune for; without --offline this machine must have one",
    )  # fmt: skip
    one.add_argument(
        "--kernel", choices=KERNELS, metavar="KERNEL",
        help="one kernel instead of all; a wrong name gets the nearest",
    )  # fmt: skip
    one.add_argument("--tags", default="tune", choices=TAGS, metavar="TAG", help=f"{tagged} (default: tune)")
    one.add_argument("--only", default="", help=ONLY)
    one.add_argument(
        "--effort", choices=["quick", "full"], default="quick",
        help="quick (default) compares the best candidates in 7 rounds; full takes 21, and then searches "
        "Helion's own space of configs for faster ones, which it prints and does not store",
    )  # fmt: skip
    seconds = "seconds the whole command may take (default: any)"
    one.add_argument("--budget", type=float, default=float("inf"), help=seconds)
    one.add_argument("--force", action="store_true", help="tune keys again that have a current entry")
    one.add_argument(
        "--offline", action="store_true",
        help="without that GPU: rank machine code compiled for it, of sinkhorn and its exact gradient; other "
        "kernels keep their defaults",
    )  # fmt: skip
    one.add_argument("--out", type=Path, default=store.folders()[-1], help=f"where to store; {FOLDER}")
    one.add_argument("--workers", type=int, help="compiling processes (default: the cores of this rank)")
    one.add_argument("--commit", default="", help="the commit to record where git cannot tell it")
    one = command("show", "which config each workload gets on a device, and why")
    one.add_argument("--device", choices=DEVICES, help="default: the GPU of this machine")
    one.add_argument("--tags", default="tune", choices=TAGS, metavar="TAG", help=f"{tagged} (default: tune)")
    one.add_argument("--only", default="", help=ONLY)
    one = command("check", "validate a folder of configs and compile all of them", CHECK)
    one.add_argument("--out", type=Path, default=store.folders()[-1], help=FOLDER)
    one.add_argument("--workers", type=int, help="compiling processes (default: the cores)")
    one.add_argument(
        "--no-compile", action="store_true", help="schema, fingerprints and README only, in seconds"
    )
    one = command("readme", "write a folder's README.md anew from its data", README)
    one.add_argument("--out", type=Path, default=store.folders()[-1], help=FOLDER)
    one = command("warm", "generate the code of an operator's calls before their first call", WARM)
    one.add_argument(
        "--op", required=True, choices=OPERATORS, metavar="OPERATOR", help=f"one of {', '.join(OPERATORS)}"
    )
    one.add_argument(
        "--device", choices=DEVICES, help="generate for this one (default: launch on the GPU here)"
    )
    one.add_argument(
        "fields", nargs="*", metavar="FIELD=VALUE[,VALUE]",
        help="what a call is: n=4 m=4 dtype=float32,bfloat16 n_iters=20 batch=8192; several values make all "
        "combinations; a wrong field lists the operator's; one left out is as in its first workload",
    )  # fmt: skip
    command("env", "versions, path, commit, device, stored entries, generated code: what a bug report needs")
    return whole


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The arguments of a command that can begin; else the process ends with status 2."""
    given = parser().parse_args(words)
    command = given.command
    if getattr(given, "workers", None) is not None and given.workers < 1:
        refuse(command, f"--workers is {given.workers}; pass an int of at least 1")
    if command == "tune":
        if not given.budget > 0:
            refuse(command, f"--budget is {given.budget:g}; pass seconds > 0")
        if given.out.exists():
            check_folder(command, given.out)
        check_writable(command, given.out)
        ranks(command)
    if command in ("check", "readme"):
        check_folder(command, given.out)
    if command == "readme" and not (given.out / "README.md").is_file():
        refuse(
            command,
            f"there is no {given.out / 'README.md'}; write one, whose text stays above the tables",
        )
    return given


def check_folder(command: str, folder: Path) -> None:
    """End the command unless --out names a folder of tuning files."""
    if not folder.is_dir():
        refuse(command, f"--out is {folder}, which is no folder; name one laid out like tuning_cache/")


def check_writable(command: str, folder: Path) -> None:
    """End the command unless files may be made in the folder, or the folder where it will be."""
    place = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        refuse(
            command,
            f"{place} may not be written by this user; name a folder of your own with --out, and "
            "HELION_SINKHORN_TUNING_DIR for the calls that are to use it",
        )


def ranks(command: str) -> tuple[int, int, int, int]:
    """RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE as torchrun sets them: 0 of 1 where it did not."""
    usual = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    texts = {name: os.environ.get(name, default) for name, default in usual.items()}
    rank, world, local_rank, local_world = (int(t) if t.isdecimal() else -1 for t in texts.values())
    if not (0 <= rank < world and local_rank >= 0 and local_world >= 1):
        said = ", ".join(f"{name}={text}" for name, text in texts.items())
        refuse(command, f"{said} name no rank; unset them, or start the command with torchrun")
    return rank, world, local_rank, local_world


def refuse(command: str, why: str) -> NoReturn:
    """End the command as argparse does for a wrong argument."""
    print(f"{command}: {why}{'' if chr(10) in why else '.'}", file=sys.stderr)
    raise SystemExit(2)
