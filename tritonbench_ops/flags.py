"""An operator's own flags, which tritonbench hands on: sizes that replace those of its bench workloads."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from helion_sinkhorn.lab.workloads import tagged

Workload = TypeVar("Workload")


def size(text: str) -> int:
    """An int of at least 1, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; pass an int of at least 1")
    return int(text)


def parser(operator: str, sizes: Mapping[str, str]) -> argparse.ArgumentParser:
    """A parser with a flag for each size; sizes: name -> what it counts."""
    made = argparse.ArgumentParser(f"--op {operator}", allow_abbrev=False)
    for name, what in sizes.items():
        made.add_argument(
            f"--{name.replace('_', '-')}", type=size, help=f"{what}; default: those of the bench workloads"
        )
    return made


def bench(
    kind: type[Workload],
    options: argparse.Namespace,
    fields: Mapping[str, str],
    dtype: torch.dtype,
    **others: Any,
) -> list[Workload]:
    """The bench workloads of an operator in this dtype, with the sizes that were given, each once.

    Args:
        kind: the type of its workloads.
        fields: flag -> the field of a workload that it replaces.
        others: fields that are the same for all.
    """
    named = {field: v for flag, field in fields.items() if (v := getattr(options, flag)) is not None}
    rows = [dataclasses.replace(row, **named, **others, dtype=dtype) for row in tagged("bench", kind)]
    return list({tuple(getattr(row, field) for field in fields.values()): row for row in rows}.values())
