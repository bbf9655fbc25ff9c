"""Registering an operator with torch: schema, fake, gradient and the device guard.

The arguments of a registered operator have been checked by the operator's api.py.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from helion_sinkhorn.runtime.compiled_source import of_source, source_digest
from helion_sinkhorn.runtime.gradients import (
    NAMESPACE,
    no_double_backward,
    no_forward_mode,
    operator_named,
    register_gradient,
    with_signature,
)
from helion_sinkhorn.runtime.upcoming import upcoming

_HERE = contextlib.nullcontext()
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
DEVICES = "cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla", "maia", "ipu", "privateuseone"
WITH_AUTOCAST = frozenset(filter(torch.amp.is_autocast_available, DEVICES))
"""Kinds of devices; asked here, since a compiler of torch 2.11 cannot trace the question."""
unknown_to_dtensor: list[Callable[[], None]] = []
"""What registers the rules of operators with DTensor, once there may be one: importing it takes seconds."""
_functorch = torch._C._functorch
# bound once: every call needs all of them, and torch._C.name takes two more look-ups
_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_is_dynamo_compiling, _is_exporting = torch.compiler.is_dynamo_compiling, torch.compiler.is_exporting
_dispatch_modes, _function_mode = torch._C._len_torch_dispatch_stack, torch._C._is_torch_function_mode_enabled
_transforms = _functorch.peek_interpreter_stack
_is_wrapped, _is_legacy_batched = _functorch.is_functorch_wrapped_tensor, _functorch.is_legacy_batchedtensor
_is_functional, _any_requires_grad = torch._is_functional_tensor, torch._C._any_requires_grad
_is_autocast_on = torch._C._is_any_autocast_enabled


def without_autocast(x: torch.Tensor):
    """Turn autocast off on a tensor's device, if the device has it and it is on."""
    kind = x.device.type
    if kind in WITH_AUTOCAST and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return _HERE


@contextlib.contextmanager
def _within(context: Any, value: Any) -> Iterator[Any]:
    with context:
        yield value


class Implementations:
    """What computes an operator: its launcher, and a module `eager` with the same functions by PyTorch.

    `launching` and `chosen_for` return contexts, whose value is one of the two.
    """

    def __init__(self, launcher: str, eager: Any = None) -> None:
        """`launcher` is the name of what the first call that needs it imports, "module" or "module:name"."""
        # without a colon a module that cannot be imported would be reported as a missing attribute
        self._name = launcher if ":" in launcher else f"{launcher}:"
        self._eager = contextlib.nullcontext(eager)

    @functools.cached_property
    def launcher(self) -> Any:
        return pkgutil.resolve_name(self._name)

    @functools.cached_property
    def _launcher_here(self) -> contextlib.nullcontext[Any]:
        return contextlib.nullcontext(self.launcher)

    def launching(self, x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
        """The launcher, with the device of x as the current one, on which Helion launches."""
        if x.device.index == torch.cuda.current_device() or x.is_meta:
            return self._launcher_here
        return _within(torch.cuda.device(x.device), self.launcher)

    def chosen_for(self, x: torch.Tensor, implementation: str) -> contextlib.AbstractContextManager[Any]:
        """The launcher, or `eager` without autocast if PyTorch is asked for or nothing can be launched."""
        if implementation != "pytorch" and x.numel() > 0:
            return self.launching(x)
        if _is_autocast_on():
            return _within(without_autocast(x), self._eager.enter_result)
        return self._eager


def differentiates(*arguments: Any) -> bool:
    """Whether autograd, in reverse or forward mode, must see a call on these, of which some are tensors."""
    # in a dual level the bare operator would silently return zero tangents
    if forward_ad._current_level >= 0:
        return True
    return _is_grad_enabled() and not _is_compiling() and _any_requires_grad(*arguments)


def needs_gradient(*arguments: Any) -> bool:
    """Whether a call on these needs a gradient; works, unlike `differentiates`, while a compiler traces."""
    if forward_ad._current_level >= 0:
        return True
    return _is_grad_enabled() and any([isinstance(x, torch.Tensor) and x.requires_grad for x in arguments])


def are_eager(tensors: Iterable[Any]) -> bool:
    """Whether nothing but the operator sees a call on these tensors; other arguments do not matter.

    A compiler, mode or transform sees an operator only through the dispatcher, and so does what has no data
    of its own or a subclass.
    """
    if _is_compiling() or _dispatch_modes() or _transforms() is not None or _function_mode():
        return False
    # every call runs this, and a generator would resume for each tensor
    for x in tensors:
        # a transform that has ended may leave its wrappers behind, and autograd.grad(is_grads_batched=True)
        # makes legacy batched tensors, without an interpreter of functorch
        if isinstance(x, torch.Tensor) and (
            type(x) not in PLAIN
            or x.is_meta
            or x.is_neg()
            or x._is_zerotensor()
            or _is_wrapped(x)
            or _is_legacy_batched(x)
            or _is_functional(x)
        ):
            return False
    return True


def apply_directly(
    function: type[torch.autograd.Function],
    call: Callable[..., Any],
    run: Callable[..., Any],
    public: str,
    otherwise: Callable[..., Any],
) -> Callable[..., Any]:
    """Apply a Function where autograd must see a call, eager calls without a transform by a shorter way.

    On a CPU this takes 4 us. torch.autograd.Function.apply with a setup_context takes 9 us, because it binds
    the arguments and looks for transforms in Python.

    Args:
        function: has a setup_context.
        call: what `define` returned.
        run: the forward without the dispatcher.
        public: the function's name for users, which grad_fn shows.
        otherwise: computes the calls that autograd need not see.
    """
    count = call.tensors

    def forward(ctx, *arguments):
        upcoming.call = function, run, public, arguments
        try:
            results = run(*arguments)
        finally:
            upcoming.call = None
        function.setup_context(ctx, arguments, results)
        return results

    members = {"forward": forward, "backward": function.backward, "jvp": function.jvp}
    plain = type(torch.autograd.Function)(
        public.title().replace("_", ""),
        (torch.autograd.Function,),
        {name: staticmethod(member) for name, member in members.items()},
    )
    transformed, direct = function.apply, super(torch.autograd.Function, plain).apply

    def apply(*arguments):
        tensors = arguments[:count]
        if not differentiates(*tensors):
            return otherwise(*arguments)
        return direct(*arguments) if are_eager(tensors) else transformed(*arguments)

    apply.function = function
    return apply


def may_be_distributed(*tensors: torch.Tensor | None) -> bool:
    """Whether one of these may be a DTensor, which they can be only if its module is imported."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    # a list starts faster than a generator
    return any([isinstance(t, torch.Tensor) and type(t) not in PLAIN for t in tensors])


def _register_shardings() -> None:
    while unknown_to_dtensor:
        unknown_to_dtensor.pop()()


# Dynamo cannot trace the registration and need not, since it runs once, at compile time.  This flag is what
# torch.compiler.assume_constant_result sets; calling that would import Dynamo and Triton with us.
_register_shardings._dynamo_marked_constant = True


def define(
    name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any], tensors: int
) -> Callable[..., Any]:
    """Register helion_sinkhorn::name and return it as a function with a shorter way for eager calls.

    The function has the attributes `run`, `tensors`, and `is_eager`, which says if arguments may go to `run`
    directly.

    Args:
        schema: arguments and results, "(Tensor x, int n) -> Tensor".
        run: the operator on tensors of any device.
        fake: the same on tensors without data.
        tensors: how many arguments, from the first, may be tensors.
    """
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, schema, tags=torch.Tag.pt2_compliant_tag)
    # one implementation for every device: the arguments decide between kernels and PyTorch
    torch.library.impl(qualified, "CompositeExplicitAutograd", run)
    torch.library.register_fake(qualified, lambda *given: (run if upcoming.notes else fake)(*given))
    operator = operator_named(name)
    compiled = of_source(name, schema, operator)

    def call(*arguments):
        if are_eager(arguments[:tensors]):
            return run(*arguments)
        if may_be_distributed(*arguments[:tensors]):
            _register_shardings()
        if _is_dynamo_compiling() and not _is_exporting():
            return compiled(*arguments, source_digest())
        return operator(*arguments)

    call.run, call.tensors = run, tensors
    call.is_eager = lambda *arguments: are_eager(arguments[:tensors])
    return call


def differentiable(
    name: str,
    public: str,
    call: Callable[..., Any],
    keep: Callable[..., None],
    gradient: Callable[..., tuple[Any, ...]],
    rarely: tuple[int, ...] = (),
) -> Callable[..., Any]:
    """Register the gradient of helion_sinkhorn::name, and return the operator as autograd differentiates it.

    Args:
        public: the function's name for users, in errors.
        call: what `define` returned.
        keep: (ctx, inputs, output), the setup_context of an autograd.Function.
        gradient: (ctx, *gradients of the results) -> a gradient or None for each argument.
        rarely: the results that mostly get no gradient.
    """
    register_gradient(name, call, gradient, setup_context=keep)

    class Differentiable(torch.autograd.Function):
        generate_vmap_rule = True
        rarely_used = rarely

        @staticmethod
        @with_signature
        def forward(*arguments):
            return call(*arguments)

        setup_context = staticmethod(keep)
        backward = staticmethod(gradient)
        jvp = staticmethod(no_forward_mode(public))

    return apply_directly(Differentiable, call, call.run, public, call)


def last(name: str, public: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient helion_sinkhorn::name, which raises if it is differentiated; as `differentiable`."""
    register_gradient(name, call, no_double_backward(public))

    class Last(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments):
            results = call(*arguments)
            # autograd takes a list of results for one result that is no tensor
            return tuple(results) if isinstance(results, list) else results

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        backward = staticmethod(no_double_backward(public))
        jvp = staticmethod(no_forward_mode(public))

    def apply(*arguments):
        return (Last.apply if differentiates(*arguments[: call.tensors]) else call)(*arguments)

    apply.function = Last
    return apply
