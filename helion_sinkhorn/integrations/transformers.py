"""patch(model): the mHC residual path of a DeepseekV4 model of transformers, by this package.

transformers is no dependency of the package: this module alone imports it.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.nn import HyperConnection, HyperHead
from helion_sinkhorn.ops.hc_post.api import hc_post

TESTED = "5.23.0"
try:
    import transformers
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs
except ImportError as error:
    raise ImportError(
        "helion_sinkhorn.integrations.transformers needs a transformers that has DeepseekV4: "
        f"pip install transformers=={TESTED}"
    ) from error

KNOWN = {
    "DeepseekV4HyperConnection": "b42919bad4c937d7",
    "DeepseekV4HyperHead": "81e9adf9c02b338a",
    "DeepseekV4UnweightedRMSNorm": "db1bcbbbbe91c788",
    "DeepseekV4DecoderLayer": "13b7e174d870e669",
}
"""`digest` of the forward methods that are replaced, in the transformers TESTED."""

REPLACED = "_replaced"
"""The attribute in which a module keeps the one whose place it took."""


class Patched(NamedTuple):
    """How many modules of a model were exchanged."""

    connections: int
    heads: int
    layers: int


class DeepseekV4DecoderLayer(theirs.DeepseekV4DecoderLayer):
    """A decoder layer whose streams are updated by `hc_post`: float32 coefficients, one rounding.

    Its sites make one gradient of the streams (`hc_site`), where autograd would add three.

    The layer of transformers rounds post and comb to the dtype of the streams first, and then the product,
    the matrix product and their sum.  The name is that of the class it replaces, by which accelerate and
    FSDP's wrapping policies find layers.
    """

    def forward(
        self, hidden_states: torch.Tensor, input_ids: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        site = self.attn_hc.enter(hidden_states)
        attended, _ = self.self_attn(self.input_layernorm(site.y), **kwargs)
        streams = hc_post(attended, site.residual, site.post, site.comb)
        site = self.ffn_hc.enter(streams)
        output = self.mlp(self.post_attention_layernorm(site.y), input_ids=input_ids)
        return hc_post(output, site.residual, site.post, site.comb)


def patch(
    model: torch.nn.Module,
    *,
    layers: bool = True,
    precision: str = "float32",
    implementation: str = "auto",
) -> Patched:
    """Exchange the mHC modules of a DeepseekV4 model for those of this package, in place.

    Every DeepseekV4HyperConnection becomes `nn.HyperConnection` and every DeepseekV4HyperHead `nn.HyperHead`.
    They hold the same Parameter objects under the same names, so optimizers and state dicts stay valid.
    Every DeepseekV4DecoderLayer then updates its streams by `hc_post`.  `unpatch` takes all of it back.

    Args:
        model: a module that contains them, on any device; DeepseekV4ForCausalLM for instance.
        layers: False leaves the update of the streams to transformers, with its roundings.
        precision: of the projection, as `hc_mixes` has it.
        implementation: "auto", "helion" or "pytorch", of the modules.

    Returns:
        How many modules of each kind were exchanged.

    Numerical policy: in float32 the results are those of the original but for the order of sums.  In
        bfloat16 they are closer to float64: where the original rounds coefficients, products and sums,
        `hc_post` rounds once.  Under autocast the projection stays in float32, which the original's does not.

    Raises:
        TypeError: model is no module.
        ValueError: there is no such module, or one is sharded by FSDP, has hooks, or has other code than that
            of transformers 5.23.0.  Nothing is changed then.
    """
    _check_model(model)
    connections = _named(model, theirs.DeepseekV4HyperConnection)
    heads = _named(model, theirs.DeepseekV4HyperHead)
    blocks = _named(model, theirs.DeepseekV4DecoderLayer) if layers else {}
    if "" in (connections | heads) or not (connections or heads):
        already = any(isinstance(m, (HyperConnection, HyperHead)) for m in model.modules())
        raise ValueError(
            f"{type(model).__name__} contains no DeepseekV4HyperConnection and no DeepseekV4HyperHead; "
            + ("it is patched already" if already else "pass a DeepseekV4 model of transformers")
        )
    for name, module in (connections | heads | blocks).items():
        _check(name, module)
    options = {"precision": precision, "implementation": implementation}
    ours = {module: _connection(module, **options) for module in connections.values()}
    ours |= {module: _head(module, **options) for module in heads.values()}
    for name, module in (connections | heads).items():
        model.set_submodule(name, ours[module])
    for block in blocks.values():
        block.__class__ = DeepseekV4DecoderLayer
    return Patched(*(len(set(found.values())) for found in (connections, heads, blocks)))


def unpatch(model: torch.nn.Module) -> Patched:
    """Take `patch` back: the modules of transformers again, with the Parameter objects that there are now.

    Returns:
        How many modules of each kind were exchanged.

    Raises:
        TypeError: model is no module.
        ValueError: the model is not patched, or a module of ours has hooks, which would be lost.
    """
    _check_model(model)
    ours = {name: m for name, m in _named(model).items() if hasattr(m, REPLACED)}
    blocks = [m for m in model.modules() if type(m) is DeepseekV4DecoderLayer]
    if not ours and not blocks:
        raise ValueError(f"{type(model).__name__} is not patched")
    for name, module in ours.items():
        _check_hooks(name, module, "remove them before unpatch")
    for name, module in ours.items():
        (original,) = getattr(module, REPLACED)
        _share(original, module)
        model.set_submodule(name, original)
    for block in blocks:
        block.__class__ = theirs.DeepseekV4DecoderLayer
    exchanged = set(ours.values())
    connections = sum(isinstance(m, HyperConnection) for m in exchanged)
    return Patched(connections, len(exchanged) - connections, len(blocks))


def _check_model(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; pass a torch.nn.Module")


def _named(
    model: torch.nn.Module, kind: type[torch.nn.Module] = torch.nn.Module
) -> dict[str, torch.nn.Module]:
    """Modules of a kind by their names; one that stands in several places has each of them."""
    every = model.named_modules(remove_duplicate=False)
    return {name: module for name, module in every if isinstance(module, kind)}


def _check_hooks(name: str, module: torch.nn.Module, remedy: str) -> None:
    """Raise ValueError if a module that another one will replace has hooks."""
    hooks = [hook for hook, found in vars(module).items() if hook.endswith("_hooks") and found]
    if hooks:
        raise ValueError(f"{name} has {hooks[0]}, which would be lost; {remedy}")


def _check(name: str, module: torch.nn.Module) -> None:
    """Raise ValueError unless a module may be exchanged: plain, and with the code that is known."""
    is_layer = isinstance(module, theirs.DeepseekV4DecoderLayer)
    if getattr(module, "_is_fsdp_managed_module", False):
        raise ValueError(f"{name} is sharded by FSDP; call patch before fully_shard")
    if type(module) is DeepseekV4DecoderLayer:
        raise ValueError(f"{name} is patched already; call unpatch first")
    if not is_layer:
        _check_hooks(name, module, "call patch before they are registered")
    for part in (module, *module.children()) if not is_layer else (module,):
        of = type(part)
        if "forward" not in vars(part) and KNOWN.get(of.__name__) == digest(of.forward):
            continue
        raise ValueError(
            f"{name}: forward of {of.__name__} is not the one of transformers {TESTED}, and may compute "
            f"something else (installed is {transformers.__version__}); install transformers=={TESTED}"
            + ("; or pass layers=False, which leaves the layers as they are" if is_layer else "")
        )


def digest(function: Callable[..., Any]) -> str:
    """A hash of a function's code as it is written, but for comments, strings and blanks."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return "no source"
    written: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        word = token.string.strip() or tokenize.tok_name[token.type]
        is_empty_line = word == "NEWLINE" and written[-1] in ("NEWLINE", "INDENT")
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.STRING) and not is_empty_line:
            written.append(word)
    return hashlib.sha256("\n".join(written).encode()).hexdigest()[:16]


def _connection(original: Any, **options: Any) -> torch.nn.Module:
    n = original.hc_mult
    iters, eps, norm_eps = original.hc_sinkhorn_iters, original.hc_eps, original.input_norm.eps
    ours = HyperConnection(original.fn.size(1) // n, n, iters, eps, norm_eps, device="meta", **options)
    return _stand_in(ours, original)


def _head(original: Any, **options: Any) -> torch.nn.Module:
    n = original.hc_mult
    eps, norm_eps = original.eps, original.input_norm.eps
    ours = HyperHead(original.hc_fn.size(1) // n, n, eps, norm_eps, device="meta", **options)
    return _stand_in(ours, original)


def _stand_in(ours: torch.nn.Module, original: torch.nn.Module) -> torch.nn.Module:
    _share(ours, original)
    # in a tuple: as an attribute it would become a submodule, and its parameters would be there twice
    setattr(ours, REPLACED, (original,))
    return ours


def _share(target: torch.nn.Module, source: torch.nn.Module) -> None:
    """Make the parameters of one module those of another of the same names."""
    for name, parameter in source.named_parameters(recurse=False):
        setattr(target, name, parameter)
    target.train(source.training)
