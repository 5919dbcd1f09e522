import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.config import OptimConfig
from gpt.errors import CheckpointError
from gpt.model import GPT
from gpt.training.optimizers import CombinedOptimizer, build_optimizer
from tiny import tiny_config

CPU = torch.device("cpu")

# --- which parameters go where -------------------------------------------------------------------


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_every_parameter_is_in_one_group_and_only_matrices_are_decayed(bias: bool, tie_weights: bool) -> None:
    model = GPT(tiny_config(bias=bias, tie_weights=tie_weights, qk_norm=True))
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.3), CPU)
    decay = {parameter: group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(decay)
    assert {name: decay[parameter] for name, parameter in model.named_parameters()} == {
        name: 0.3 if parameter.dim() >= 2 else 0.0 for name, parameter in model.named_parameters()
    }
    vectors = {name.rsplit(".", 1)[0] for name, parameter in model.named_parameters() if decay[parameter] == 0}
    assert {"ln_f", "h.0.ln_1", "h.1.attn.q_norm"} <= vectors
    assert ("h.0.mlp.c_fc" in vectors) is bias


def test_the_configuration_arrives() -> None:
    config = OptimConfig(learning_rate=0.02, betas=(0.7, 0.8), eps=1e-5)
    optimizer = build_optimizer(GPT(tiny_config()), config, CPU)
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.02, (0.7, 0.8), 1e-5)


@pytest.mark.parametrize(("device", "fused"), [("cpu", True), ("cuda", True), ("mps", False)])
def test_the_fused_kernel_is_used_where_torch_has_it(device: str, fused: bool) -> None:
    optimizer = build_optimizer(GPT(tiny_config()), OptimConfig(), torch.device(device))
    assert [group["fused"] for group in optimizer.param_groups] == [fused, fused]


# --- several as one ------------------------------------------------------------------------------


def build(layers: int = 1, **optim: Any) -> tuple[GPT, CombinedOptimizer]:
    torch.manual_seed(0)
    model = GPT(tiny_config(n_layer=layers))
    return model, build_optimizer(model, OptimConfig(**optim), CPU)


def steps(model: GPT, optimizer: CombinedOptimizer, seed: int, count: int = 2) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def equal(one: GPT, other: GPT) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_one_state_is_that_of_all_optimizers_and_continues_exactly(name: str) -> None:
    model, optimizer = build(name=name)
    steps(model, optimizer, seed=1)
    state = copy.deepcopy(optimizer.state_dict())
    assert list(state) == list(optimizer.optimizers)
    assert sum(len(part["state"]) for part in state.values()) == len(list(model.parameters()))
    other, resumed = build(name=name)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    for one, of in ((model, optimizer), (other, resumed)):
        steps(one, of, seed=2)
    assert equal(model, other)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_an_update_that_is_to_be_skipped_is_skipped_by_every_optimizer(name: str) -> None:
    model, optimizer = build(name=name, muon_weight_decay=0.1 if name == "muon" else 0.0)
    steps(model, optimizer, seed=1)
    before = copy.deepcopy(model)
    optimizer.found_inf = torch.tensor(1.0)
    steps(model, optimizer, seed=2, count=1)
    assert equal(model, before)
    optimizer.found_inf = torch.tensor(0.0)
    steps(model, optimizer, seed=2, count=1)
    assert not equal(model, before)


def test_a_loaded_state_brings_its_moments_but_not_its_hyper_parameters() -> None:
    model, optimizer = build(name="muon", muon_momentum=0.9, muon_rate=0.04, weight_decay=0.1)
    steps(model, optimizer, seed=1)
    _, other = build(name="muon", muon_momentum=0.5, muon_weight_decay=0.2, muon_rate=0.01, weight_decay=0.3)
    present = [
        {key: value for key, value in group.items() if key not in ("params", "lr")} for group in other.param_groups
    ]
    other.load_state_dict(optimizer.state_dict())
    assert [
        {key: group[key] for key in keys} for group, keys in zip(other.param_groups, present, strict=True)
    ] == present
    for part in ("muon", "adamw"):
        one, two = optimizer.state_dict()[part]["state"], other.state_dict()[part]["state"]
        assert all(torch.equal(one[index][key], two[index][key]) for index in one for key in one[index])


@pytest.mark.parametrize(
    ("saved", "present"),
    [
        ({"name": "adamw"}, {"name": "muon"}),
        ({"name": "muon"}, {"name": "adamw"}),
        ({"name": "adamw"}, {"name": "adamw", "layers": 2}),
        ({"name": "muon"}, {"name": "muon", "layers": 2}),
    ],
)
def test_a_state_of_another_kind_of_optimizer_or_model_is_refused(
    saved: dict[str, Any], present: dict[str, Any]
) -> None:
    model, optimizer = build(**saved)
    steps(model, optimizer, seed=1)
    with pytest.raises((KeyError, ValueError)):
        build(**present)[1].load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(("saved", "present"), [("adamw", "muon"), ("muon", "adamw")])
def test_a_run_cannot_go_on_with_another_optimizer_even_where_changes_are_allowed(
    tmp_path: Path, start: Callable[..., Any], saved: str, present: str
) -> None:
    start(tmp_path, f"optim.name={saved}", "train.max_steps=3").run()
    with pytest.raises(CheckpointError, match="training state does not fit") as caught:
        start(tmp_path, f"optim.name={present}", resume="auto", allow_config_change=True)
    assert f"optim.name: {saved} -> {present}" in str(caught.value)
    assert str(caught.value).endswith("begin a new run with its weights, train.init_from=RUN run.name=NEW")
    assert "KeyError" not in str(caught.value)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_scaler_need_not_wait_where_every_optimizer_skips_updates_by_itself(name: str) -> None:
    _, optimizer = build(name=name)
    assert optimizer._step_supports_amp_scaling
    optimizer.found_inf = torch.tensor(1.0)
    del optimizer.found_inf
    assert optimizer.found_inf is None
    assert not CombinedOptimizer({"plain": torch.optim.AdamW([torch.zeros(1)])})._step_supports_amp_scaling


def first_moments(state: dict[str, Any]) -> dict[str, Any]:
    """What an optimizer keeps of its first parameter."""
    return next(iter(state.values()))["state"][0]


def wrong_shape(entry: dict[str, Any], name: str) -> None:
    entry[name] = torch.zeros(3)


def wrong_type(entry: dict[str, Any], name: str) -> None:
    entry[name] = entry[name].double()


def expanded(entry: dict[str, Any], name: str) -> None:
    """One number in memory that seems to be many: a fused kernel would write past it."""
    entry[name] = torch.zeros(1).expand(entry[name].shape)


def missing(entry: dict[str, Any], name: str) -> None:
    del entry[name]


def no_tensor(entry: dict[str, Any], name: str) -> None:
    entry[name] = "hello"


def unknown(entry: dict[str, Any], name: str) -> None:
    entry["max_exp_avg_sq"] = entry[name]


SPOILERS = [wrong_shape, wrong_type, expanded, missing, no_tensor, unknown]
MOMENTS = [("adamw", "exp_avg"), ("adamw", "exp_avg_sq"), ("adamw", "step"), ("muon", "momentum")]


@pytest.mark.parametrize(
    ("name", "moment", "spoil"),
    [(*moment, spoil) for moment in MOMENTS for spoil in SPOILERS if not (moment[1] == "step" and spoil is expanded)],
)
def test_moments_that_do_not_fit_their_parameter_are_refused(
    name: str, moment: str, spoil: Callable[[dict[str, Any], str], None]
) -> None:
    model, optimizer = build(name=name)
    steps(model, optimizer, seed=1)
    state = copy.deepcopy(optimizer.state_dict())
    spoil(first_moments(state), moment)
    with pytest.raises((KeyError, ValueError)):
        build(name=name)[1].load_state_dict(state)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_parameter_without_a_gradient_has_no_moments_and_is_restored_without(name: str) -> None:
    model, optimizer = build(name=name)
    model.h[0].requires_grad_(False)
    steps(model, optimizer, seed=1)
    other, restored = build(name=name)
    other.load_state_dict(model.state_dict())
    other.h[0].requires_grad_(False)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each in ((model, optimizer), (other, restored)):
        steps(*each, seed=2)
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_moments_of_a_parameter_that_is_not_there_are_refused(name: str) -> None:
    model, optimizer = build(name=name)
    steps(model, optimizer, seed=1)
    state = copy.deepcopy(optimizer.state_dict())
    moments = next(iter(state.values()))["state"]
    moments[99] = moments[0]
    with pytest.raises(ValueError, match="the optimizer has moments of a parameter 99, which is not there"):
        build(name=name)[1].load_state_dict(state)


def test_an_optimizer_that_does_not_skip_by_itself_is_skipped() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = CombinedOptimizer({"plain": torch.optim.SGD([weight], lr=1.0)})
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert weight.item() == 1
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert weight.item() == 0
