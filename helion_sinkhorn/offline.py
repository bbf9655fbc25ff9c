"""compile_for: this package's kernels as machine code for a DEVICES row, on a machine without that GPU.

Triton's wheel carries every compiler and disassembler this takes.  torch, Triton and Helion
keep what they learn about the device for the life of a process, so each target has processes
of its own (`python -m helion_sinkhorn.offline DEVICE`): one job a line on stdin, one answer a
line on stdout.  What the child compiles is what `kernels.launch` would have launched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.listing import amd_facts, nvidia_facts

if TYPE_CHECKING:  # importing kernels imports Helion, which must find the device already presented
    from helion_sinkhorn.kernels import Choice

MAX_THREADS = 1024
"""Of a block.  Neither Helion nor Triton refuses more; a launch would."""


@dataclass(frozen=True)
class Job:
    """One kernel to compile: a choice of config and variant for a call."""

    call: Any
    """Of the type that the kernel's row of KERNELS names."""
    choice: Choice
    batch: int = 65536
    options: tuple[tuple[str, Any], ...] = ()
    """What else `trials.Trial.run` of the kernel takes: eps=0.01, system="full"."""


@dataclass(frozen=True)
class Binary:
    """What the machine code of one job looks like; a job that did not compile has only problems."""

    device: str
    job: Job
    problems: tuple[str, ...] = ()
    """Why this must not be launched, or is not what it should be; empty for good code."""
    registers: int = 0
    """Of a thread; on AMD with its accumulation registers."""
    spills: int = 0
    """NVIDIA: instructions that touch local memory.  AMD: registers the compiler found no room for."""
    spill_bytes: int = 0
    """Stack of a thread."""
    shared: int = 0
    threads: int = 0
    occupancy: int = 0
    """Warps (wavefronts) that one compute unit holds at a time."""
    counts: dict[str, int] = field(default_factory=dict)
    """Instructions of the whole kernel by class (listing.CLASSES), "instructions" being all of them."""
    loops: tuple[dict[str, int], ...] = ()
    """The same for the body of every innermost loop, in program order; compilers may have unrolled it."""
    executed: dict[str, int] = field(default_factory=dict)
    """The same as a thread runs them, loops as often as their counters say; empty where data decide."""
    accesses: dict[str, int] = field(default_factory=dict)
    """Global loads and stores by the bits a thread moves: "load 128", "store 32"."""
    operations: dict[str, int] = field(default_factory=dict)
    """Floating-point operations by name: PTX, which ptxas translates one by one, or GCN."""
    modes: dict[str, int] = field(default_factory=dict)
    """Whether products may fuse with sums, and on AMD the modes that the kernel's descriptor sets."""
    generate_seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def compiled(self) -> bool:
        return self.threads > 0

    @property
    def hottest(self) -> dict[str, int]:
        """The largest innermost loop; the whole kernel where there is none."""
        return max(self.loops, key=lambda body: body["instructions"], default=self.counts)


# ---------------------------------------------------------------------------- reading what was compiled


def read_cubin(compiled: Any) -> dict[str, Any]:
    """What an NVIDIA binary says of itself."""
    import triton

    def tool(name: str, *options: str) -> str:
        command = [getattr(triton.knobs.nvidia, name).path, *options, file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = tool("cuobjdump", "--dump-resource-usage")
        return nvidia_facts(compiled.asm["ptx"], tool("nvdisasm", "--print-code"), usage)


def occupancy(device: Device, registers: int, shared: int, threads: int) -> int:
    """Warps on one compute unit: it has 4 schedulers with 512 registers a lane, allocated by 8."""
    nvidia = device.vendor == "nvidia"
    warps = threads // device.warp_size
    a_scheduler = min(16 if nvidia else 8, 512 // max(-(-registers // 8) * 8, 8))
    reserved = 1024 if nvidia else 0
    by_shared = (device.shared_limit + reserved) // (shared + reserved) if shared + reserved else 32
    return warps * min(32, 4 * a_scheduler // warps, by_shared)


def problems(device: Device, job: Job, row: dict[str, Any]) -> Iterator[str]:
    """What the compilers let pass and a launch, or its speed, would not."""
    counts = row["counts"]
    if row["spills"] or row["spill_bytes"]:
        yield f"spills {row['spills']} ({row['spill_bytes']} bytes a thread)"
    if row["shared"] > device.shared_limit:
        yield f"{row['shared']} bytes of shared memory, {device.key} has {device.shared_limit}"
    if row["threads"] > MAX_THREADS:
        yield f"{row['threads']} threads a block, at most {MAX_THREADS}"
    if stray := counts.get("stack pointer as data"):
        yield f"{stray} instructions take the stack pointer for data (docs/helion.md)"
    if not counts.get("global load") or not counts.get("global store"):
        yield "no global loads or no global stores"
    if owns_whole_matrices(job):
        matrices = dict(job.choice.config)["block_sizes"][0] // row["threads"]
        # a result may change threads once, on its way to coalesced stores; an iteration may not
        allowed = 2 * matrices * job.call.n * job.call.m
        if exchanges(counts) > allowed or any(exchanges(body) for body in row["loops"]):
            yield "threads that own whole matrices exchange data"


def owns_whole_matrices(job: Job) -> bool:
    """Whether a thread holds every entry of its matrices, and nothing of them passes through memory."""
    variant = dict(job.choice.variant)
    if job.choice.kernel == "sinkhorn_backward_history":
        return False
    return variant.get("packed", False) or (
        any(variant.get("thread", ())) and variant["thread"] == (job.call.n, job.call.m)
    )


def exchanges(counts: dict[str, int]) -> int:
    """Instructions by which threads exchange data."""
    return counts.get("cross-lane", 0) + counts.get("shared", 0) + counts.get("barrier", 0)


# ------------------------------------------------------------------------------------------ the child


def present_device(device: Device) -> None:
    """Let torch.cuda and Triton describe `device`.  Helion, not imported yet, asks them alone."""
    nvidia = device.vendor == "nvidia"
    digits = device.arch[2:] if nvidia else device.arch[3:-1]
    major, minor = int(digits[:-1]), int(digits[-1])
    properties = types.SimpleNamespace(
        name=device.names[0],
        major=major,
        minor=minor,
        multi_processor_count=device.compute_units,
        warp_size=device.warp_size,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=MAX_THREADS,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=device.shared_limit,
        total_memory=device.memory_gb << 30,
        L2_cache_size=50 << 20,
        gcnArchName=device.arch,
    )
    torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    torch.cuda.get_device_name = lambda device=None: properties.name
    torch.version.cuda, torch.version.hip = ("13.0", None) if nvidia else (None, "7.0")

    import triton
    from torch._subclasses import fake_tensor
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    # torch 2.11 allocates on the device when it makes the first fake tensor
    fake_tensor.init_gpu_context = lambda device: None
    target = GPUTarget("cuda", int(digits), 32) if nvidia else GPUTarget("hip", device.arch, device.warp_size)

    class Driver(DriverBase):
        @classmethod
        def is_active(cls):
            return True

        def map_python_to_cpp_type(self, ty):
            return ty

        def get_current_target(self):
            return target

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def get_active_torch_device(self):
            return torch.device("cuda", 0)

        def get_benchmarker(self):
            raise RuntimeError("no device to benchmark on")

    triton.runtime.driver.set_active(Driver())


def first_launch(device: Device, job: Job) -> tuple[Any, tuple[Any, ...]]:
    """The Helion kernel and the arguments that are launched first, which here works on meta tensors."""
    from helion_sinkhorn.kernels import serving
    from helion_sinkhorn.trials import TRIALS

    launches: list[tuple[Any, tuple[Any, ...]]] = []
    serving.device_at = lambda index: (device, device.asm, False)
    serving.run = lambda kernel, *arguments: launches.append((kernel, arguments))
    trial = TRIALS[job.choice.kernel]
    operands = trial.operands(job.call, job.batch, "meta")
    trial.run(job.call, job.choice, *operands, **dict(job.options))
    return launches[0]


@contextlib.contextmanager
def as_called(arguments: Sequence[Any]) -> Iterator[list[Any]]:
    """The arguments of a launch as fake tensors on the presented device, for which Helion generates the code
    that it generates for any real call."""
    from helion._compiler import compile_environment
    from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    def on_device(x):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0")

    def fakified(self, fake_mode, x, *, shape_env, source, symbolic_context):
        sizes, strides = [DimDynamic.DYNAMIC] * x.dim(), [DimDynamic.INFER_STRIDE] * x.dim()
        any_size = symbolic_context or StatelessSymbolicContext(sizes, strides)
        sizes, strides, _ = shape_env.create_symbolic_sizes_strides_storage_offset(
            x, source, symbolic_context=any_size
        )
        return torch.empty_strided(sizes, strides, dtype=x.dtype, device=x.device)

    # Of fake tensors Helion takes the sizes for constants: it would leave out masks that every real call
    # has, and a real call would compile anew
    as_real = (
        mock.patch.object(compile_environment, "FakeTensor", ()),
        mock.patch.object(FakeTensorConverter, "from_real_tensor", fakified),
    )
    with FakeTensorMode(), as_real[0], as_real[1]:
        yield [on_device(a) if isinstance(a, torch.Tensor) else a for a in arguments]


def specialised(arguments: Sequence[Any], options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What Triton compiles for in a launch of Helion's: tensors at 16-byte boundaries, and its own
    options.
    """
    from triton.runtime.jit import MockTensor

    arguments = [MockTensor(a.dtype, list(a.shape)) if isinstance(a, torch.Tensor) else a for a in arguments]
    return arguments, {k: v for k, v in options.items() if not k.startswith("_")}


def compile_job(device: Device, job: Job) -> dict[str, Any]:
    """The fields of a Binary."""
    begin = time.perf_counter()
    launched: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def launcher(jit_function, grid, *arguments, **options):
        arguments, options = specialised(arguments, options)
        launched.append((jit_function.run, arguments, {"grid": grid, "warmup": True, **options}))

    kernel, arguments = first_launch(device, job)
    with as_called(arguments) as given:
        program = kernel.bind(tuple(given)).compile_config(kernel.configs[0])
        program(*given, _launcher=launcher)
    generated = time.perf_counter()
    ((run, arguments, options),) = launched
    compiled = run(*arguments, **options)
    seconds = time.perf_counter() - generated
    nvidia = device.vendor == "nvidia"
    row = read_cubin(compiled) if nvidia else amd_facts(compiled.asm["amdgcn"])
    row["modes"] = {**row.get("modes", {}), "enable_fp_fusion": int(compiled.metadata.enable_fp_fusion)}
    row["shared"] = compiled.metadata.shared
    row["threads"] = compiled.metadata.num_warps * device.warp_size
    row["occupancy"] = occupancy(device, row["registers"], row["shared"], row["threads"])
    row["generate_seconds"], row["compile_seconds"] = generated - begin, seconds
    row["problems"] = list(problems(device, job, row))
    if compiled.asm["cubin" if nvidia else "hsaco"][:4] != b"\x7fELF":
        row["problems"].append("the binary is no ELF file")
    return row


def serve(device: Device) -> None:
    """Answer the jobs on stdin; compilers may print, so stdout is theirs and the answers' no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    present_device(device)
    from helion_sinkhorn.configs.store import frozen
    from helion_sinkhorn.kernels import KERNELS, Choice

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        said = json.loads(line)
        choice = Choice(**{k: frozen(v) for k, v in said.pop("choice").items()})
        try:
            call = KERNELS[choice.kernel].call(**said.pop("call"))
            row = compile_job(device, Job(call, choice, said["batch"], frozen(said["options"])))
        except Exception as error:  # whatever Helion or a compiler raised is this job's result
            row = {"problems": [f"{type(error).__name__}: {error}".strip()]}
        print(json.dumps(row), file=answers, flush=True)


# ----------------------------------------------------------------------------------------- the parent


class Compiler(contextlib.AbstractContextManager):
    """A child process for one device, started anew after a job that took it down."""

    def __init__(self, device_key: str, folder: Path, timeout: float, cache: Path | None = None):
        self.device_key, self.timeout = device_key, timeout
        self.log = folder / f"stderr.{threading.get_ident()}"
        package = Path(__file__).resolve().parents[1]
        self.environment = {
            "TRITON_DEFAULT_FP_FUSION": "1",
            **{k: v for k, v in os.environ.items() if k not in ("HELION_INTERPRET", "TRITON_INTERPRET")},
            "HELION_SINKHORN_DEVICE": device_key,
            "PYTHONPATH": os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])]),
            **{name: str(folder) for name in ("HELION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")},
            "TRITON_CACHE_DIR": str(cache or folder),
        }
        self.child: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self.log.open("ab") as errors:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "helion_sinkhorn.offline", self.device_key],
                env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                text=True, start_new_session=True,
            )  # fmt: skip
        if self.child.stdout.readline() != "ready\n":
            raise RuntimeError(f"the compiler for {self.device_key} did not start:\n{self.log.read_text()}")

    def stop(self) -> None:
        """End the child and the compilers it may be running."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)

    def __exit__(self, *_: object) -> None:
        if self.child is not None:
            self.stop()
            self.child.communicate()
            self.child = None

    def compile(self, job: Job) -> Binary:
        """This job's Binary; one that crashes or outlasts its compiler is reported like any other."""
        if self.child is None:
            self.start()
        heard = self.log.stat().st_size
        choice = {k: dict(v) if k in ("config", "variant") else v for k, v in vars(job.choice).items()}
        line = json.dumps(
            {**vars(job), "call": vars(job.call), "choice": choice, "options": dict(job.options)}
        )
        begin = time.perf_counter()
        timer = threading.Timer(self.timeout, self.stop)
        timer.start()
        try:
            self.child.stdin.write(line + "\n")
            self.child.stdin.flush()
            answer = self.child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        late = time.perf_counter() - begin >= self.timeout
        if late or not answer:
            self.__exit__()
        said = self.log.read_bytes()[heard:].decode(errors="replace")
        if not answer:
            why = f"not compiled after {self.timeout:g} s" if late else f"the compiler died: {said[-500:]}"
            return Binary(self.device_key, job, (why,))
        row = json.loads(answer)
        # a kernel without its inline assembly is what Triton's AMD backend makes of one it cannot parse
        errors = dict.fromkeys(text for text in said.splitlines() if text.startswith("error:"))
        row["problems"] = (*row["problems"], *errors)
        row["loops"] = tuple(row.get("loops", ()))
        return Binary(self.device_key, job, **row)


def compile_for(
    device_key: str,
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    timeout: float = 120.0,
    cache: Path | None = None,
    report: Callable[[Binary], None] = lambda binary: None,
) -> list[Binary]:
    """Compile for a device that need not be here; nothing is launched.

    Args:
        device_key: a DEVICES key.
        jobs: any number; a process start costs about 5 s, a job 1 to 15 s.
        workers: processes that share the jobs.
        timeout: seconds a job may take.
        cache: Triton's cache to leave the binaries in, for a process that will launch them.
        report: called with each Binary as it comes, from any thread.

    Returns:
        One Binary a job, in the order of the jobs.
    """
    if device_key not in DEVICES:
        raise ValueError(f"{device_key!r} is not a known device; use one of {', '.join(DEVICES)}")
    binaries: dict[int, Binary] = {}
    todo = iter(list(enumerate(jobs)))

    def work(folder: str) -> None:
        with Compiler(device_key, Path(folder), timeout, cache) as compiler:
            for index, job in todo:
                binaries[index] = compiler.compile(job)
                report(binaries[index])

    workers = min(workers, len(jobs))
    if workers:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            ThreadPoolExecutor(workers) as pool,
        ):
            list(pool.map(work, [folder] * workers))
    return [binaries[index] for index in range(len(jobs))]


if __name__ == "__main__":
    serve(DEVICES[sys.argv[1]])
