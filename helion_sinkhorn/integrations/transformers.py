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
from types import MethodType
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.integrations.wrappers import held, is_same, turn, written
from helion_sinkhorn.nn import HyperConnection, HyperHead
from helion_sinkhorn.ops.mhc.post.api import hc_post
from helion_sinkhorn.runtime.checks import type_of

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

ADDED = ("hidden_size", "initializer_range", "options", "implementation")
"""What the modules of this package have and those of transformers have not."""


class Patched(NamedTuple):
    """How many modules of a model were changed."""

    connections: int
    heads: int
    layers: int


# These are subclasses of what they replace: transformers' `_init_weights` knows them, and the wrapping
# policies of accelerate and FSDP, which look for names, find them.
class DeepseekV4HyperConnection(HyperConnection, theirs.DeepseekV4HyperConnection):
    """`nn.HyperConnection` on a module that transformers made."""


class DeepseekV4HyperHead(HyperHead, theirs.DeepseekV4HyperHead):
    """`nn.HyperHead` on a module that transformers made."""


class DeepseekV4DecoderLayer(theirs.DeepseekV4DecoderLayer):
    """A decoder layer whose streams are updated by `hc_post`: float32 coefficients, one rounding.

    Its sites make one gradient of the streams (`hc_site`), where autograd would add three.

    The layer of transformers rounds post and comb to the dtype of the streams first, and then the product,
    the matrix product and their sum.
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


CHANGES = {
    theirs.DeepseekV4HyperConnection: DeepseekV4HyperConnection,
    theirs.DeepseekV4HyperHead: DeepseekV4HyperHead,
    theirs.DeepseekV4DecoderLayer: DeepseekV4DecoderLayer,
}
BACK = {ours: their for their, ours in CHANGES.items()}


def patch(
    model: torch.nn.Module,
    *,
    layers: bool = True,
    precision: str = "float32",
    implementation: str = "auto",
) -> Patched:
    """Make the mHC modules of a DeepseekV4 model those of this package, in place.

    Every DeepseekV4HyperConnection becomes an `nn.HyperConnection` and every DeepseekV4HyperHead an
    `nn.HyperHead`.  They stay the same objects with the same Parameter objects, so optimizers, state dicts,
    hooks and transformers' `init_weights` stay valid.  Every DeepseekV4DecoderLayer then updates its streams
    by `hc_post`.  `unpatch` takes all of it back.

    A forward that was wrapped on the instance, as accelerate's `dispatch_model` does, stays wrapped.  Within
    such a layer a wrapper or hook of a site sees four results: post, comb, collapsed and the residual.

    Args:
        model: a module that contains them, on any device; DeepseekV4ForCausalLM for instance.
        layers: False leaves the update of the streams to transformers, with its roundings.
        precision: of the projection, as `hc_mixes` has it.
        implementation: "auto", "helion" or "pytorch", of the modules.

    Returns:
        How many modules of each kind were changed.

    Numerical policy: in float32 the results are those of the original but for the order of sums.  In
        bfloat16 they are closer to float64: where the original rounds coefficients, products and sums,
        `hc_post` rounds once.  Under autocast the projection stays in float32, which the original's does not.

    Raises:
        TypeError: model is no module.
        ValueError: there is no such module, or one is patched already, is sharded by FSDP, has other code
            than that of transformers 5.23.0, or has a wrapper or hook that would be lost.  Nothing is changed
            then.
    """
    _check_model(model)
    for name, module in model.named_modules():
        if isinstance(module, tuple(BACK)):
            raise ValueError(f"{_called(name, module)} is patched already; call unpatch first")
    changed = [kind for kind in CHANGES if layers or kind is not theirs.DeepseekV4DecoderLayer]
    found = {name: m for name, m in model.named_modules() if isinstance(m, tuple(changed))}
    if all(isinstance(m, theirs.DeepseekV4DecoderLayer) for m in found.values()):
        raise ValueError(
            f"{type(model).__name__} contains no DeepseekV4HyperConnection and no DeepseekV4HyperHead; "
            "pass a DeepseekV4 model of transformers"
        )
    for name, module in found.items():
        _check_wrappers(_called(name, module), module, "patch")
        _check_code(_called(name, module), module)
    options = {"precision": precision, "implementation": implementation}
    deviation = getattr(getattr(model, "config", None), "initializer_range", None)
    if deviation is not None:
        options["initializer_range"] = deviation
    added = {module: _attributes(module, **options) for module in found.values()}
    for module, attributes in added.items():
        turn(module, CHANGES[type(module)])
        vars(module).update(attributes)
    return _count(added)


def unpatch(model: torch.nn.Module) -> Patched:
    """Take `patch` back: the classes of transformers again, with the Parameter objects that there are now.

    Returns:
        How many modules of each kind were changed.

    Raises:
        TypeError: model is no module.
        ValueError: the model is not patched, or one of its modules is sharded by FSDP or has a wrapper that
            would be lost.  Nothing is changed then.
    """
    _check_model(model)
    found = {name: m for name, m in model.named_modules() if isinstance(m, tuple(BACK))}
    if not found:
        raise ValueError(f"{type(model).__name__} is not patched")
    for name, module in found.items():
        _check_wrappers(_called(name, module), module, "unpatch")
    for module in found.values():
        turn(module, BACK[type(module)])
        for name in ADDED:
            vars(module).pop(name, None)
    return _count(found.values())


def _check_model(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is {type_of(model)}; pass a torch.nn.Module")


def _called(name: str, module: torch.nn.Module) -> str:
    """A module's name in a message; the outermost has none."""
    return name or type(module).__name__


def _count(modules: Any) -> Patched:
    modules = list(modules)
    return Patched(*(sum(isinstance(m, kind) for m in modules) for kind in CHANGES))


def _check_code(name: str, module: torch.nn.Module) -> None:
    """Raise ValueError unless the forward of a module's class, and of the norm in it, is known."""
    is_layer = isinstance(module, theirs.DeepseekV4DecoderLayer)
    for part in (module,) if is_layer else (module, *module.children()):
        of, forward = type(part).__name__, type(part).forward
        is_theirs = type(part) is getattr(theirs, of, None)
        if is_theirs and KNOWN.get(of) == digest(forward):
            continue
        if not is_theirs:
            reason = f"{of} is a class of {type(part).__module__}, and"
            remedy = "make the model of the classes of transformers"
        elif transformers.__version__ != TESTED:
            reason = f"forward of {of} is not the one of transformers {TESTED}, and"
            remedy = f"install transformers=={TESTED} (installed is {transformers.__version__})"
        else:
            reason = f"forward of {of} was replaced by {written(forward)}, which"
            remedy = "put the one of transformers back"
        raise ValueError(
            f"{name}: {reason} may compute something else; {remedy}"
            + (", or pass layers=False, which leaves the layers as they are" if is_layer else "")
        )


def _check_wrappers(name: str, module: torch.nn.Module, change: str) -> None:
    """Raise ValueError if a wrapper or hook would be lost, or would call the forward of the class before.

    A wrapper that finds what it wraps in an attribute of the module, as those of accelerate do, finds the
    other forward there.  One that holds the method itself does not.
    """
    if getattr(module, "_is_fsdp_managed_module", False):
        raise ValueError(f"{name} is sharded by FSDP; call {change} before fully_shard")
    own = MethodType(type(module).forward, module)
    wrapper = vars(module).get("forward")
    is_kept = any(is_same(value, own) for value in vars(module).values())
    is_held = any(is_same(part, own) for part in held(wrapper))
    if not (wrapper is None or is_same(wrapper, own) or (is_kept and not is_held)):
        raise ValueError(
            f"{name}: its forward was replaced on the instance by {written(wrapper)}, in which {change} "
            f"cannot exchange the forward that it wraps; take it off, call {change}, and wrap again"
        )
    if isinstance(module, theirs.DeepseekV4DecoderLayer):
        return
    for norm in module.children():
        lost = [hook for hook, registered in vars(norm).items() if hook.endswith("_hooks") and registered]
        replaced = vars(norm).get("forward")
        if replaced is not None and not is_same(replaced, MethodType(type(norm).forward, norm)):
            lost.append(written(replaced))
        if lost:
            raise ValueError(
                f"the norm in {name} has {lost[0]}, and a patched module does not call its norm; "
                f"take it off before {change}"
            )


def digest(function: Callable[..., Any]) -> str:
    """A hash of a function's code as it is written, but for comments, strings and blanks."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return "no source"
    words: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        word = token.string.strip() or tokenize.tok_name[token.type]
        is_empty_line = word == "NEWLINE" and words[-1] in ("NEWLINE", "INDENT")
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.STRING) and not is_empty_line:
            words.append(word)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _attributes(module: Any, **options: Any) -> dict[str, Any]:
    """What the class of this package needs on a module of transformers."""
    if isinstance(module, theirs.DeepseekV4DecoderLayer):
        return {}
    n, norm_eps = module.hc_mult, module.input_norm.eps
    if isinstance(module, theirs.DeepseekV4HyperHead):
        made = HyperHead(module.hc_fn.size(1) // n, n, module.eps, norm_eps, device="meta", **options)
    else:
        iters, eps = module.hc_sinkhorn_iters, module.hc_eps
        made = HyperConnection(module.fn.size(1) // n, n, iters, eps, norm_eps, device="meta", **options)
    return {name: getattr(made, name) for name in ADDED}
