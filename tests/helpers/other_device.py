"""Every operator on a device that neither CUDA nor the CPU is, as a process: what failed, as JSON.

The device is PrivateUse1, its memory the CPU's: a fallback runs every operator of aten there.
"""

from __future__ import annotations

import functools
import json

import torch
from operator_table import OPERATORS, gradients
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from helion_sinkhorn import sinkhorn

_setup_privateuseone_for_python_backend("other")


values = {}
"""Tensors of the device and their values on the CPU, by the address of the storage, which copies share."""


class Elsewhere(torch.Tensor):
    """A tensor of the device, which is called through the dispatcher as it is no torch.Tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def sent(there):
    x = torch._C._acc.create_empty_tensor(there.shape, there.dtype)
    x.__class__ = Elsewhere
    values[x.untyped_storage()._cdata] = x, there
    return x


def received(x):
    return values[x.untyped_storage()._cdata][1]


def back(t):
    return sent(t) if isinstance(t, torch.Tensor) else t


def fallback(function, *arguments, **options):
    originals = {}
    assert function.namespace != "helion_sinkhorn", f"{function} has no kernel there"

    def value(x):
        if isinstance(x, torch.Tensor) and x.device.type == "other":
            originals[id(received(x))] = x
            return received(x)
        return torch.device("cpu") if isinstance(x, torch.device) else x

    arguments, options = tree_map(value, (arguments, options))
    output = function(*arguments, **options)
    # what changes an argument returns it
    return tree_map(lambda t: originals[id(t)] if id(t) in originals else back(t), output)


library = torch.library.Library("_", "IMPL")
library.fallback(fallback, "PrivateUse1")
aten = torch.library.Library("aten", "IMPL")
for name in torch._C._dispatch_get_all_op_names():
    if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(
        name, "CompositeExplicitAutograd"
    ):
        # these would make views in C++, without the values
        packet, _, overload = name.removeprefix("aten::").partition(".")
        function = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(name.removeprefix("aten::"), functools.partial(fallback, function), "PrivateUse1")


def compared(row):
    """Whether gradients there are those on the CPU."""
    given = row.arguments()
    expected = gradients(row.function, given, given)
    there = gradients(row.function, {name: sent(x) for name, x in given.items()}, given)
    return all(torch.equal(received(there[name]), g) for name, g in expected.items())


def outcome(row):
    try:
        return compared(row)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


outcomes = {name: outcome(row) for name, row in OPERATORS.items() if not row.kernels}
try:
    sinkhorn(sent(torch.randn(2, 3, 3)), implementation="helion")
except NotImplementedError as error:
    outcomes["helion"] = str(error)
print(json.dumps(outcomes))
