"""patch(model): the mHC residual path of a DeepseekV4 or GLM-5.3 model of transformers, by this package."""

from __future__ import annotations

from types import MethodType
from typing import Any, NamedTuple, NoReturn

import torch

from helion_sinkhorn.integrations.digests import digest
from helion_sinkhorn.integrations.models import (
    BACK,
    CONNECTIONS,
    HEADS,
    INSTALLED,
    KNOWN,
    LAYERS,
    OTHERS,
    TESTED,
    glm,
)
from helion_sinkhorn.integrations.wrappers import held, is_same, turn, written
from helion_sinkhorn.nn import HyperConnection, HyperHead
from helion_sinkhorn.runtime.checks import type_of

ADDED = ("hidden_size", "initializer_range", "options", "implementation")
"""What the modules of this package have and those of transformers have not."""


class Patched(NamedTuple):
    """How many modules of a model were changed."""

    connections: int
    heads: int
    layers: int


def patch(
    model: torch.nn.Module,
    *,
    layers: bool = True,
    precision: str = "float32",
    implementation: str = "auto",
) -> Patched:
    """Make the mHC modules of a DeepseekV4 or GLM-5.3 model those of this package, in place.

    Every DeepseekV4HyperConnection or Glm5NextTextHyperConnection becomes an `nn.HyperConnection` and every
    DeepseekV4HyperHead an `nn.HyperHead`; the head of GLM-5.3 is the mean of the streams and stays.  They
    stay the same objects with the same Parameter objects, so optimizers, state dicts, hooks and transformers'
    `init_weights` stay valid.  Every DeepseekV4DecoderLayer or Glm5NextTextDecoderLayer then updates its
    streams by `hc_post`.  `unpatch` takes all of it back.

    A forward that was wrapped on the instance, as accelerate's `dispatch_model` does, stays wrapped.  Within
    such a layer a wrapper or hook of a site sees four results: post, comb, collapsed and the residual.

    Args:
        model: a module that contains them, on any device; DeepseekV4ForCausalLM or
            Glm5NextForConditionalGeneration for instance.
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
            than that of transformers 5.23.0 and 5.24.0, or has a wrapper or hook that would be lost.  Nothing
            is changed then.
    """
    _check_model(model)
    for name, module in model.named_modules():
        if isinstance(module, tuple(BACK)):
            raise ValueError(f"{_called(name, module)} is patched already; call unpatch first")
    changed = CONNECTIONS + HEADS + (LAYERS if layers else ())
    found = {name: m for name, m in model.named_modules() if isinstance(m, changed)}
    if all(isinstance(m, LAYERS) for m in found.values()):
        _refuse_model(model)
    for name, module in found.items():
        _check_wrappers(_called(name, module), module, "patch")
        _check_code(_called(name, module), module)
    options = {"precision": precision, "implementation": implementation}
    deviation = _initializer_range(model)
    if deviation is not None:
        options["initializer_range"] = deviation
    added = {module: _attributes(module, **options) for module in found.values()}
    for module, attributes in added.items():
        turn(module, KNOWN[type(module)].ours)
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
    return Patched(*(sum(isinstance(m, kinds) for m in modules) for kinds in (CONNECTIONS, HEADS, LAYERS)))


def _refuse_model(model: torch.nn.Module) -> NoReturn:
    """Raise ValueError of a model that contains none of the modules that would be changed."""
    wanted = " and no ".join(kind.__name__ for kind in CONNECTIONS + HEADS)
    reason = "; pass a DeepseekV4 or GLM-5.3 model of transformers"
    for kind in {type(m).__name__ for m in model.modules()} & OTHERS.keys():
        reason = f", but {kind}: {OTHERS[kind]}"
    raise ValueError(f"{type(model).__name__} contains no {wanted}{reason}")


def _initializer_range(model: torch.nn.Module) -> float | None:
    """The standard deviation of a fresh projection that the model's config asks for."""
    # GLM-5.3 has the default whatever its config says
    is_glm = isinstance(model, glm.Glm5NextPreTrainedModel)
    return None if is_glm else getattr(getattr(model, "config", None), "initializer_range", None)


def _check_code(name: str, module: torch.nn.Module) -> None:
    """Raise ValueError unless the forward of a module's class, and of the norm in it, is known."""
    is_layer = isinstance(module, LAYERS)
    for part in (module,) if is_layer else (module, *module.children()):
        of, forward = type(part).__name__, type(part).forward
        is_theirs = type(part) in KNOWN
        if is_theirs and digest(forward) in KNOWN[type(part)].digests:
            continue
        if not is_theirs:
            reason = f"{of} is a class of {type(part).__module__}, and"
            remedy = "make the model of the classes of transformers"
        elif INSTALLED not in TESTED:
            reason = f"forward of {of} is not the one of transformers {' or '.join(TESTED)}, and"
            remedy = f"install transformers=={TESTED[-1]} (installed is {INSTALLED})"
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
    if isinstance(module, LAYERS):
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


def _attributes(module: Any, **options: Any) -> dict[str, Any]:
    """What the class of this package needs on a module of transformers."""
    if isinstance(module, LAYERS):
        return {}
    n, norm_eps = module.hc_mult, module.input_norm.eps
    if isinstance(module, HEADS):
        made = HyperHead(module.hc_fn.size(1) // n, n, module.eps, norm_eps, device="meta", **options)
    else:
        iters, eps = module.hc_sinkhorn_iters, module.hc_eps
        made = HyperConnection(module.fn.size(1) // n, n, iters, eps, norm_eps, device="meta", **options)
    return {name: getattr(made, name) for name in ADDED}
