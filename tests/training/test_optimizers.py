"""The optimizers: who goes where, Muon against its definition and torch's own, and what a saved
state may hold.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.training.muon import COEFFICIENTS, Muon, orthogonalize
from gpt.training.optimizers import OPTIMIZERS, CombinedOptimizer, build_optimizer
from tiny import tiny_config

CPU = torch.device("cpu")
NAMES = pytest.mark.parametrize("name", ["adamw", "muon"])
State = dict[str, Any]


def build(changes: dict[str, Any] | None = None, **optim: Any) -> tuple[GPT, CombinedOptimizer]:
    torch.manual_seed(0)
    model = GPT(tiny_config(**{"n_layer": 1, **(changes or {})}))
    return model, build_optimizer(model, OptimConfig(**optim), CPU)


def steps(model: GPT, optimizer: CombinedOptimizer, seed: int, count: int = 2) -> None:
    """Step by random gradients, but for parameters without one."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in list(model.parameters()) * count:
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        if parameter is model.ln_f.weight:  # the last
            optimizer.step()


def state_after_steps(**options: Any) -> State:
    model, optimizer = build(**options)
    steps(model, optimizer, seed=1)
    return copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize(
    ("optim", "changes"),
    [
        ({}, {"bias": True, "tie_weights": False}),
        ({}, {"qk_norm": True}),
        ({"muon_rate": 0.05}, {"tie_weights": False}),
        ({"muon_rate": 0.05}, {"bias": True, "qk_norm": True}),
        (
            {"muon_rate": 0.05},
            {"mlp": "swiglu", "n_kv_head": 2, "position": "rope", "norm": "rmsnorm"},
        ),
    ],
)
def test_matrices_are_decayed_and_those_of_blocks_go_to_muon(
    optim: State, changes: dict[str, Any]
) -> None:
    name = "muon" if optim else "adamw"
    model, optimizer = build(
        changes, name=name, weight_decay=0.3, learning_rate=0.01, betas=(0.7, 0.8), **optim
    )
    found: dict[Tensor, tuple[str, float]] = {}
    for part, each in optimizer.optimizers.items():
        for group in each.param_groups:
            assert not found.keys() & set(group["params"])
            found |= dict.fromkeys(group["params"], (part, group["weight_decay"]))
            expected = (0.05, 5.0) if part == "muon" else (0.01, 1.0)
            assert (group["lr"], group["lr_factor"]) == expected
            assert (group["momentum"] if part == "muon" else group["betas"]) == (
                0.95 if part == "muon" else (0.7, 0.8)
            )
    for key, parameter in model.named_parameters():  # a tied weight comes once
        is_matrix = key.endswith(".weight") and not any(part in key for part in ("ln_", "norm"))
        part = "muon" if is_matrix and key.startswith("h.") and name == "muon" else "adamw"
        assert found.pop(parameter) == (part, 0.3 if is_matrix else 0.0), key
    assert not found


SPACING = {torch.bfloat16: 2**-8, torch.float32: 2**-23, torch.float64: 2**-52}
"""Relative spacing of the types that the iteration runs in; in float64 rounding hides no mistake.
"""


def iterate(values: Tensor, steps: int = 5) -> Tensor:
    """What the iteration makes of singular values."""
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return values


def rounding(values: Tensor) -> float:
    """Most that rounding changes in the result for singular values, in spacings and relative to its
    norm; some 50.

    The matrix is rounded when it is normalized. A step rounds its three terms, which are larger
    than their sum: half a spacing each, at the size of the largest singular value. It also turns an
    error of the step before into one that is as much larger as it is steep.
    """
    a, b, c = COEFFICIENTS
    values = values / values.norm()
    error = torch.full_like(values, 0.5 / math.sqrt(len(values)))
    for _ in range(5):
        terms = a + abs(b) * values.max() ** 2 + c * values.max() ** 4
        along = a + 3 * b * values**2 + 5 * c * values**4
        across = a + b * values**2 + c * values**4
        error = torch.maximum(along.abs(), across.abs()) * error + terms * values / 2
        values = iterate(values, 1)
    return float(error.norm() / values.norm())


@pytest.mark.parametrize(
    ("rows", "columns"), [(24, 24), (16, 100), (100, 16), (1, 40), (40, 1), (1, 1)]
)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e15])
@pytest.mark.parametrize("dtype", SPACING, ids=str)
def test_orthogonalization_brings_singular_values_near_one(
    dtype: torch.dtype, rows: int, columns: int, scale: float
) -> None:
    given = torch.linspace(1, 0.2, min(rows, columns), dtype=torch.float64)
    u, v = (
        torch.linalg.qr(torch.randn(size, len(given), dtype=torch.float64))[0]
        for size in (rows, columns)
    )
    result = (
        orthogonalize((scale * (u * given) @ v.T).to(dtype).unsqueeze(0), steps=5)
        .squeeze(0)
        .double()
    )
    assert result.shape == (rows, columns)
    values = iterate(given / given.norm())
    assert values.min() > 0.65
    assert values.max() < 1.25
    expected = (u * values) @ v.T
    spacings = SPACING[dtype] + SPACING[torch.float64]  # what is expected is rounded too
    assert (result - expected).norm() < spacings * rounding(given) * expected.norm()


def test_orthogonalization_does_not_blow_up_tiny_values() -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 4, 6), steps=5), torch.zeros(2, 4, 6))
    x = torch.randn(1, 16, 16)
    assert orthogonalize(1e-12 * x, steps=5).norm() < 0.1 * orthogonalize(x, steps=5).norm()


def matrices(*shapes: tuple[int, int]) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def give_gradients(*lists: list[nn.Parameter]) -> None:
    """The same random gradients to each list."""
    for parameters in zip(*lists, strict=True):
        gradient = torch.randn_like(parameters[0])
        for parameter in parameters:
            parameter.grad = gradient.clone()


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.0, 0.5), (0.95, 0.5)])
def test_ten_steps_of_muon_are_those_of_torch(momentum: float, weight_decay: float) -> None:
    """torch averages gradients too (`lerp`, unlike its documented formula) and iterates in
    bfloat16.
    """
    shapes = ((16, 16), (48, 16), (16, 48), (16, 48), (16, 16), (7, 5))
    ours = matrices(*shapes)
    theirs = matrices(*shapes)
    begin = matrices(*shapes)
    optimizer = Muon(
        ours, lr=0.1, momentum=momentum, weight_decay=weight_decay, dtype=torch.bfloat16
    )
    other = torch.optim.Muon(
        theirs,
        lr=0.1,
        momentum=momentum,
        weight_decay=weight_decay,
        nesterov=True,
        adjust_lr_fn="original",
    )
    for _ in range(10):
        give_gradients(ours, theirs)
        optimizer.step()
        other.step()
    for mine, its, first in zip(ours, theirs, begin, strict=True):
        assert (mine - its).norm() < 3 * SPACING[torch.bfloat16] * (its - first).norm()
        torch.testing.assert_close(
            optimizer.state[mine]["momentum"], other.state[its]["momentum_buffer"]
        )


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_muon_moves_nothing_where_found_inf_is_set(value: float) -> None:
    """A 0 that multiplies the update is not enough: 0 times NaN is NaN."""
    ours, plain = (matrices((8, 8), (8, 8), (4, 8)) for _ in range(2))
    optimizer = Muon(ours, weight_decay=0.5)
    other = Muon(plain, weight_decay=0.5)
    give_gradients(ours, plain)
    optimizer.found_inf = torch.tensor(0.0)  # as if it were not set
    optimizer.step()
    other.step()
    assert ours[1].grad is not None
    ours[1].grad[0, 0] *= value
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    for mine, its in zip(ours, plain, strict=True):
        assert torch.equal(mine, its)
        assert torch.equal(optimizer.state[mine]["momentum"], other.state[its]["momentum"])


@NAMES
@pytest.mark.parametrize("frozen", [False, True])
def test_state_continues_exactly(name: str, frozen: bool) -> None:
    """A parameter without a gradient is left alone, has no moments, and is restored without."""
    (model, optimizer), (other, resumed) = build(name=name), build(name=name)
    for each in (model, other):
        each.h[0].attn.requires_grad_(not frozen)
    steps(model, optimizer, seed=1)
    assert torch.equal(model.h[0].attn.c_q.weight, other.h[0].attn.c_q.weight) == frozen
    state = copy.deepcopy(optimizer.state_dict())
    assert list(state) == list(optimizer.optimizers)
    # This tells torch's scaler that each optimizer skips an update by itself, so that the scaler
    # does not wait for the device.
    assert optimizer._step_supports_amp_scaling
    trained = sum(parameter.requires_grad for parameter in model.parameters())
    assert sum(len(part["state"]) for part in state.values()) == trained
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    for each, its in ((model, optimizer), (other, resumed)):
        steps(each, its, seed=2)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_loaded_state_brings_moments_but_no_hyperparameters() -> None:
    state = state_after_steps(name="muon", muon_rate=0.04, weight_decay=0.1)
    _, other = build(name="muon", muon_rate=0.01, weight_decay=0.3)

    def present() -> list[State]:
        return [
            {key: group[key] for key in group if key not in ("params", "lr")}
            for group in other.param_groups
        ]

    before = present()
    other.load_state_dict(copy.deepcopy(state))
    assert present() == before
    for name, part in other.state_dict().items():
        torch.testing.assert_close(part["state"], state[name]["state"], rtol=0, atol=0)


SPOILERS: dict[str, Callable[[State, str], object]] = {
    "wrong shape": lambda entry, name: entry.update({name: torch.zeros(3)}),
    "wrong type": lambda entry, name: entry.update({name: entry[name].double()}),
    # one number in memory that seems to be many: a fused kernel would write past it
    "expanded": lambda entry, name: entry.update({name: torch.zeros(1).expand(entry[name].shape)}),
    "no tensor": lambda entry, name: entry.update({name: "hello"}),
    "missing": lambda entry, name: entry.pop(name),
    "unknown": lambda entry, name: entry.update(max_exp_avg_sq=entry[name]),
}
MOMENTS = [("adamw", "exp_avg"), ("adamw", "exp_avg_sq"), ("adamw", "step"), ("muon", "momentum")]


@pytest.mark.parametrize("spoiler", SPOILERS)
@pytest.mark.parametrize(("name", "moment"), MOMENTS)
def test_moments_that_do_not_fit_their_parameter_are_refused(
    name: str, moment: str, spoiler: str
) -> None:
    if (moment, spoiler) == ("step", "expanded"):
        return  # it is one number
    state = state_after_steps(name=name)
    SPOILERS[spoiler](next(iter(state.values()))["state"][0], moment)
    with pytest.raises((KeyError, ValueError)):
        build(name=name)[1].load_state_dict(state)


@NAMES
def test_state_of_another_optimizer_or_model_is_refused(name: str) -> None:
    state = state_after_steps(name=name)
    for present in (
        {"name": "adamw" if name == "muon" else "muon"},
        {"name": name, "changes": {"n_layer": 2}},
    ):
        with pytest.raises((KeyError, ValueError)):
            build(**present)[1].load_state_dict(copy.deepcopy(state))
    moments = next(iter(state.values()))["state"]
    moments[99] = moments[0]
    with pytest.raises(
        ValueError, match="the saved state has moments of parameter 99, which does not exist"
    ):
        build(name=name)[1].load_state_dict(state)


class AdamWOfPlugin(torch.optim.AdamW):
    def __init__(self, groups: list[dict[str, Any]], config: OptimConfig) -> None:
        super().__init__(groups, lr=config.learning_rate)


def test_state_of_an_adamw_by_a_plugin_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "adamw", AdamWOfPlugin)
    model, optimizer = build()
    steps(model, optimizer, seed=1)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    del state["adamw"]["state"][0]["exp_avg"]
    with pytest.raises(ValueError, match="the optimizer keeps exp_avg, exp_avg_sq, step"):
        optimizer.load_state_dict(state)


class KeepingMore(torch.optim.AdamW):
    """An AdamW whose `step` keeps a list for each parameter, as Shampoo and SOAP do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for state in self.state.values():
            state["sides"] = [torch.eye(2), torch.eye(3)]


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        # It keeps a product of coefficients, which is one number for a parameter of any shape.
        (torch.optim.NAdam, {}),
        (torch.optim.Adafactor, {}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (KeepingMore, {}),
    ],
)
def test_optimizer_of_a_plugin_may_keep_anything_and_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
    optimizer_class: type[torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    def builder(model: GPT, *_: object) -> dict[str, torch.optim.Optimizer]:
        return {"all": optimizer_class(model.parameters(), lr=0.01, **options)}  # type: ignore[call-arg]

    monkeypatch.setitem(OPTIMIZERS, "adamw", builder)
    model, optimizer = build()
    steps(model, optimizer, seed=1)
    resumed_model, resumed = build()
    resumed_model.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(model, optimizer, seed=2)
    steps(resumed_model, resumed, seed=2)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, resumed_model.get_parameter(name))
