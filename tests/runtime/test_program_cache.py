"""Generated code on disk: what is executed, what never is, and what another process finds."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import pkgutil
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import torch
from forked import printed
from launches import at_an_h200, launching_as

import helion_sinkhorn as hs
from helion_sinkhorn.configs import settings
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, OPERATORS
from helion_sinkhorn.lab.tuning import commands, warm
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.runtime import ahead, compiled_source, dispatch, generated, program_cache
from helion_sinkhorn.runtime.kernel import Choice, build, default_choice
from helion_sinkhorn.runtime.standalone import load, standalone
from helion_sinkhorn.runtime.upcoming import upcoming

TESTS = Path(__file__).resolve().parents[1]
NAME = "host.py"
CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where code is kept during a test."""
    at = tmp_path / "programs"
    monkeypatch.setattr(settings, "CACHE_DIR", str(at))
    program_cache.say_foreign.cache_clear()
    yield at
    program_cache.say_foreign.cache_clear()


@pytest.fixture
def planted(folder):
    """A kept program that leaves a mark when it is executed, and the mark."""
    mark = folder.parent / "executed"
    program_cache.keep(NAME, f"open({str(mark)!r}, 'w').close()\n\ndef host():\n    return 41\n")
    return folder / NAME, mark


def test_what_was_kept_is_what_runs(planted):
    file, mark = planted
    assert not mark.exists()
    assert program_cache.kept(NAME, "host")() == 41
    assert mark.exists()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert program_cache.usage() == (1, file.stat().st_size)


DAMAGES = {
    "another byte": lambda file: file.write_bytes(file.read_bytes().replace(b"41", b"42")),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-4]),
    "without its heading": lambda file: file.write_bytes(file.read_bytes().partition(b"\n")[2]),
    "not text": lambda file: file.write_bytes(b"\xff\xfe"),
    "others may write it": lambda file: file.chmod(0o620),
    "others may write beside it": lambda file: file.parent.chmod(0o770),
    "a link": lambda file: file.symlink_to(file.rename(file.with_suffix(".elsewhere"))),
    "code that fails": lambda file: program_cache.keep(NAME, "import no_such_module\n"),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_or_writable_by_others_is_not_executed_and_is_written_anew(planted, damage):
    file, mark = planted
    DAMAGES[damage](file)
    assert program_cache.kept(NAME, "host") is None
    assert not mark.exists()
    if damage != "others may write beside it":
        program_cache.keep(NAME, "def host():\n    return 43\n")
        assert program_cache.kept(NAME, "host")() == 43


def test_a_folder_in_which_nothing_can_be_kept_is_not_said_to_be_used(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    for named in (file, file / "below"):
        monkeypatch.setattr(settings, "CACHE_DIR", str(named))
        assert not program_cache.is_usable()
        assert program_cache.made_folder() is None
    monkeypatch.setattr(settings, "CACHE_DIR", str(tmp_path / "new" / "folder"))
    assert program_cache.is_usable()
    assert not (tmp_path / "new").exists()
    assert program_cache.made_folder() == tmp_path / "new" / "folder"
    assert program_cache.is_usable()
    (tmp_path / "new" / "folder").chmod(0o777)
    assert not program_cache.is_usable()
    assert program_cache.made_folder() is None


def test_what_belongs_to_another_user_is_not_executed(planted, monkeypatch, caplog):
    _, mark = planted
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert program_cache.kept(NAME, "host") is None
    assert not program_cache.is_usable()
    assert not mark.exists()
    program_cache.keep("another.py", "def host(): pass")
    assert program_cache.usage()[0] == 1
    assert sum("belongs to another user" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize("place", ["off", "/dev/null/programs"])
def test_off_and_a_place_that_cannot_be_written(place, monkeypatch):
    monkeypatch.setattr(settings, "CACHE_DIR", place)
    program_cache.keep(NAME, "def host(): pass")
    assert program_cache.kept(NAME, "host") is None
    assert program_cache.usage() == (0, 0)


def test_warm_refuses_a_place_that_cannot_be_written(monkeypatch, refused):
    monkeypatch.setattr(settings, "CACHE_DIR", "/dev/null/programs")
    monkeypatch.setattr(commands, "present_device", lambda device: pytest.fail("it was begun"))
    said = refused("warm", "--device", "h200", "--op", "sinkhorn", "n=4")
    assert said.startswith("warm: nothing can be kept in /dev/null/programs: it is no folder")


def test_the_folder_of_the_user(monkeypatch):
    monkeypatch.setattr(settings, "CACHE_DIR", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert program_cache.folder() == Path("/home/somebody/.cache/helion_sinkhorn")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert program_cache.folder() == Path("/elsewhere/helion_sinkhorn")


# ------------------------------------------------------------------------------------------ names of files


def name_of(choice: Choice, eps: float = 1e-6, shape: tuple[int, ...] = (16, 3, 3), batch_stride: int = 0):
    """The file of a launch's program."""
    call = launch.call_for(*shape[1:], torch.float32, 3, eps, "deepseek", "rows")
    x = torch.empty_strided(shape, (batch_stride or shape[1] * shape[2], shape[2], 1))
    args = x, x, launch.constants(call, eps, choice, "ptx")
    kernel = build(KERNELS["sinkhorn_forward"], choice.config)
    return program_cache.file_name(kernel.name, *generated.decisions(kernel, args, dispatch.signature(args)))


def test_one_name_for_one_program_and_another_wherever_something_differs(monkeypatch):
    call = launch.call_for(3, 3, torch.float32, 3, 1e-6, "deepseek", "rows")
    choice = default_choice(KERNELS["sinkhorn_forward"], call, DEVICES["h200"])
    # the process that times wrote candidates in another order than the one that had compiled them
    turned = dataclasses.replace(choice, config=choice.config[::-1])
    other = dataclasses.replace(choice, config=(("block_sizes", (2,)), ("num_warps", 1)))
    same = name_of(choice)
    assert name_of(choice, shape=(9, 3, 3)) == name_of(turned) == same
    names = [same, name_of(other), name_of(choice, eps=1e-5), name_of(choice, shape=(16, 3, 4))]
    names.append(name_of(choice, batch_stride=16))
    for member, value in (
        ("versions", lambda: ("another",)),
        ("sources", lambda: "another"),
        ("target", lambda device: ("another",)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(program_cache, member, value)
            names.append(name_of(choice))
    assert len(set(names)) == len(names)


def test_variables_that_change_what_helion_generates_count(monkeypatch):
    versions = program_cache.versions.__wrapped__
    before = versions()
    monkeypatch.setenv("HELION_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("HELION_SINKHORN_DEVICE", "h100")
    assert versions() == before
    monkeypatch.setenv("HELION_FAST_MATH", "1")
    assert versions() != before


# ---------------------------------------------------------------------------------------- code without Helion

GENERATED = '''from __future__ import annotations
import torch
import helion
import helion.language as hl
import triton.language as tl
from helion.runtime import default_launcher as _default_launcher
import helion_sinkhorn.runtime.device_math as _source_module

def host(x: hl.constexpr, y: torch.Tensor | None, *, _launcher=_default_launcher):
    """Text."""
    unused, other = (_source_module.is_padded(3), 2)
    size = x.size(0)
    if y is not None:
        unused = hl.specialize(y.stride())
        hl.specialize(y.shape)
    units = helion.runtime.get_num_sm(x.device)
    _launcher("kernel", (size * units,), x, _source_module.LOG2E, num_warps=1{more})
'''


def test_a_host_function_keeps_what_its_launch_needs(monkeypatch):
    code = standalone(GENERATED.format(more=""), "host")
    assert "helion" not in code
    assert "unused" not in code
    properties = type("Properties", (), {"multi_processor_count": 7})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    launches = []
    x = torch.zeros(3)
    load(code, "host")(x, None, _launcher=lambda *given, **options: launches.append((*given, options)))
    assert launches == [("kernel", (21,), x, 1.4426950408889634, {"num_warps": 1})]


@pytest.mark.parametrize(
    "more", [", _minimum_resident_programs=1", ", kernel=_source_module.reciprocal", ", k=hl"]
)
def test_code_that_needs_helion_stays_helions(more):
    assert standalone(GENERATED.format(more=more), "host") is None


def test_launches_fuse_products_unless_code_says_otherwise():
    function = mock.Mock()
    dispatch.launch(function, (3,), 1, 2, num_warps=4)
    function.run.assert_called_once_with(1, 2, grid=(3,), warmup=False, num_warps=4, enable_fp_fusion=True)


def kernel_of(program=None):
    return types.SimpleNamespace(helion=program, name="host", kernel=KERNELS["sinkhorn_forward"])


def test_code_of_an_edited_source_is_not_kept(tmp_path, monkeypatch, caplog):
    """Nor any later code, after the edit was undone: the modules in memory may be of the edited one."""
    monkeypatch.setattr(compiled_source, "_PACKAGE", tmp_path)
    monkeypatch.setattr(program_cache, "_edited", threading.Event())
    source = tmp_path / "ops" / "kernels.py"
    source.parent.mkdir()
    source.write_text("right")
    digest = program_cache.sources.__wrapped__
    first = digest()
    monkeypatch.setattr(program_cache, "sources", functools.wraps(digest)(lambda: first))
    kept = []

    def generate(edit: str = "right"):
        program = mock.Mock(configs=("config",))
        program.bind.return_value = program
        program.to_triton_code = lambda config: source.write_text(edit) and GENERATED.format(more="")
        generated.generated(kernel_of(program), (torch.zeros(3), None), kept.append)

    generate()
    assert len(kept) == 1
    generate("edited while Helion reads it")
    source.write_text("right")
    generate()
    assert caplog.text.count("changed beneath this process") == 1
    # another process, in which the source is edited before the kernel is imported and mended meanwhile
    monkeypatch.setattr(program_cache, "_edited", threading.Event())
    source.write_text("edited")
    generate()
    assert len(kept) == 1


def test_the_source_is_digested_before_a_kernel_is_imported():
    code = "import sys; from helion_sinkhorn.runtime import program_cache; "
    code += "print([m for m in sys.modules if m.endswith('.kernels')], program_cache.sources.cache_info()[3])"
    assert printed("-c", code) == "[] 1\n"


def test_what_killed_writers_left_goes(folder):
    program_cache.keep(NAME, "first")
    hexes = "0123456789abcdef" * 2 + "01234567"
    names = f".hc_pre.{hexes}.abcd_123.tmp", f".hc_pre.{hexes}.abcd_124.tmp", ".notes.tmp"
    old, young, foreign = (folder / name for name in names)
    for path in (old, young, foreign):
        path.write_text("half")
        if path != young:
            os.utime(path, (1, 1))
    program_cache._clean.cache_clear()
    program_cache.keep(NAME, "second")
    assert {path.name for path in folder.iterdir()} == {NAME, young.name, foreign.name}


def test_threads_generate_one_after_another(monkeypatch):
    """Helion failed in one of four threads at their first calls, and the config of that call was refused."""
    inside = threading.Lock()

    def bound(kernel, args):
        assert inside.acquire(blocking=False)
        time.sleep(0.02)
        inside.release()

    monkeypatch.setattr(generated, "bound", bound)
    monkeypatch.setattr(generated, "code_of", lambda kernel, program: "def host():\n    return 41\n")
    with ThreadPoolExecutor(4) as pool:
        hosts = list(pool.map(lambda _: generated.generated(kernel_of(), (torch.zeros(3),)), range(8)))
    assert [host() for host in hosts] == [41] * 8


def test_generating_leaves_the_usual_default_dtype_to_other_threads(monkeypatch):
    """It is of the process: set back, it undid what a thread that makes a model had set meanwhile."""
    set_it = []
    monkeypatch.setattr(torch, "set_default_dtype", set_it.append)
    with generated.under_float32():
        assert set_it == []
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.bfloat16)
    with generated.under_float32():
        assert set_it == [torch.float32]
    assert set_it == [torch.float32, torch.bfloat16]


def test_numbers_that_stay_arguments_do_not_tell_programs_apart():
    walk = KERNELS["linear_attention_walk"]
    parameters = list(inspect.signature(pkgutil.resolve_name(walk.body)).parameters)
    kernel = build(walk, ())
    args = [7] * len(parameters)
    for at, name in enumerate(parameters):
        other = [*args[:at], 8, *args[at + 1 :]]
        equal = generated.of_any(kernel, args, args) == generated.of_any(kernel, other, other)
        assert equal is (name in ("sequences", "length", "scale"))


@pytest.mark.parametrize("name", KERNELS)
def test_a_body_takes_tensors_then_the_numbers_of_its_row_then_one_record(name):
    kernel = KERNELS[name]
    taken = list(inspect.signature(pkgutil.resolve_name(kernel.body)).parameters.values())
    kinds = [p.annotation for p in taken]
    assert (taken[-1].name, kinds[-1]) == ("facts", "hl.constexpr")
    tensors = len(kinds) - 1 - kernel.numbers
    assert set(kinds[:tensors]) <= {"torch.Tensor", "torch.Tensor | None"}
    assert set(kinds[tensors:-1]) <= {"int", "float"}


# ------------------------------------------------------------------------------------------ warm


def test_workloads_that_are_asked_for():
    workloads = list(warm.workloads("sinkhorn", ["n=3,4", "m=4", "dtype=bfloat16", "eps=1e-5"]))
    assert [(w.n, w.m, w.dtype, w.eps) for w in workloads] == [(n, 4, torch.bfloat16, 1e-5) for n in (3, 4)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("sinkhorn foo=3", "sinkhorn has no field 'foo'; its fields are n, m, batch, n_iters"),
        ("sinkhorn batch", "'batch' has no value; write batch=128"),
        ("sinkhorn n=3 n=4", "n is given twice; write all its values as n=value,value"),
        ("sinkhorn m=x", "m is 'x'; pass an int"),
        ("sinkhorn eps=small", "eps is 'small'; pass a float"),
        ("dot_compress has_z=yes", "has_z is 'yes'; use True or False"),
        ("sinkhorn dtype=float31", "dtype is 'float31'; use float32, bfloat16 or float16 (float64"),
        ("sinkhorn dtype=float32,float64", "dtype is 'float64'; use float32, bfloat16 or float16"),
        ("sinkhorn n=0", "n is 0; pass an int from 1"),
        ("sinkhorn batch=-1", "batch is -1; pass an int from 1"),
        ("sinkhorn n_iters=0", "n_iters is 0, which is exp(logits) and no kernel: PyTorch"),
        ("sinkhorn form=nope", "form is 'nope'; use one of 'deepseek', 'log'"),
        (
            "sinkhorn n=4,400",
            "the kernels take several rows of 32 entries and more here, logits has 400 of 4",
        ),
        ("sinkhorn n=2000000000 m=2000000000 batch=2000000000", "Storage size calculation overflowed"),
        ("hc_site comb_order=xx", "comb_order is 'xx'; use one of 'io', 'oi'"),
        ("hc_split_sinkhorn n_iters=40", "the kernels take up to 33 iterations for 4 streams, n_iters is 40"),
        ("linear_attention gates=g,nope", "gates is 'nope'; use one of 'g', 'g_gamma', 'gk', 'gv'"),
    ],
)
def test_warm_names_what_is_wrong_before_it_does_anything(given, said, monkeypatch, refused):
    for member in ("present_device", "current"):
        monkeypatch.setattr(commands, member, lambda *given: pytest.fail("it was begun"))
    error = refused("warm", "--device", "h200", "--op", *given.split())
    assert error.startswith(f"warm: {said}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_workloads_themselves_are_calls_that_warm_takes(operator):
    kind = OPERATORS[operator].workload
    warm.check(operator, [w for w in WORKLOADS.values() if isinstance(w, kind) and "tune" in w.tags])


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def sites(n: int, c: int, **options) -> tuple[torch.Tensor, ...]:
    """The calls of sites of n streams, with and without their norm, and of seams between two."""
    x, norm = functools.partial(normal, 64, n, c), {"y_norm_weight": normal(c)}

    def of_site() -> tuple[torch.Tensor, ...]:
        return normal(n * (n + 2), n * c), normal(3), normal(n * (n + 2))

    def crossed(pre_next=None, **norm):
        update = normal(64, c), x(), normal(64, n), normal(64, n, n)
        return hs.hc_boundary(*update, pre_next, *of_site(), **norm, **options)

    made = *hs.hc_site(x(), *of_site(), **options), *hs.hc_site(x(), *of_site(), **norm, **options)
    if n != 4:  # beyond what a seam's own kernels take
        return made
    made += *crossed(normal(64, n)), *crossed(normal(64, n), **norm)
    return *made, *torch.no_grad()(crossed)(**norm)


def attended(dtype: torch.dtype = torch.bfloat16, **options) -> torch.Tensor:
    q, k, v, gate = (normal(2, 64, 2, 32).to(dtype) for _ in range(4))
    return hs.recurrent_linear_attention(q, k, v, gk=-gate.abs(), **options)


ATTENTION = "linear_attention sequences=2 steps=64 heads=2 dk=32 dv=32"
CALLS = {
    "sinkhorn n=4 m=4 eps=1e-5": lambda: hs.sinkhorn(normal(64, 4, 4), eps=1e-5),
    "sinkhorn n=4 m=8 form=log first=cols n_iters=7": lambda: hs.sinkhorn(
        normal(64, 4, 8), 7, form="log", first="cols"
    ),
    "sinkhorn n=8 m=8 form=log n_iters=50 backward=implicit": lambda: hs.sinkhorn(
        normal(64, 8, 8), 50, form="log", backward="implicit"
    ),
    "dot_compress m=40 d=32 k=16 dtype=float32": lambda: hs.dot_compress(
        normal(64, 40, 32), normal(64, 40, 16)
    ),
    "dot_compress m=40 d=32 k=16 has_z=True precise=True": lambda: hs.dot_compress(
        *(normal(64, *size).bfloat16() for size in ((40, 32), (40, 16), (32, 16))), precise_intermediate=True
    ),
    "hc_mixes c=256 dtype=float32": lambda: hs.hc_mixes(normal(64, 4, 256), normal(24, 1024)),
    "hc_mixes c=256 dtype=float32 precision=tf32": lambda: hs.hc_mixes(
        normal(64, 4, 256), normal(24, 1024), precision="tf32"
    ),
    "hc_pre c=256 dtype=float32": lambda: hs.hc_pre(normal(64, 4, 256), normal(64, 4)),
    "hc_pre c=256 dtype=float32 y_norm=True": lambda: hs.hc_pre(
        normal(64, 4, 256), normal(64, 4), y_norm_weight=normal(256)
    ),
    "hc_post c=256 dtype=float32": lambda: hs.hc_post(
        normal(64, 256), normal(64, 4, 256), normal(64, 4), normal(64, 4, 4)
    ),
    "hc_site c=64 dtype=float32": lambda: sites(4, 64),
    # where a second pass pays in the gradient of hc_boundary
    "hc_site c=7168 dtype=float32": lambda: sites(4, 7168),
    "hc_site n=5 c=64 dtype=float32 precision=tf32 n_iters=7 eps=0.01 eps_outside=True": lambda: sites(
        5, 64, precision="tf32", sinkhorn_iters=7, eps=0.01, eps_outside=True
    ),
    "hc_site c=64 dtype=float32 norm_eps=0.01 post_mult=0.5 post_eps=0.01 comb_order=oi": lambda: sites(
        4, 64, norm_eps=0.01, post_mult=0.5, post_eps=0.01, comb_order="oi"
    ),
    "hc_split_sinkhorn n=4 n_iters=10": lambda: hs.hc_split_sinkhorn(
        normal(64, 24), normal(3), normal(24), sinkhorn_iters=10
    ),
    f"{ATTENTION} dtype=float32": lambda: attended(torch.float32),
    f"{ATTENTION} dtype=bfloat16": attended,
    f"{ATTENTION} dtype=bfloat16 reverse=True": lambda: attended(reverse=True),
}  # fmt: skip


@pytest.mark.parametrize("asked", CALLS)
def test_warm_and_what_is_compiled_ahead_are_the_launches_of_a_call(asked, monkeypatch, fresh_caches):
    """`warm` makes those of a call and of its gradient; what is compiled ahead is the gradient's."""
    calls, launched = [], set()

    def name(kernel, *args):
        # of any device: those compiled ahead have no data
        signature = [(s[0], CPU, *s[2:]) if isinstance(s, tuple) else s for s in dispatch.signature(args)]
        return kernel.name, repr(sorted(kernel.config)), repr(generated.of_any(kernel, args, signature))

    def run(kernel, *args):
        launched.add(name(kernel, *args))
        if upcoming.call:
            calls.append(upcoming.call)
            upcoming.call = None

    def made() -> set:
        of_now = launched.copy()
        launched.clear()
        return of_now

    launching_as(monkeypatch, device_at=at_an_h200, run=run)
    monkeypatch.setattr(ahead, "device_at", at_an_h200)
    operator, *fields = asked.split()
    batch = [] if operator == "linear_attention" else ["batch=64"]
    (workload,) = warm.workloads(operator, [*fields, *batch])
    warm.launch(workload, DEVICES["h200"], "cpu")
    warmed = made()
    calls.clear()
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda t: True))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    results = CALLS[asked]()
    results = results if isinstance(results, tuple) else (results,)
    results = [r for r in results if r is not None and r.requires_grad]
    of_call, guessed = made(), set()
    for function, own, _, arguments in calls:
        needed = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments)
        arguments = [ahead.like(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        guessed |= {name(*launch) for launch in ahead.launches(function, own, arguments, needed, CPU)}
    upcoming.notes = False
    torch.autograd.backward(results, [torch.randn_like(r) for r in results])
    of_gradient = made()
    assert guessed == of_gradient != set()
    assert warmed == of_call | of_gradient


def test_a_device_is_presented_to_what_torch_has_imported_before():
    """The checks of `warm` import it, and Helion asks it."""
    asked = """
from torch._dynamo.device_interface import CudaInterface
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.presented import present_device
present_device(DEVICES["h200"])
of = CudaInterface
print(of.get_device_properties(0).name, of.device_count(), of.current_device())
"""
    assert printed("-c", asked) == "h200 1 0\n"
