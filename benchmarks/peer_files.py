"""Kernels of other repositories that no package installs, loaded by file.

HELION_SINKHORN_PEERS names a folder with checkouts of TransformerEngine and Megatron-LM (its branch dev), or
with no more than the FILES of them.  These import their own packages, of which a few names are enough: what
stands in for the rest is below; of what is measured it computes nothing but the product of two matrices.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import torch

from helion_sinkhorn.configs import store
from helion_sinkhorn.lab.tuning.provenance import output_of

FOLDER = "HELION_SINKHORN_PEERS"
TRANSFORMER_ENGINE = "TransformerEngine/transformer_engine/pytorch/triton/mhc.py"
TRANSFORMER_ENGINE_KERNELS = "TransformerEngine/transformer_engine/common/triton/mhc.py"
MEGATRON = "Megatron-LM/megatron/core/fusions/fused_mhc_kernels.py"
MEGATRON_PYTORCH = "Megatron-LM/megatron/core/transformer/hyper_connection.py"


def path(file: str) -> Path:
    """Where a file is; ModuleNotFoundError, as of a package, where it is not."""
    folder = os.environ.get(FOLDER)
    if not folder:
        raise ModuleNotFoundError(
            f"{FOLDER} is not set: it names a folder with a checkout of {file.partition('/')[0]}"
        )
    place = Path(folder) / file
    if not place.is_file():
        raise ModuleNotFoundError(f"{FOLDER}={folder} has no {file}")
    return place


def version(package: str, file: str) -> str:
    """The version of a package, or the commit of a file's checkout; empty where there is neither."""
    if package or not file:
        return store.installed(package) if package else ""
    checkout = path(file).parents[file.count("/") - 1]
    if not (checkout / ".git").exists():
        return ""
    return output_of("git", "-C", str(checkout.resolve()), "rev-parse", "--short=10", "HEAD")


def stand_in(name: str, **attributes: object) -> None:
    """A module of that name with these attributes, and the packages above it."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        module = ".".join(parts[:depth])
        sys.modules.setdefault(module, ModuleType(module))
        sys.modules[module].__path__ = []
    vars(sys.modules[name]).update(attributes)


def run(file: str, name: str) -> ModuleType:
    """The module that a file defines, under the name by which others import it."""
    if name not in sys.modules:
        specification = importlib.util.spec_from_file_location(name, path(file))
        module = importlib.util.module_from_spec(specification)
        stand_in(name.rpartition(".")[0])
        sys.modules[name] = module
        try:
            specification.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def product(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype, layout: str) -> tuple[torch.Tensor]:
    """TransformerEngine's product of b' and a, for which it takes TF32 of float32 matrices."""
    if (out_dtype, layout) != (torch.float32, "NT"):
        raise NotImplementedError(f"layout NT with float32 results, not {layout} with {out_dtype}")
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return (b.mT @ a,)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def transformer_engine() -> ModuleType:
    """Its functions of mHC: mhc_generate_mix_and_aggregate, mhc_fused_expand_combine and their parts."""
    path(TRANSFORMER_ENGINE)
    run(TRANSFORMER_ENGINE_KERNELS, "transformer_engine.common.triton.mhc")
    stand_in("transformer_engine.pytorch.cpp_extensions.gemm", general_gemm=product)
    return run(TRANSFORMER_ENGINE, "transformer_engine.pytorch.triton.mhc")


def megatron() -> ModuleType:
    """fused_sinkhorn, fused_h_aggregate, fused_h_post_bda and fused_proj_rms_compute_h."""
    path(MEGATRON)
    core = "megatron.core"
    stand_in(f"{core}._rank_utils", log_single_rank=lambda *a: None, safe_get_rank=lambda: 0)
    stand_in(f"{core}.utils", nvtx_decorator=lambda *a, **k: lambda function: function)
    stand_in(f"{core}.transformer.module", MegatronModule=torch.nn.Module, mark_keep_in_fp32=lambda p: p)
    stand_in(f"{core}.transformer.transformer_config", TransformerConfig=object)
    run(MEGATRON_PYTORCH, f"{core}.transformer.hyper_connection")
    return run(MEGATRON, f"{core}.fusions.fused_mhc_kernels")


def megatron_pytorch() -> ModuleType:
    """BroadcastTensorFused, which sums the three gradients of the streams, and its functions in PyTorch."""
    megatron()
    return sys.modules["megatron.core.transformer.hyper_connection"]
