"""What the tuner's compiling processes leave for the process that times."""

from __future__ import annotations

import json
import os

import pytest
from forked import printed

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.machine.compiler import compile_for
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning.child import judged_launch
from helion_sinkhorn.ops.linear_attention.recurrent.space import WalkCall
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import default_choice

DEVICE = DEVICES["h200"]
CALL = SinkhornCall(True, 1, "float32", 4, 4, 2)
WALK = WalkCall("o", "float32", 8, 8, "")
ON_AN_H200 = """
import dataclasses
import json
import sys
import torch
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.presented import as_called, present_device, specialised

present_device(DEVICES["h200"])
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning import child
from helion_sinkhorn.ops.dot_compress.space import DotCall
from helion_sinkhorn.ops.linear_attention.chunked.space import ChunkCall
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.sinkhorn import views
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime import dispatch, generated
from helion_sinkhorn.runtime import kernel as kernels
from helion_sinkhorn.runtime.generated import bound
from helion_sinkhorn.runtime.standalone import standalone
"""
"""What a process begins with that looks at launches on an H200."""


def lines_of(*command: object, **environment: str) -> list[str]:
    """What a process prints for which there is an H200."""
    environment = {**os.environ, "HELION_SINKHORN_DEVICE": "h200", **environment}
    return printed(*command, env=environment, loaded=True).splitlines()


TIMES = """
import triton
from torch._subclasses.fake_tensor import FakeTensorMode

launch, name, fields = sys.argv[1:]
call = KERNELS[name].call(**json.loads(fields))
choice = kernels.default_choice(KERNELS[name], call, DEVICES["h200"])
kernel, arguments = getattr(child, launch)(DEVICES["h200"], Job(call, choice, 4096))
hits, launches = [], []
triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
with FakeTensorMode():
    given = [
        torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="cuda:0")
        if isinstance(a, torch.Tensor) else a
        for a in arguments
    ]
    generated.host_function(kernel, given, dispatch.signature(tuple(given)))(
        *given, _launcher=lambda function, grid, *a, **o: launches.append((function, grid, a, o))
    )
    ((function, grid, a, o),) = launches
    a, o = specialised(a, o)
    function.run(*a, grid=grid, warmup=True, **o)
print("helion" in sys.modules, hits)
"""


@pytest.mark.nightly(
    "half a minute each; code that is kept and launched is tested by test_code_of_launches always"
)
@pytest.mark.parametrize(
    ("kernel", "call", "batch", "launches"),
    [
        ("sinkhorn_forward", CALL, 1 << 20, ["first_launch"]),
        # the largest power of two whose offsets take 32 bits, as the launch's do
        ("linear_attention_walk", WALK, 1 << 17, ["first_launch", "judged_launch"]),
    ],
    ids=["sinkhorn", "linear attention, judged on fewer heads"],
)
def test_a_candidate_is_launched_without_helion_and_without_a_compiler(
    kernel, call, batch, launches, tmp_path, monkeypatch
):
    """Helion's code of a candidate took the timing process 2 to 5 s, one candidate after the other."""
    programs, cache = tmp_path / "programs", tmp_path / "triton"
    monkeypatch.setenv("HELION_SINKHORN_CACHE_DIR", str(programs))
    job = Job(call, default_choice(KERNELS[kernel], call, DEVICE), batch)
    (binary,) = compile_for("h200", [job], cache=cache)
    assert binary.compiled, binary.problems
    assert len(list(programs.iterdir())) == len(launches)
    for launch in launches:
        words = ON_AN_H200 + TIMES, launch, kernel, json.dumps(vars(call))
        assert lines_of("-c", *words, TRITON_CACHE_DIR=str(cache))[-1] == "False [True]"


def test_a_kernel_that_shares_its_body_is_tested_by_its_own_launch():
    call = SiteCall("bfloat16", 4, 64, "float32")
    for name in ("hc_boundary_backward", "hc_boundary_second"):
        built, _ = judged_launch(DEVICE, Job(call, default_choice(KERNELS[name], call, DEVICE), 64))
        assert built.kernel.name == name


LAUNCHES = """
def launch(name, call, batch):
    choice = kernels.default_choice(KERNELS[name], call, DEVICES["h200"])
    kernel, arguments = child.first_launch(DEVICES["h200"], Job(call, choice, batch))
    real = {}
    def on_cpu(t):
        return real.setdefault(id(t), torch.empty_strided(t.shape, t.stride(), dtype=t.dtype))
    return kernel, [on_cpu(a) if isinstance(a, torch.Tensor) else a for a in arguments]

def code_of(kernel, tensors):
    # Helion keeps what it generated for other arguments of the same types
    kernels.build.cache_clear()
    kernel = kernels.build(kernel.kernel, kernel.config, False)
    return bound(kernel, tensors).to_triton_code(kernel.helion.configs[0])
"""
"""Launches of tensors on the CPU, and their code."""
STORED = """
call = SinkhornCall(True, 1, "float32", 8, 8, 2)
choice = kernels.candidates(KERNELS["sinkhorn_forward"], call, DEVICES["h200"])[-1]
kernel, _ = child.first_launch(DEVICES["h200"], Job(call, dataclasses.replace(choice, stored=True), 64))
print(dict(kernel.config) == dict(choice.config))
"""
TWICE = """
call = SinkhornCall(True, 1, "float32", 48, 48, 4)
one, five = (code_of(*launch("sinkhorn_backward_history", call, batch)) for batch in (1, 5))
print(one.count("tl.debug_barrier()"), one == five)

kernel, two = launch("linear_attention_chunk_scores", ChunkCall("bfloat16", 64, 64, ""), 32)
print(two[0].size(0) > 1, code_of(kernel, two) == code_of(kernel, [two[0], two[0], *two[2:]]))
"""
OF_ANY_PROCESS = """
torch.cuda.current_device = lambda: 0
launched, kept = [], []
for d in (128, 256):
    kernel, arguments = launch("dot_compress_apply", DotCall("bfloat16", 1024, d, 64, 1), 64)
    host = generated.generated(kernel, arguments, kept.append)
    host(*arguments, _launcher=lambda function, grid, *given, **options: launched.append((function, given)))
(function, small), (same, large) = launched
alike = dispatch.specialisation(function, small) == dispatch.specialisation(function, large)
print(function is same, alike, len(kept))

texts = []
for default in (torch.float32, torch.float64):
    kernels.build.cache_clear()
    torch.set_default_dtype(default)
    kernel, arguments = launch("sinkhorn_implicit_cg", SinkhornCall(False, 1, "float32", 4, 4, 4), 64)
    texts.append(generated.code_of(kernel, bound(kernel, arguments)))
print(texts[0] == texts[1], torch.get_default_dtype())
"""


IN_PLACE = """
kernel, tensors = launch("hc_site_backward", SiteCall("bfloat16", 4, 256, "float32"), 64)
over, texts = [*tensors], []
over[7] = over[4].view(over[4].shape)  # dx and the residual
generated.load = lambda code, name: texts.append(code)
for arguments in (tensors, over):
    kernels.build.cache_clear()
    generated.generated(kernels.build(kernel.kernel, kernel.config, False), arguments)
print(texts[0] == texts[1], *[text.count("tl.debug_barrier()") for text in (texts[1], code_of(kernel, over))])
"""


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        (STORED + OF_ANY_PROCESS, ["True", "True False 2", "True torch.float64"]),
        pytest.param(
            *(IN_PLACE + TWICE, ["True 0 1", "1 True", "True True"]),
            marks=pytest.mark.nightly("20 s of Helion; arguments that share memory are shown below always"),
        ),
    ],
    ids=["constants", "signatures"],
)
def test_code_of_launches(programs, expected):
    """In the order of the programs above.

    A stored config is compiled itself: a launch that raises makes way for the default, which `check` then
    compiled instead. A call that writes dx over another gradient gets the text of one that does not. One
    program serves every call of its signature: a batch of one has the barrier that others need; and of q
    that is passed as k too, Helion made one argument, which calls with another k then took for it. One
    text serves dot compress of 128 and of 256 columns, which are constants of its binaries: the second
    call of a process summed 128 of 256. Under a default dtype of float64 conjugate gradients computed in
    it.
    """
    assert lines_of("-c", ON_AN_H200 + LAUNCHES + programs)[-len(expected) :] == expected


UNDER_3_6 = """
device, call = DEVICES["h200"], SinkhornCall(False, 1, "float32", 16, 16, 3)
views.triton_version = lambda: (3, 6)
for name in ("forward", "backward", "backward_history", "implicit_cg"):
    choices = kernels.candidates(KERNELS[f"sinkhorn_{name}"], call, device)
    shared = next(c for c in choices if dict(c.variant)["thread"] == (4, 4))
    kernel, arguments = child.first_launch(device, Job(call, shared, 64))
    (config,) = kernel.helion.configs
    with as_called(arguments) as given:
        print(standalone(bound(kernel, given).to_triton_code(config), kernel.name) is not None)
"""


@pytest.mark.nightly("a minute of Helion for four kernels")
def test_kernels_of_triton_3_6_need_no_helion_either():
    """A function of the package in their host code made every process generate them."""
    assert lines_of("-c", ON_AN_H200 + UNDER_3_6)[-4:] == ["True"] * 4


SHARED = """
import helion
import helion.language as hl


def there_and_back(x: torch.Tensor, kept: torch.Tensor, again: torch.Tensor, out: torch.Tensor):
    for tile in hl.tile(x.size(0)):
        kept[tile, :] = x[tile, :]
        out[tile, :] = again[tile, :]


def code(arguments):
    # anew: Helion keeps a program for arguments of these sizes, whatever they share
    config = helion.Config(block_sizes=[16])
    kernel = helion.kernel(there_and_back, config=config, static_shapes=False)
    return kernel.bind(tuple(arguments)).to_triton_code(config)


x, kept, out = (torch.zeros(64, 8) for _ in range(3))
for again in (kept.view(64, 8), torch.zeros(64, 8)):
    arguments = x, kept, again, out
    with as_called(arguments) as given:
        presented = code(given)
    print(presented.count("tl.debug_barrier()"), code(arguments).count("tl.debug_barrier()"))
"""


def test_a_candidate_knows_which_arguments_share_memory(tmp_path):
    """Helion has a barrier between a store to one and a load from another, and none between others."""
    script = tmp_path / "shared.py"
    script.write_text(ON_AN_H200 + SHARED)
    assert lines_of(script)[-2:] == ["1 1", "0 0"]
