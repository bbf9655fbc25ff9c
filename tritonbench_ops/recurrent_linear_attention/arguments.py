"""The flags of `--op recurrent_linear_attention`, which tritonbench hands on; they import no torch."""

import argparse

from tritonbench_ops import flags

GATES = ("g", "g_gamma", "gk", "gv")


def gates(text: str) -> str:
    """Names of gates with spaces between, for argparse."""
    if unknown := set(text.split()) - set(GATES):
        raise argparse.ArgumentTypeError(
            f"names {', '.join(sorted(unknown))}; pass some of {' '.join(GATES)}"
        )
    return text


PARSER = flags.parser(
    "recurrent_linear_attention",
    {"batch": "sequences", "steps": "T", "heads": "H", "dk": "columns of q and k", "dv": "columns of v"},
)
PARSER.add_argument(
    "--gates", type=gates, help='of "g g_gamma gk gv", with spaces between; default: as in the bench workload'
)
ON_A_CPU = ("--batch", "1", "--steps", "16", "--heads", "2")
"""Sizes where there is no GPU and no size was named."""
