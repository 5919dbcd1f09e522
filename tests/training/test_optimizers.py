import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.system.errors import CheckpointError
from gpt.training.optimizers import CombinedOptimizer, build_optimizer
from tiny import tiny_config

CPU = torch.device("cpu")
NAMES = pytest.mark.parametrize("name", ["adamw", "muon"])
State = dict[str, Any]


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_every_parameter_is_in_one_group_and_only_matrices_are_decayed(bias: bool, tie_weights: bool) -> None:
    model = GPT(tiny_config(bias=bias, tie_weights=tie_weights, qk_norm=True))
    config = OptimConfig(weight_decay=0.3, learning_rate=0.02, betas=(0.7, 0.8))
    optimizer = build_optimizer(model, config, CPU)
    decay = {parameter: group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(decay)
    assert {name: decay[parameter] for name, parameter in model.named_parameters()} == {
        name: 0.3 if parameter.dim() >= 2 else 0.0 for name, parameter in model.named_parameters()
    }
    vectors = {name.rsplit(".", 1)[0] for name, parameter in model.named_parameters() if decay[parameter] == 0}
    assert {"ln_f", "h.0.ln_1", "h.1.attn.q_norm"} <= vectors
    assert ("h.0.mlp.c_fc" in vectors) is bias
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"]) == (0.02, (0.7, 0.8))


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


def stepped(**optim: Any) -> tuple[GPT, CombinedOptimizer, State]:
    """After two steps, and with a copy of the state."""
    model, optimizer = build(**optim)
    steps(model, optimizer, seed=1)
    return model, optimizer, copy.deepcopy(optimizer.state_dict())


def equal(one: GPT, other: GPT) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


@NAMES
@pytest.mark.parametrize("frozen", [False, True])
def test_one_state_is_that_of_all_optimizers_and_continues_exactly(name: str, frozen: bool) -> None:
    """A parameter without a gradient has no moments, and is restored without."""
    model, optimizer = build(name=name)
    other, resumed = build(name=name)
    for each in (model, other):
        each.h[0].requires_grad_(not frozen)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    assert list(state) == list(optimizer.optimizers)
    trained = sum(parameter.requires_grad for parameter in model.parameters())
    assert sum(len(part["state"]) for part in state.values()) == trained
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    for each in ((model, optimizer), (other, resumed)):
        steps(*each, seed=2)
    assert equal(model, other)


@NAMES
def test_an_update_that_is_to_be_skipped_is_skipped_by_every_optimizer(name: str) -> None:
    """They do so by themselves, and a scaler need not wait."""
    model, optimizer, _ = stepped(name=name)
    before = copy.deepcopy(model)
    assert optimizer._step_supports_amp_scaling
    for skip in (1.0, 0.0):
        optimizer.found_inf = torch.tensor(skip)
        steps(model, optimizer, seed=2, count=1)
        assert equal(model, before) == bool(skip)
    del optimizer.found_inf
    assert optimizer.found_inf is None


def test_an_optimizer_that_does_not_skip_by_itself_is_skipped() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = CombinedOptimizer({"plain": torch.optim.SGD([weight], lr=1.0)})
    assert not optimizer._step_supports_amp_scaling
    for skip, value in ((1.0, 1), (0.0, 0)):
        optimizer.found_inf = torch.tensor(skip)
        optimizer.step()
        assert weight.item() == value


def test_a_loaded_state_brings_its_moments_but_not_its_hyper_parameters() -> None:
    _, _, state = stepped(name="muon", muon_rate=0.04, weight_decay=0.1)
    _, other = build(name="muon", muon_rate=0.01, weight_decay=0.3)

    def present() -> list[State]:
        return [{key: group[key] for key in group if key not in ("params", "lr")} for group in other.param_groups]

    before = present()
    other.load_state_dict(copy.deepcopy(state))
    assert present() == before
    for name, part in other.state_dict().items():
        torch.testing.assert_close(part["state"], state[name]["state"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("saved", "present"),
    [
        ({"name": "adamw"}, {"name": "muon"}),
        ({"name": "muon"}, {"name": "adamw"}),
        ({"name": "adamw"}, {"name": "adamw", "layers": 2}),
        ({"name": "muon"}, {"name": "muon", "layers": 2}),
    ],
)
def test_a_state_of_another_kind_of_optimizer_or_model_is_refused(saved: State, present: State) -> None:
    _, _, state = stepped(**saved)
    with pytest.raises((KeyError, ValueError)):
        build(**present)[1].load_state_dict(state)


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


SPOILERS: dict[str, Callable[[State, str], object]] = {
    "wrong shape": lambda entry, name: entry.update({name: torch.zeros(3)}),
    "wrong type": lambda entry, name: entry.update({name: entry[name].double()}),
    # one number in memory that seems to be many: a fused kernel would write past it
    "expanded": lambda entry, name: entry.update({name: torch.zeros(1).expand(entry[name].shape)}),
    "missing": lambda entry, name: entry.pop(name),
    "no tensor": lambda entry, name: entry.update({name: "hello"}),
    "unknown": lambda entry, name: entry.update(max_exp_avg_sq=entry[name]),
}
MOMENTS = [("adamw", "exp_avg"), ("adamw", "exp_avg_sq"), ("adamw", "step"), ("muon", "momentum")]


@pytest.mark.parametrize(
    ("name", "moment", "spoiler"),
    [(*moment, spoiler) for moment in MOMENTS for spoiler in SPOILERS if (moment[1], spoiler) != ("step", "expanded")],
)
def test_moments_that_do_not_fit_their_parameter_are_refused(name: str, moment: str, spoiler: str) -> None:
    _, _, state = stepped(name=name)
    first: State = next(iter(state.values()))["state"][0]
    SPOILERS[spoiler](first, moment)
    with pytest.raises((KeyError, ValueError)):
        build(name=name)[1].load_state_dict(state)


@NAMES
def test_moments_of_a_parameter_that_is_not_there_are_refused(name: str) -> None:
    _, _, state = stepped(name=name)
    moments = next(iter(state.values()))["state"]
    moments[99] = moments[0]
    with pytest.raises(ValueError, match="the optimizer has moments of a parameter 99, which is not there"):
        build(name=name)[1].load_state_dict(state)


@pytest.mark.parametrize("spoiler", ["wrong shape", "wrong type", "expanded", "no tensor"])
def test_an_optimizer_of_ones_own_keeps_numbers_and_tensors_like_the_parameter(spoiler: str) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = CombinedOptimizer({"own": torch.optim.SGD([weight], lr=1.0)})
    entry = {"average": torch.rand(2, 3), "count": 3}
    state = {"own": {**optimizer.optimizers["own"].state_dict(), "state": {0: entry}}}
    optimizer.load_state_dict(state)
    assert optimizer.optimizers["own"].state[weight]["count"] == 3
    assert torch.equal(optimizer.optimizers["own"].state[weight]["average"], entry["average"])
    SPOILERS[spoiler](entry, "average")
    with pytest.raises(ValueError, match="average is"):
        optimizer.load_state_dict(state)
