"""`python -m helion_sinkhorn.lab.tuning.child DEVICE`, the compiling process: a job in, an answer out."""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.lab.machine.binary import Binary, Job, occupancy, problems
from helion_sinkhorn.lab.machine.listing import amd_facts
from helion_sinkhorn.lab.machine.presented import as_called, present_device, read_cubin, specialised
from helion_sinkhorn.lab.parent import end_with_parent

Launch = tuple[Any, tuple[Any, ...]]
"""A kernel and its arguments, which here are meta tensors."""


class Reached(BaseException):
    """The launch that was looked for is reached; the code after it would need its results.

    It is no Exception, since a stored config whose launch raises one is replaced by the default.
    """


def launch_in(device: Device, run: Callable[[], object], kernel: str = "") -> Launch:
    """The first launch of `run`, or of this kernel if one is named; `run` ends there."""
    from helion_sinkhorn.runtime.launch import Launcher, launching_with

    def reached(built, *arguments):
        if kernel in ("", built.kernel.name):
            raise Reached(built, arguments)

    try:
        with launching_with(Launcher(lambda index: (device, device.asm, False), reached)):
            run()
    except Reached as launch:
        return launch.args
    raise RuntimeError(f"no launch of {kernel or 'a kernel'}")


def first_launch(device: Device, job: Job) -> Launch:
    """The launch of a trial."""
    from helion_sinkhorn.lab.operators import TRIALS

    trial, options = TRIALS[job.choice.kernel], dict(job.options)
    operands = trial.operands(job.call, job.batch, "meta")
    return launch_in(device, lambda: trial.run(job.call, job.choice, *operands, **options))


def judged_launch(device: Device, job: Job) -> Launch:
    """The launch of the job's kernel by which a trial tests its choice."""
    from helion_sinkhorn.lab.operators import TRIALS

    error = TRIALS[job.choice.kernel].error
    return launch_in(device, lambda: error(job.call, job.choice, "meta"), job.choice.kernel)


def compile_launch(kernel: Any, arguments: tuple[Any, ...]) -> Any:
    """The binary that Triton compiles for a launch."""
    from helion_sinkhorn.runtime.dispatch import signature
    from helion_sinkhorn.runtime.generated import host_function

    launched: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def launcher(jit_function, grid, *arguments, **options):
        arguments, options = specialised(arguments, options)
        launched.append((jit_function.run, arguments, {"grid": grid, "warmup": True, **options}))

    with as_called(arguments) as given:
        host_function(kernel, given, signature(tuple(given)))(*given, _launcher=launcher)
    ((run, arguments, options),) = launched
    return run(*arguments, **options)


def compile_job(device: Device, job: Job) -> dict[str, Any]:
    """The fields of a Binary."""
    from helion_sinkhorn.lab.operators import operator_of

    compiled = compile_launch(*first_launch(device, job))
    nvidia = device.vendor == "nvidia"
    row = read_cubin(compiled) if nvidia else amd_facts(compiled.asm["amdgcn"])
    row["modes"] = {**row.get("modes", {}), "enable_fp_fusion": int(compiled.metadata.enable_fp_fusion)}
    row["shared"] = compiled.metadata.shared
    row["threads"] = compiled.metadata.num_warps * device.warp_size
    row["occupancy"] = occupancy(device, row["registers"], row["shared"], row["threads"])
    binary = Binary(device.key, job, **row)
    row["problems"] = [*problems(device, binary), *operator_of(job.choice.kernel).problems(binary)]
    if compiled.asm["cubin" if nvidia else "hsaco"][:4] != b"\x7fELF":
        row["problems"].append("the binary is no ELF file")
    return row


def neighbours(kernel: Any, arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Configs around a kernel's in Helion's own space, as its pattern search takes them: with one value
    another, or two of block sizes and warps.

    kernel, arguments: a kernel with its config, and what it is called with, on meta tensors.
    """
    from helion.autotuner.config_fragment import Category, ListOf
    from helion.autotuner.config_generation import ConfigGeneration
    from helion.exc import InvalidConfig

    with as_called(arguments) as given:
        space = ConfigGeneration(kernel.helion.bind(tuple(given)).config_spec)
    (start,) = kernel.helion.configs
    flat = space.flatten(start)

    def values(place: int) -> list[Any]:
        others = space.flat_spec[place].pattern_neighbors(flat[place])
        if not isinstance(space.flat_spec[place], ListOf):
            return others
        # one for each load or store of the kernel: all of them alike, or there is no end of it
        return [v for v in others if v and all(one == v[0] for one in v)]

    def changes() -> Iterator[dict[int, Any]]:
        places = {place: values(place) for place in range(len(flat))}
        yield from ({place: value} for place, others in places.items() for value in others)
        sizes = [
            place
            for place, fragment in enumerate(space.flat_spec)
            if fragment.category() in (Category.BLOCK_SIZE, Category.NUM_WARPS)
        ]
        for first, second in itertools.combinations(sizes, 2):
            for one, other in itertools.product(places[first], places[second]):
                yield {first: one, second: other}

    own = dict(space.unflatten([*flat]).config)
    differences = []
    for change in changes():
        try:
            config = space.unflatten([change.get(place, value) for place, value in enumerate(flat)]).config
        except InvalidConfig:
            continue
        differs = {name: value for name, value in config.items() if value != own.get(name)}
        if differs and differs not in differences:
            differences.append(differs)
    return [{**start.config, **differs} for differs in differences]


def serve(device: Device) -> None:
    """Answer the jobs on stdin.  Compilers may print to stdout, so the answers go to a copy of it."""
    end_with_parent()
    # the process that times candidates works only now and then, and must not wait for compilers
    os.nice(10)
    # compilers leave little garbage among many live objects, and collecting it would take up to an eighth
    gc.set_threshold(100_000, 20, 20)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    present_device(device)
    from helion_sinkhorn.configs.store import hashable
    from helion_sinkhorn.lab.operators import KERNELS, TRIALS
    from helion_sinkhorn.runtime.kernel import Choice

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        said = json.loads(line)
        choice = Choice(**{k: hashable(v) for k, v in said.pop("choice").items()})
        try:
            call = KERNELS[choice.kernel].call(**said.pop("call"))
            job = Job(call, choice, said["batch"], hashable(said["options"]))
            around = said.get("neighbours")
            row = {"configs": neighbours(*first_launch(device, job))} if around else compile_job(device, job)
            if said.get("judged") and TRIALS[choice.kernel].judged_apart and not row["problems"]:
                compile_launch(*judged_launch(device, job))
        except Exception as error:  # whatever Helion or a compiler raised is this job's result
            row = {"problems": [f"{type(error).__name__}: {error}".strip()]}
        print(json.dumps(row), file=answers, flush=True)


if __name__ == "__main__":
    serve(DEVICES[sys.argv[1]])
