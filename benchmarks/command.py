"""The command line of a benchmark: its help, and what it says where something is missing."""

from __future__ import annotations

import argparse
import importlib.util
import sys


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.<module>`; its description keeps its lines."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def size(text: str) -> int:
    """An int of at least 1, for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is {text}; pass an int of at least 1")
    return int(text)


def need_gpu(of: argparse.ArgumentParser, device: str = "cuda", instead: str = "") -> None:
    """End with status 2 where a GPU is requested and torch sees none."""
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        of.error(f"this runs on a GPU, and torch sees none{f'; {instead}' if instead else ''}")


def device_for(of: argparse.ArgumentParser, asked: str | None) -> str:
    """The device requested, or a GPU where torch sees one; ends with status 2 where that is not there."""
    import torch

    device = asked or ("cuda" if torch.cuda.is_available() else "cpu")
    need_gpu(of, device)
    return device


def need_packages(**pip: str) -> None:
    """End with status 1 where one of these is not installed; its value is what pip calls it."""
    for module, name in pip.items():
        if importlib.util.find_spec(module) is None:
            sys.exit(f"needs {module}: pip install {name}")
