"""Modules of vLLM and SGLang without what they need to be imported: a GPU, and some eighty packages.

Where a server is installed its own files are run, with a stub for whatever else they import.  Otherwise
stand-ins take their place, classes and functions with the released signatures and no arithmetic.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

STAND_INS = Path(__file__).parent / "server_stand_ins"


class Nothing:
    """The value of every attribute and every call of a stub; it is false."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return NOTHING

    def __call__(self, *given, **options):
        return self

    def __bool__(self) -> bool:
        return False


NOTHING = Nothing()


class Stub(ModuleType):
    __path__ = ()
    __getattr__ = Nothing.__getattr__


class Struct:
    """msgspec's, as SGLang uses it."""

    def __init_subclass__(cls):
        dataclasses.dataclass(cls)


def released(package: str) -> Path | None:
    """Where a server is installed; it is not imported."""
    spec = importlib.util.find_spec(package)
    return None if spec is None else Path(spec.submodule_search_locations[0])


def put(monkeypatch, name: str, module: ModuleType) -> ModuleType:
    """A module under its name and in its parents, which are stubs where nothing else is there."""
    monkeypatch.setitem(sys.modules, name, module)
    parent, _, last = name.rpartition(".")
    if parent:
        if not isinstance(sys.modules.get(parent), (Stub, _Loaded)):
            put(monkeypatch, parent, Stub(parent))
        monkeypatch.setattr(sys.modules[parent], last, module, raising=False)
    return module


class _Loaded(ModuleType):
    pass


def load(monkeypatch, name: str, path: Path) -> ModuleType:
    """A file as the module of that name."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = _Loaded(name)
    module.__spec__, module.__file__ = spec, str(path)
    put(monkeypatch, name, module)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module


def vllm(monkeypatch, root: Path | None, layers: Path | None = None) -> ModuleType:
    """vllm.model_executor.layers.mhc, or another file in its place."""
    if root is None:
        made = load(monkeypatch, "vllm.model_executor.custom_op", STAND_INS / "vllm.py")
        return put(monkeypatch, "vllm.model_executor.layers.mhc", made)
    imported = (
        "vllm.config", "vllm.logger", "vllm.model_executor.utils", "vllm.platforms", "vllm._aiter_ops",
        "vllm.utils.import_utils",
    )  # fmt: skip
    for name in imported:
        put(monkeypatch, name, Stub(name))
    executor = root / "model_executor"
    load(monkeypatch, "vllm.model_executor.custom_op", executor / "custom_op.py")
    load(monkeypatch, "vllm.model_executor.kernels.mhc", executor / "kernels" / "mhc" / "torch.py")
    return load(monkeypatch, "vllm.model_executor.layers.mhc", layers or executor / "layers" / "mhc.py")


def sglang(monkeypatch, root: Path | None) -> ModuleType:
    """sglang.srt.plugins.hook_registry, beside the modules that hooks are for."""
    kernels, models = "sglang.kernels.ops.layernorm", "sglang.srt.models"
    modules = {
        f"{kernels}.mhc": "kernels/ops/layernorm/mhc.py",
        f"{kernels}.mhc_head": "kernels/ops/layernorm/mhc_head.py",
        f"{models}.deepseek_v4_mhc": "srt/models/deepseek_v4_mhc.py",
        "sglang.srt.plugins.hook_registry": "srt/plugins/hook_registry.py",
    }
    if root is None:
        made = load(monkeypatch, "sglang.stand_in", STAND_INS / "sglang.py")
        return [put(monkeypatch, of, made) for of in modules][-1]
    imported = (
        "sglang.kernels.jit.utils", "sglang.srt.distributed.device_communicators.pynccl_allocator",
        "sglang.srt.environ", "sglang.srt.layers.attention.dsa.utils", "sglang.srt.layers.dp_attention",
        "sglang.srt.layers.utils.common", "sglang.srt.runtime_context", "sglang.srt.utils.common",
        f"{kernels}.mhc_post_split_h", f"{kernels}.mhc_mega",
        "sglang.kernels.ops.quantization.fp8_kernel", "sglang.srt.hardware_backend.npu.utils",
        "sglang.srt.layers.layernorm", "sglang.srt.layers.quantization.mxfp8_input",
        "sglang.srt.model_executor.forward_batch_info", "sglang.srt.model_executor.runner",
        "sglang.srt.model_executor.runner_utils.prefill_graph", f"{models}.deepseek_v2",
    )  # fmt: skip
    for name in imported:
        put(monkeypatch, name, Stub(name))
    if importlib.util.find_spec("msgspec") is None:
        put(monkeypatch, "msgspec", ModuleType("msgspec")).Struct = Struct
    return [load(monkeypatch, of, root / at) for of, at in modules.items()][-1]
