import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.config import OptimConfig
from gpt.errors import CheckpointError
from gpt.model import GPT
from gpt.training.optimizers import Together, build_optimizer
from tiny import tiny_config

CPU = torch.device("cpu")


def build(layers: int = 1, **optim: Any) -> tuple[GPT, Together]:
    torch.manual_seed(0)
    model = GPT(tiny_config(n_layer=layers))
    return model, build_optimizer(model, OptimConfig(**optim), CPU)


def steps(model: GPT, optimizer: Together, seed: int, count: int = 2) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def equal(one: GPT, other: GPT) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_one_state_is_that_of_all_parts_and_continues_exactly(name: str) -> None:
    model, optimizer = build(name=name)
    steps(model, optimizer, seed=1)
    state = copy.deepcopy(optimizer.state_dict())
    assert list(state) == list(optimizer.parts)
    assert sum(len(part["state"]) for part in state.values()) == len(list(model.parameters()))
    other, resumed = build(name=name)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    for one, of in ((model, optimizer), (other, resumed)):
        steps(one, of, seed=2)
    assert equal(model, other)


def test_a_rate_written_into_a_group_takes_effect() -> None:
    model, optimizer = build(name="muon")
    before = copy.deepcopy(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    steps(model, optimizer, seed=1)
    assert equal(model, before)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    steps(model, optimizer, seed=1)
    moved = [not torch.equal(new, old) for new, old in zip(model.parameters(), before.parameters(), strict=True)]
    assert all(moved)


def test_gradients_of_all_parts_are_forgotten() -> None:
    model, optimizer = build(name="muon")
    steps(model, optimizer, seed=1)
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_an_update_that_is_to_be_left_out_is_left_out_by_every_part(name: str) -> None:
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
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_scaler_need_not_wait_where_every_part_leaves_updates_out_by_itself(name: str) -> None:
    _, optimizer = build(name=name)
    assert optimizer._step_supports_amp_scaling
    optimizer.found_inf = torch.tensor(1.0)
    del optimizer.found_inf
    assert optimizer.found_inf is None
    assert not Together({"plain": torch.optim.AdamW([torch.zeros(1)])})._step_supports_amp_scaling
