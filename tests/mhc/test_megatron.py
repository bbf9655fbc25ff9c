"""Megatron Core: its site by this package, in the modules of a release and beside the class of branch dev."""

from __future__ import annotations

from types import SimpleNamespace

import mhc_equations as equations
import pytest
import torch
from autograd_calls import values_and_gradients
from mhc_equations import assert_within, truth_and_budget
from torch.utils.checkpoint import checkpoint

pytest.importorskip("megatron.core", reason="pip install megatron-core")

from examples import megatron_site
from helion_sinkhorn.integrations.megatron import HyperConnectionModule

WIDTH, N = megatron_site.HIDDEN, megatron_site.STREAMS


@pytest.fixture(autouse=True)
def own_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def make_site(peak=1.0, single_pass=False, **options):
    site = HyperConnectionModule(megatron_site.make_config(single_pass), 1, **options)
    for parameter in site.parameters():
        torch.nn.init.normal_(parameter, std=0.1 if parameter.ndim > 1 else peak)
    return site


class Layer(torch.nn.Module):
    """Its site called as a layer of Megatron calls it."""

    def __init__(self, site):
        super().__init__()
        self.site = site

    def forward(self, x, f, bias):
        y, h_res, h_post, residual = self.site(x, mhc_recompute_manager=None)
        streams = self.site.fused_h_res_h_post_bda(h_res, residual, h_post, (f, bias), 0.0, True, False, None)
        return y, h_res, h_post, streams


def written_out(x, fn, *tensors, at=equations.exactly):
    """The same by the equations of the test: eps outside the root, merged streams."""
    *scales, base, f, bias = tensors
    x, scale = x.unflatten(-1, (N, -1)), torch.cat(scales)
    h_pre, h_post, h_res = equations.coefficients(x, fn, scale, base, eps_outside=True, at=at)
    streams = equations.expand(at(f + bias), x, h_post, h_res, at)
    return equations.collapse(x, h_pre, at), h_res, h_post, streams.flatten(-2)


@pytest.mark.parametrize(("peak", "size"), [(1.0, 1.0), (8.0, 1.0), (1.0, 1e-4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_within_the_error_of_float32(dtype, peak, size):
    """Small streams are among them, whose norm is of the size of its eps."""
    site = make_site(peak)
    x, f, bias = (torch.randn(shape).to(dtype) for shape in ((3, 2, N * WIDTH), (3, 2, WIDTH), (WIDTH,)))
    names = ("mapping_proj.weight", "alpha_pre", "alpha_post", "alpha_res", "bias")
    tensors = [size * x, *(site.get_parameter(name) for name in names), f, bias]
    upstream = [
        torch.randn(3, 2, WIDTH).to(dtype), torch.randn(3, 2, N, N), torch.randn(3, 2, N),
        torch.randn(3, 2, N * WIDTH).to(dtype),
    ]  # fmt: skip
    truth, budget = truth_and_budget(written_out, tensors, upstream)

    def ours(x, fn, pre, post, res, base, f, bias):
        given = dict(zip(names, (fn, pre, post, res, base), strict=True))
        return torch.func.functional_call(
            Layer(site), {f"site.{k}": v for k, v in given.items()}, (x, f, bias)
        )

    results = values_and_gradients(ours, tensors, upstream)
    assert [t.dtype for t in results[:4]] == [dtype, torch.float32, torch.float32, dtype]
    assert_within(results, truth, budget, rounded=2)


def test_both_forms_beside_megatron_s_class_or_its_equations(monkeypatch, capsys):
    # what the example replaces in its own process
    monkeypatch.setattr(torch.cuda.nvtx, "range", torch.cuda.nvtx.range)
    try:
        differences = megatron_site.main()
    finally:
        torch.compiler.set_stance("default")
    assert max(differences) < 2e-5
    said = capsys.readouterr().out
    assert "V4.1, beside " in said
    assert "11 gradients\ndiffer by at most " in said


def test_a_part_of_the_site_alone():
    site, x = make_site(), torch.randn(3, 2, N * WIDTH)
    y, h_res, h_post, residual = site(x)
    h_pre, *others = site.compute_mappings(x)
    torch.testing.assert_close(site.aggregate(x, h_pre), y)
    torch.testing.assert_close(others, [h_post, h_res])
    assert torch.equal(residual, x)
    h = torch.randn(3, 2, WIDTH)
    assert torch.equal(site.output_contract(site.input_expand(h, N), N), h)


def test_parameters_stay_float32_in_a_float16_module():
    from megatron.core.transformer.module import Float16Module

    site = make_site()
    site.config.bf16 = True
    before = {name: p.detach().clone() for name, p in site.named_parameters()}
    Float16Module(site.config, torch.nn.ModuleDict({"site": site, "other": torch.nn.Linear(2, 2)}))
    assert all(torch.equal(p, before[name]) and p.keep_in_fp32 for name, p in site.named_parameters())


def loss(site, x):
    f = site(x)[0].tanh()
    return Layer(site)(x, f, f.new_ones(WIDTH))[3].square().sum()


def under_megatron(mesh) -> tuple[dict, dict, bool, list]:
    """main_grad of a sequence-parallel site whose ranks have a part of the sequence each, and what one has;
    whether a gradient is left, and what a checkpoint has."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=mesh.size())
    # where it puts its buffers
    current, torch.cuda.current_device = torch.cuda.current_device, lambda: torch.device("cpu")
    try:
        config = megatron_site.make_config()
        config.sequence_parallel = True
        torch.manual_seed(0)
        site, x = HyperConnectionModule(config, 1), torch.randn(4, 2, N * WIDTH)
        loss(site, x).backward()
        alone = {name: p.grad for name, p in site.named_parameters()}
        site.zero_grad(set_to_none=True)
        model = DistributedDataParallel(config, DistributedDataParallelConfig(), site)
        for _ in range(2):
            loss(site, x.chunk(mesh.size())[mesh.get_rank()]).backward()
        has_grad = any(p.grad is not None for p in site.parameters())
        _allreduce_non_tensor_model_parallel_grads([model], config)
        main_grads = {name: p.main_grad.clone() for name, p in site.named_parameters()}
        return main_grads, alone, has_grad, sorted(site.sharded_state_dict("layer."))
    finally:
        torch.cuda.current_device = current
        parallel_state.destroy_model_parallel()


def test_gradients_go_to_main_grad_and_are_summed_over_a_split_sequence(on_two_processes):
    for main_grads, alone, has_grad, stored in on_two_processes(under_megatron):
        assert not has_grad
        assert stored == sorted(f"layer.{name}" for name in alone)
        for name, gradient in alone.items():
            # two micro-batches
            torch.testing.assert_close(
                main_grads[name], 2 * gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max())
            )


def test_what_megatron_drops_is_dropped():
    site, x, f = make_site(), torch.randn(3, 2, N * WIDTH), torch.randn(3, 2, WIDTH)
    _, h_res, h_post, residual = site(x)
    bias = torch.randn(WIDTH)
    mixed = site.fused_h_res_h_post_bda(
        h_res, residual, h_post, (torch.zeros_like(f), None), 0.0, True, False
    )
    added = (h_post[..., None] * (f + bias)[..., None, :]).flatten(-2)
    update = site.fused_h_res_h_post_bda(h_res, residual, h_post, (f, bias), 0.75, True, False) - mixed
    kept = (update - 4 * added).abs() < 1e-4
    assert 0.2 < kept.float().mean() < 0.3
    assert (update[~kept].abs() < 1e-5).all()
    evaluated = site.fused_h_res_h_post_bda(h_res, residual, h_post, (f, bias), 0.75, False, False)
    torch.testing.assert_close(evaluated, mixed + added)


def test_what_it_cannot_do_is_refused():
    site, x = make_site(), torch.randn(3, 2, N * WIDTH)
    with pytest.raises(ValueError, match=r"a manager or a slot .*recompute_streams"):
        site(x, mhc_recompute_manager=object())
    with pytest.raises(ValueError, match=r"has shape \(3, 2, 4, 64\); pass \(s, b, 256\)"):
        site(x.unflatten(-1, (N, -1)))
    with pytest.raises(ValueError, match="mhc_state is None"):
        make_site(single_pass=True)(x)
    state = SimpleNamespace(pre_mix=None)
    y, *_ = make_site(single_pass=True)(x, mhc_state=state)
    assert torch.equal(y, x[..., :WIDTH])
    assert state.pre_mix.shape == (3, 2, N)


def test_one_pass_is_refused_where_it_is_computed_again():
    """A site that is computed again in a backward would take the weights of the last one."""
    site, state = make_site(single_pass=True), SimpleNamespace(pre_mix=None)
    x = torch.randn(3, 2, N * WIDTH, requires_grad=True)
    y, *_ = checkpoint(lambda x: site(x, mhc_state=state), x, use_reentrant=False)
    with pytest.raises(RuntimeError, match="mhc_single_pass runs again in a backward"):
        y.sum().backward()
