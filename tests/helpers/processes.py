"""Processes that tests share, each started by the first test that needs it and ended with the run."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2


def join(rank: int, folder: str, device: str) -> None:
    """Begin as one of WORLD processes of a group."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
    )
    dist.all_reduce = contiguous_only(dist.all_reduce)


def contiguous_only(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """As NCCL has it, on CPUs too."""

    @functools.wraps(all_reduce)
    def checked(t: torch.Tensor, *given: Any, **options: Any) -> Any:
        assert t.is_contiguous(), "Tensors must be contiguous"
        return all_reduce(t, *given, **options)

    return checked


def on_a_mesh(work: Callable[..., Any], device: str, arguments: Sequence[Any]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return work(init_device_mesh(device, (WORLD,)), *arguments)


class Ranks:
    """WORLD processes of torch.distributed, on CPUs or on a GPU each."""

    def __init__(self, device: str = "cpu"):
        self.device = device
        self.running = contextlib.ExitStack()
        self.pools: list[ProcessPoolExecutor] = []

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What work(mesh, *arguments), a function of a module, returns in each of them."""
        if not self.pools:
            folder = self.running.enter_context(tempfile.TemporaryDirectory())
            self.pools = [
                self.running.enter_context(
                    ProcessPoolExecutor(1, mp.get_context("spawn"), join, (rank, folder, self.device))
                )
                for rank in range(WORLD)
            ]
        futures = [pool.submit(on_a_mesh, work, self.device, arguments) for pool in self.pools]
        try:
            return [future.result() for future in futures]
        except Exception:
            # one of them may wait for a message that the other has not sent
            self.stop()
            raise

    def stop(self) -> None:
        self.pools = []
        self.running.close()


class Compilers:
    """A compiling process for each device, which compiles a job once."""

    def __init__(self):
        self.running = contextlib.ExitStack()
        self.by_device: dict[str, Any] = {}
        self.binaries: dict[tuple[str, Any], Any] = {}

    def __call__(self, device: str, jobs: Sequence[Any]) -> list[Any]:
        """As machine.compiler.compile_for."""
        from helion_sinkhorn.lab.machine.compiler import Compiler

        if device not in self.by_device:
            folder = self.running.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            compiler = Compiler(device, Path(folder), timeout=600.0)
            self.by_device[device] = self.running.enter_context(compiler)
        for job in jobs:
            if (device, job) not in self.binaries:
                self.binaries[device, job] = self.by_device[device].compile(job)
        return [self.binaries[device, job] for job in jobs]

    def stop(self) -> None:
        self.running.close()
