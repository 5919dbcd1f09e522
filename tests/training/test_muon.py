"""Muon against its definition, torch's own Muon, and the rules of who goes where."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpt.config import OptimConfig
from gpt.model import GPT
from gpt.training.muon import COEFFICIENTS, Muon, orthogonalize
from gpt.training.optimizers import build_optimizer
from tiny import tiny_config

CPU = torch.device("cpu")
SPACING = {torch.bfloat16: 2**-8, torch.float32: 2**-23, torch.float64: 2**-52}
"""Relative spacing of the types that the iteration runs in; in float64 rounding hides no mistake."""
every_dtype = pytest.mark.parametrize("dtype", SPACING, ids=str)


def iterate(values: Tensor, steps: int = 5) -> Tensor:
    """What the iteration makes of singular values."""
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return values


def rounding(x: Tensor) -> float:
    """Most that rounding changes in the result, in spacings and relative to its norm; some 50.

    The matrix is rounded when it is normalized. A step rounds its three terms, which are larger than their sum: half a
    spacing each, at the size of the largest singular value. It also turns an error of the step before into one that is
    as much larger as it is steep.
    """
    a, b, c = COEFFICIENTS
    values = torch.linalg.svdvals(x.double())
    values = values / values.norm()
    error = torch.full_like(values, 0.5 / math.sqrt(len(values)))
    for _ in range(5):
        terms = a + abs(b) * values.max() ** 2 + c * values.max() ** 4
        along, across = a + 3 * b * values**2 + 5 * c * values**4, a + b * values**2 + c * values**4
        error = torch.maximum(along.abs(), across.abs()) * error + terms * values / 2
        values = iterate(values, 1)
    return float(error.norm() / values.norm())


def with_singular_values(values: Tensor, rows: int, columns: int) -> Tensor:
    """A random matrix that has them, in float64."""
    u = torch.linalg.qr(torch.randn(rows, len(values), dtype=torch.float64))[0]
    v = torch.linalg.qr(torch.randn(columns, len(values), dtype=torch.float64))[0]
    return (u * values) @ v.T


def matrices(*shapes: tuple[int, int]) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def give_gradients(*lists: list[nn.Parameter]) -> None:
    """The same random gradients to each list."""
    for parameters in zip(*lists, strict=True):
        gradient = torch.randn_like(parameters[0])
        for parameter in parameters:
            parameter.grad = gradient.clone()


def values_of(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


# --- orthogonalization ---------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (16, 100), (100, 16), (1, 40), (40, 1), (1, 1)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e15])
@every_dtype
def test_singular_values_come_near_one_and_singular_vectors_stay(
    dtype: torch.dtype, rows: int, columns: int, scale: float
) -> None:
    given = torch.linspace(0.2, 1, min(rows, columns), dtype=torch.float64)
    x = with_singular_values(given, rows, columns)
    result = orthogonalize((scale * x).to(dtype).unsqueeze(0), steps=5).squeeze(0).double()
    assert result.shape == x.shape
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    values = iterate(s / s.norm())
    assert values.min() > 0.65
    assert values.max() < 1.25
    expected = (u * values) @ vh
    spacings = SPACING[dtype] + SPACING[torch.float64]  # what is expected is rounded too
    assert (result - expected).norm() < spacings * rounding(x) * expected.norm()


# --- steps ---------------------------------------------------------------------------------------

SHAPES = ((16, 16), (48, 16), (16, 48), (16, 48), (16, 16), (7, 5))


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.0, 0.5), (0.95, 0.5)])
def test_ten_steps_are_those_of_torchs_muon(momentum: float, weight_decay: float) -> None:
    """torch averages gradients too (`lerp`, unlike its documented formula) and iterates in bfloat16."""
    ours = matrices(*SHAPES)
    theirs, begin = matrices(*SHAPES), values_of(ours)
    optimizer = Muon(ours, lr=0.1, momentum=momentum, weight_decay=weight_decay, dtype=torch.bfloat16)
    other = torch.optim.Muon(
        theirs, lr=0.1, momentum=momentum, weight_decay=weight_decay, nesterov=True, adjust_lr_fn="original"
    )
    for _ in range(10):
        give_gradients(ours, theirs)
        optimizer.step()
        other.step()
    for mine, its, first in zip(ours, theirs, begin, strict=True):
        assert (mine - its).norm() < 3 * SPACING[torch.bfloat16] * (its - first).norm()
        torch.testing.assert_close(optimizer.state[mine]["momentum"], other.state[its]["momentum_buffer"])


def test_a_matrix_without_a_gradient_is_left_alone() -> None:
    parameters = matrices((8, 8), (8, 8), (4, 8))
    optimizer = Muon(parameters, weight_decay=0.5)
    before = values_of(parameters)
    parameters[1].grad = torch.randn(8, 8)
    optimizer.step()
    moved = [not torch.equal(parameter, old) for parameter, old in zip(parameters, before, strict=True)]
    assert moved == [False, True, False]
    assert list(optimizer.state) == [parameters[1]]


# --- updates that are left out -------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_where_something_is_not_finite_no_weight_moves(value: float) -> None:
    """A 0 that multiplies the update is not enough: 0 times NaN is NaN."""
    parameters = matrices((8, 8), (8, 8), (4, 8))
    optimizer = Muon(parameters, weight_decay=0.5)
    give_gradients(parameters)
    optimizer.step()
    before, momenta = values_of(parameters), copy.deepcopy(optimizer.state_dict()["state"])
    give_gradients(parameters)
    assert parameters[1].grad is not None
    parameters[1].grad[0, 0] *= value
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert all(torch.equal(parameter, old) for parameter, old in zip(parameters, before, strict=True))
    for index, state in optimizer.state_dict()["state"].items():
        assert torch.equal(state["momentum"], momenta[index]["momentum"])


def test_where_everything_is_finite_the_step_is_any_other() -> None:
    ours, plain = matrices((8, 8), (4, 8)), matrices((8, 8), (4, 8))
    optimizer, other = Muon(ours, weight_decay=0.5), Muon(plain, weight_decay=0.5)
    optimizer.found_inf = torch.tensor(0.0)
    give_gradients(ours, plain)
    optimizer.step()
    other.step()
    assert all(map(torch.equal, ours, plain))


# --- who goes where ------------------------------------------------------------------------------

VARIANTS: list[dict[str, Any]] = [
    {},
    {"tie_weights": False},
    {"bias": True, "qk_norm": True},
    {"mlp": "swiglu", "n_kv_head": 2, "position": "rope", "norm": "rmsnorm"},
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_the_matrices_of_the_blocks_go_to_muon_and_everything_else_to_adamw(changes: dict[str, Any]) -> None:
    model = GPT(tiny_config(**changes))
    optimizer = build_optimizer(model, OptimConfig(name="muon", weight_decay=0.3), CPU)
    names = {parameter: name for name, parameter in model.named_parameters()}  # a tied weight comes once
    places = {
        part: [names[parameter] for group in optimizer.optimizers[part].param_groups for parameter in group["params"]]
        for part in ("muon", "adamw")
    }
    assert sorted(itertools.chain(*places.values())) == sorted(names.values())
    kinds = {"attn.c_q", "attn.c_k", "attn.c_v", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}
    kinds |= {"mlp.c_gate"} & {name.split(".", 2)[-1].removesuffix(".weight") for name in names.values()}
    assert sorted(places["muon"]) == sorted(f"h.{layer}.{kind}.weight" for layer in range(2) for kind in kinds)
    decayed = {names[p] for group in optimizer.param_groups if group["weight_decay"] == 0.3 for p in group["params"]}
    assert decayed == {"wte.weight", "wpe.weight", "lm_head.weight"} & set(names.values()) | set(places["muon"])


def test_the_configuration_arrives() -> None:
    config = OptimConfig(name="muon", learning_rate=0.01, muon_rate=0.05)
    optimizer = build_optimizer(GPT(tiny_config()), config, CPU)
    (group,) = optimizer.optimizers["muon"].param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"], group["lr_factor"]) == (0.05, 0.95, 0.1, 5.0)
    assert [group["lr_factor"] for group in optimizer.optimizers["adamw"].param_groups] == [1.0, 1.0]


def test_a_gradient_of_zeros_or_too_small_to_matter_is_not_blown_up() -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 4, 6), steps=5), torch.zeros(2, 4, 6))
    x = torch.randn(1, 16, 16)
    assert orthogonalize(1e-12 * x, steps=5).norm() < 0.1 * orthogonalize(x, steps=5).norm()
