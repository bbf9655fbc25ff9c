"""Versions, driver and commit: what an entry was made with."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from helion_sinkhorn import __version__
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.lab.operators import fingerprint
from helion_sinkhorn.lab.tuning.options import Options


def output_of(*command: str) -> str:
    """The output of a program; empty if the program is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, cwd=Path(__file__).parent, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def driver_version() -> str:
    if torch.version.hip:
        module = Path("/sys/module/amdgpu/version")
        return module.read_text().strip() if module.exists() else ""
    return output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]


def runtime() -> str:
    """The runtime that torch was built for."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "none"


def versions() -> dict[str, str]:
    """The versions that a time depends on besides the device."""
    return {
        "helion": version("helion"),
        # a CPU build of torch brings none
        "triton": store.installed_triton(),
        "torch": torch.__version__,
        "runtime": runtime(),
        "driver": driver_version() if torch.cuda.is_available() else "",
        "python": platform.python_version(),
    }


def source(commit: str) -> dict[str, Any]:
    """Commit and "dirty" of the tree; an installed package has neither, be it in another's repository."""
    if not output_of("git", "ls-files", Path(__file__).name):
        return {"commit": commit, "dirty": False}
    changes = output_of("git", "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or output_of("git", "rev-parse", "HEAD"), "dirty": bool(changes)}


def of_package() -> dict[str, str]:
    """This package and the system: its version, where it is, its commit in a checkout, the OS."""
    checkout = source("")
    return {
        "helion_sinkhorn": __version__,
        "path": str(Path(__file__).parents[2]),
        "commit": checkout["commit"] + (" and changes" if checkout["dirty"] else ""),
        "system": platform.platform(),
    }


def provenance(kernel: str, evidence: str, options: Options) -> dict[str, Any]:
    """One row of the table of runs."""
    return {
        **versions(),
        "fingerprint": fingerprint(kernel),
        "evidence": evidence,
        **source(options.commit),
        "utc": options.utc,
        "effort": options.effort,
        "seed": 0,
        "command": options.command,
    }


def device_block(device: Device, reported: str) -> dict[str, Any]:
    fields = ("key", "vendor", "arch", "compute_units", "memory_gb")
    return {**{name: getattr(device, name) for name in fields}, "name": reported}
