"""FSDP2 on two processes, in bfloat16: mHC parameters stay float32, gradients equal one process's."""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import importlib.util
from functools import partial

import pytest
import torch
import torch.distributed as dist
from mhc_layers import Layers, checkpointed
from processes import WORLD, Ranks
from shared import NIGHTLY

from helion_sinkhorn import nn, recompute_streams
from helion_sinkhorn.mhc import recompute
from helion_sinkhorn.mhc.fsdp import fully_shard_float32

VOCABULARY, HIDDEN, STREAMS = 11, 6, 3


class Model(torch.nn.Module):
    """Token ids to the loss of guessing the next ones, by four sublayers that are linear maps."""

    made = 0
    """How many streams were made again."""

    def __init__(self, delayed: bool = False, checkpoints: bool = False, every: int = 0):
        super().__init__()
        self.every = every
        self.embedding = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.residual = Layers(4, HIDDEN, STREAMS, delayed=delayed, head=True, sinkhorn_iters=5)
        self.lm_head = torch.nn.Linear(HIDDEN, VOCABULARY)
        if checkpoints:
            checkpointed(self.layers)

    @property
    def layers(self) -> torch.nn.ModuleList:
        return self.residual.layers

    def forward(self, ids):
        with recompute_streams(self.every) if self.every else contextlib.nullcontext():
            h = self.residual(self.embedding(ids))
        logits = self.lm_head(h).float()[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


class FromTransformers(torch.nn.Module):
    """A DeepseekV4 that is patched."""

    def __init__(self):
        super().__init__()
        from benchmarks.demo_model.model import make_model
        from helion_sinkhorn.integrations.transformers import patch

        self.model = make_model(VOCABULARY)
        patch(self.model)
        self.layers = self.model.model.layers

    def forward(self, ids):
        return self.model(input_ids=ids, labels=ids, use_cache=False).loss


MODELS = {
    "plain": Model, "checkpointed": partial(Model, checkpoints=True), "recomputed": partial(Model, every=2),
    "delayed": partial(Model, delayed=True),
}  # fmt: skip
if importlib.util.find_spec("transformers") and importlib.metadata.version("transformers") == "5.23.0":
    MODELS["transformers"] = FromTransformers


ALWAYS = "plain", "recomputed", "delayed"
BY_NIGHT = pytest.mark.nightly("10 s for a model of transformers in two processes, others in their forms")


def mhc_modules(model) -> list[torch.nn.Module]:
    return [m for m in model.modules() if isinstance(m, (nn.HyperConnection, nn.HyperHead))]


def sharded(model, mesh, exempt: bool, cast: bool = True):
    """The model under FSDP2 in bfloat16, layer by layer."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=cast)
    if exempt:
        fully_shard_float32(model, mesh=mesh)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def narrowed(model):
    """The model as one process has it in bfloat16: mHC parameters stay float32, and so do buffers."""
    model = copy.deepcopy(model)
    kept = mhc_modules(model)
    for module in model.modules():
        if module not in kept:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.bfloat16()
    return model


def gradients(model, ids) -> dict[str, torch.Tensor]:
    """Gradients of the loss, float32 and whole."""
    model.zero_grad()
    model(ids).backward()
    whole = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            grad = parameter.grad
            whole[name] = (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).float().cpu()
    return whole


def viewed(module, given):
    return tuple(t if t is None else t.view_as(t) for t in given)


def compare(name: str, exempt: bool, mesh, device: str, cast: bool | None = None) -> dict:
    """What FSDP2 gives against what one process does."""
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    for module in mhc_modules(model):
        # FSDP passes some inputs through a node of its own: the order in which bfloat16 gradients of the
        # streams meet would follow it, but for a view in both models
        module.register_forward_pre_hook(viewed)
    ids = torch.randint(VOCABULARY, (2 * WORLD, 12), device=device)
    parts = ids.chunk(WORLD)
    alone = [gradients(narrowed(model), part) for part in parts]
    # the coefficients in a `Pending` stay float32
    model = sharded(model, mesh, exempt, cast=name != "delayed" if cast is None else cast)
    seen = set()

    def note(module, given, _):
        seen.add((next(module.parameters()).dtype, next(filter(torch.is_tensor, given)).dtype))

    for module in mhc_modules(model):
        module.register_forward_hook(note)
    Model.made = 0
    whole = gradients(model, parts[dist.get_rank()])
    before = {n: p.full_tensor().cpu().clone() for n, p in model.named_parameters()}
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return {
        "seen": sorted(map(str, seen)),
        "made again": Model.made,
        "stored": {p.dtype for p in model.parameters()},
        "errors": {
            n: float((g - (alone[0][n] + alone[1][n]) / WORLD).norm() / g.norm()) for n, g in whole.items()
        },
        "same names": whole.keys() == alone[0].keys(),
        "moved": {
            n for n, p in model.named_parameters() if not torch.equal(p.full_tensor().cpu(), before[n])
        },
    }


def every_model(mesh, device: str = "cpu") -> dict:
    make = recompute._Remade.make

    def counted(remade):
        Model.made += 1
        return make(remade)

    recompute._Remade.make = counted
    names = MODELS if NIGHTLY or device == "cuda" else ALWAYS
    outcomes = {(name, True): compare(name, True, mesh, device) for name in names}
    with pytest.raises(ValueError, match=r"bfloat16; .* a policy of FSDP2 needs cast_forward_inputs=False"):
        compare("delayed", True, mesh, device, cast=True)
    return outcomes | {("plain", False): compare("plain", False, mesh, device)}


@pytest.fixture(scope="module")
def ranks(on_two_processes):
    """What each process found."""
    return on_two_processes(every_model)


BFLOAT16, FLOAT32 = "torch.bfloat16", "torch.float32"


def check(outcome: dict) -> None:
    assert outcome["seen"] == [f"({FLOAT32}, {BFLOAT16})"]
    assert outcome["stored"] == {torch.float32}
    assert outcome["same names"]
    assert outcome["errors"].keys() == outcome["moved"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ALWAYS else BY_NIGHT)
        for name in ("plain", "checkpointed", "recomputed", "delayed", "transformers")
    ],
)
def test_gradients_are_those_of_one_process_to_the_bit(ranks, name):
    if name not in MODELS:
        pytest.skip("transformers 5.23.0 is not installed")
    for outcomes in ranks:
        check(outcomes[name, True])
        assert set(outcomes[name, True]["errors"].values()) == {0.0}
        # of four updates the second and the fourth are kept
        assert outcomes[name, True]["made again"] == (2 if name == "recomputed" else 0)


@pytest.mark.gpu
def test_gradients_on_two_gpus():
    if torch.cuda.device_count() < WORLD:
        pytest.skip(f"{WORLD} GPUs are needed")
    ranks = Ranks("cuda")
    of_ranks = ranks(every_model, "cuda")
    ranks.stop()
    for outcomes in of_ranks:
        for name in MODELS:
            check(outcomes[name, True])
            # the experts of transformers add rows up by atomics, in bfloat16
            assert max(outcomes[name, True]["errors"].values()) <= (2**-5 if name == "transformers" else 0)


def test_without_groups_of_their_own_the_parameters_are_bfloat16(ranks):
    for outcomes in ranks:
        outcome = outcomes["plain", False]
        assert outcome["seen"] == [f"({BFLOAT16}, {BFLOAT16})"]
        assert outcome["errors"]["residual.layers.0.connection.fn"] > 2**-9


def test_a_site_that_two_layers_share_is_in_one_group(monkeypatch):
    """`fully_shard` takes no module twice, and had sharded the first layer when it said so."""
    model = torch.nn.ModuleList(torch.nn.ModuleDict({"site": nn.HyperConnection(HIDDEN)}) for _ in range(2))
    model[1]["own"], model[1]["site"] = model[1]["site"], model[0]["site"]
    sharded = []
    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", lambda group, **options: sharded.append(group))
    assert fully_shard_float32(model) == [[model[0]["site"]], [model[1]["own"]]]
    assert sharded == [[model[0]["site"]], [model[1]["own"]]]


def test_refused_with_what_to_do():
    with pytest.raises(ValueError, match="no submodule of Linear is a HyperConnection or a HyperHead"):
        fully_shard_float32(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="mp_policy is what fully_shard_float32 chooses"):
        fully_shard_float32(Model(), mp_policy=None)
