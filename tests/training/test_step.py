import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gpt.config import OptimConfig
from gpt.device import Compute
from gpt.evaluation.loss import IGNORE, Batch
from gpt.model import GPT
from gpt.system.errors import NonFiniteError
from gpt.training.optimizers import build_optimizer
from gpt.training.step import Stepper
from tiny import tiny_config

CPU = torch.device("cpu")
RATE = 1e-2


def build_stepper(dtype: torch.dtype = torch.float32, grad_clip: float = 1.0, **optim: Any) -> Stepper:
    torch.manual_seed(0)
    model = GPT(tiny_config(n_layer=1, n_embd=16, n_head=2))
    optimizer = build_optimizer(model, OptimConfig(**optim), CPU)
    return Stepper(model, optimizer, Compute(CPU, dtype), grad_clip)


def batches(count: int = 1, rows: int = 4) -> list[Batch]:
    """Sequences that count upwards: easy to learn."""
    starts = torch.randint(23, (count, rows, 1))
    windows = (starts + torch.arange(17)) % 23
    return [(window[:, :-1], window[:, 1:]) for window in windows]


def held(stepper: Stepper) -> list[Tensor]:
    """Weights, and what the optimizer keeps of them."""
    states = [state for part in stepper.optimizer.optimizers.values() for state in part.state.values()]
    tensors = [*stepper.model.parameters(), *(moment for state in states for moment in state.values())]
    return [tensor.detach().clone() for tensor in tensors]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    assert len(one) == len(other) > 0
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def spoil(stepper: Stepper, what: str, value: float, micro_batch: int = 0) -> Callable[[], None]:
    """Make the loss of a micro-batch, or one element of one gradient, not finite; returns what ends that."""
    calls = iter(range(10**6))

    def spoil_logits(module: torch.nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits * value if next(calls) == micro_batch else logits

    def spoil_gradient(gradient: Tensor) -> Tensor:
        if next(calls) == micro_batch:
            gradient = gradient.clone()
            gradient.view(-1)[0] = value
        return gradient

    if what == "loss":
        return stepper.model.register_forward_hook(spoil_logits).remove
    return stepper.model.ln_f.weight.register_hook(spoil_gradient).remove


SPOILED = pytest.mark.parametrize("what", ["loss", "gradient"])
OPTIMIZERS = pytest.mark.parametrize("name", ["adamw", "muon"])


# --- gradients -----------------------------------------------------------------------------------

Gradients = tuple[Tensor, list[Tensor]]


def loss_and_gradients(micro_batches: list[Batch]) -> tuple[GPT, Gradients]:
    stepper = build_stepper(grad_clip=0)
    stepper.gradients(batches())  # those of an earlier step do not add up
    loss = stepper.gradients(micro_batches)
    return stepper.model, (loss, [p.grad.clone() for p in stepper.model.parameters() if p.grad is not None])


def assert_same(one: Gradients, other: Gradients) -> None:
    assert len(one[1]) == len(other[1]) > 0
    for left, right in zip((one[0], *one[1]), (other[0], *other[1]), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)


def random_batch(rows: int) -> Batch:
    return torch.randint(23, (rows, 16)), torch.randint(23, (rows, 16))


def test_one_batch_gives_the_mean_and_the_gradients_of_torch() -> None:
    inputs, targets = random_batch(9)
    model, ours = loss_and_gradients([(inputs, targets)])
    model.zero_grad()
    mean = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    mean.backward()
    assert_same(ours, (mean.detach(), [p.grad for p in model.parameters() if p.grad is not None]))
    assert not ours[0].requires_grad


@pytest.mark.parametrize("sizes", [[1] * 9, [3, 3, 3], [4, 4, 1], [8, 1]])
@pytest.mark.parametrize("padded", [False, True])
def test_micro_batches_add_up_to_the_whole_batch(sizes: list[int], padded: bool) -> None:
    """Also where the last is smaller, and where padding leaves some of them fewer targets."""
    inputs, targets = random_batch(9)
    if padded:
        targets[0, 5:] = IGNORE
        targets[4, :] = IGNORE
        targets[8, :15] = IGNORE
    pieces = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))
    assert_same(loss_and_gradients(pieces)[1], loss_and_gradients([(inputs, targets)])[1])


def test_padding_is_as_if_it_were_not_there() -> None:
    inputs, targets = random_batch(2)
    padded = targets.clone()
    padded[1, :] = IGNORE
    shorter = loss_and_gradients([(inputs[:1], targets[:1])])[1]
    assert_same(loss_and_gradients([(inputs, padded)])[1], shorter)


# --- values that are not finite ------------------------------------------------------------------


@SPOILED
@OPTIMIZERS
@pytest.mark.parametrize(("value", "grad_clip"), [(math.nan, 0.0), (math.inf, 1.0)])
@pytest.mark.parametrize(("count", "micro_batch"), [(1, 0), (3, 0), (3, 1), (3, 2)])
def test_a_bad_step_is_named_and_changes_nothing(
    what: str, name: str, value: float, grad_clip: float, count: int, micro_batch: int
) -> None:
    """With accumulation it is enough that one of the micro-batches is bad."""
    stepper = build_stepper(grad_clip=grad_clip, name=name)
    for number in range(2):
        stepper.step(number, RATE, batches(count))
    before = held(stepper)
    spoil(stepper, what, value, micro_batch)
    with pytest.raises(NonFiniteError, match="at step 2;"):
        stepper.step(2, RATE, batches(count))
    assert same(held(stepper), before)


@SPOILED
@OPTIMIZERS
def test_where_reading_costs_the_optimizer_stands_still_until_the_check(what: str, name: str) -> None:
    """As on a GPU: nothing is read at the bad step, good ones follow, and all the same nothing moves."""
    stepper, on_cpu = build_stepper(name=name), build_stepper(name=name)
    stepper.guard.reads_are_free = False
    for number in range(3):
        data = batches(2)
        stepper.step(number, RATE, data)
        on_cpu.step(number, RATE, data)
    stepper.guard.check()
    before = held(stepper)
    assert same(before, held(on_cpu))
    healed = spoil(stepper, what, math.nan)
    stepper.step(3, RATE, batches())
    healed()
    for number in range(4, 7):
        assert torch.isfinite(stepper.step(number, RATE, batches()).loss)
    assert same(held(stepper), before)
    with pytest.raises(NonFiniteError, match="at step 3;"):
        stepper.guard.check()


# --- the step ------------------------------------------------------------------------------------


def test_a_step_gives_the_loss_and_the_norm_before_the_update() -> None:
    stepper = build_stepper()
    data = batches(2)
    reference = copy.deepcopy(stepper.model)
    inputs, targets = (torch.cat(parts) for parts in zip(*data, strict=True))
    loss = torch.nn.functional.cross_entropy(reference(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in reference.parameters() if p.grad is not None]).norm()
    result = stepper.step(0, RATE, data)
    torch.testing.assert_close(result.loss, loss.detach())
    torch.testing.assert_close(result.gradient_norm, norm)


def test_the_objective_is_told_the_number_of_the_step() -> None:
    stepper, numbers = build_stepper(), []
    objective = stepper.objective

    def noted(*arguments: Any) -> tuple[Tensor, Tensor]:
        numbers.append(arguments[-1])
        return objective(*arguments)

    stepper.objective = noted
    for number in (0, 7):
        stepper.step(number, RATE, batches(2))
    assert numbers == [0, 0, 7, 7]


@pytest.mark.parametrize(("grad_clip", "norm"), [(0.01, 0.01), (1e6, None), (0.0, None)])
def test_gradients_are_clipped_to_the_global_norm_and_only_above_it(grad_clip: float, norm: float | None) -> None:
    stepper = build_stepper(grad_clip=grad_clip)
    result = stepper.step(0, RATE, batches())
    left = torch.stack([p.grad.norm() for p in stepper.model.parameters() if p.grad is not None]).norm()
    assert float(result.gradient_norm) > 0.05
    assert float(left) == pytest.approx(float(result.gradient_norm) if norm is None else norm, rel=1e-3)


def test_every_group_has_its_share_of_the_learning_rate_of_the_call() -> None:
    """The schedule is one, in units of the peak; the matrices of Muon have a peak of their own."""
    stepper = build_stepper(learning_rate=0.01, name="muon", muon_rate=0.3)
    before = [weight.detach().clone() for weight in stepper.model.parameters()]
    stepper.step(0, 0.0, batches())
    assert same([weight.detach() for weight in stepper.model.parameters()], before)
    stepper.step(1, 0.005, batches())
    rates = {name: [group["lr"] for group in part.param_groups] for name, part in stepper.optimizer.optimizers.items()}
    assert rates == {"muon": [pytest.approx(0.15)], "adamw": [pytest.approx(0.005)] * 2}
    assert not same([weight.detach() for weight in stepper.model.parameters()], before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_learns_and_keeps_its_weights_in_float32(dtype: torch.dtype) -> None:
    stepper = build_stepper(dtype)
    losses = [float(stepper.step(number, RATE, batches(2)).loss) for number in range(40)]
    assert losses[0] == pytest.approx(math.log(23), abs=0.1)
    assert losses[-1] < 1.5
    assert all(parameter.dtype == torch.float32 for parameter in stepper.model.parameters())
    assert stepper.scaler.is_enabled() is (dtype == torch.float16)


# --- float16 -------------------------------------------------------------------------------------


@OPTIMIZERS
def test_an_overflow_of_a_scaled_gradient_leaves_the_step_out_and_lowers_the_scale_for_good(name: str) -> None:
    stepper = build_stepper(torch.float16, name=name)
    stepper.step(0, RATE, batches())
    before, scale = held(stepper), stepper.scaler.get_scale()
    healed = spoil(stepper, "gradient", math.inf)
    stepper.step(1, RATE, batches())
    healed()
    assert same(held(stepper), before)
    assert stepper.scaler.get_scale() == scale / 2
    stepper.step(2, RATE, batches())
    assert not same(held(stepper), before)
    other = build_stepper(torch.float16, name=name)
    other.load_state_dict(copy.deepcopy(stepper.state_dict()))
    assert stepper.scaler.state_dict() == other.scaler.state_dict()
    assert other.scaler.get_scale() == scale / 2


def test_a_loss_that_is_not_finite_ends_a_float16_run_too() -> None:
    stepper = build_stepper(torch.float16)
    before = held(stepper)
    spoil(stepper, "loss", math.nan)
    with pytest.raises(NonFiniteError, match="at step 0;"):
        stepper.step(0, RATE, batches())
    assert same(held(stepper), before)


@pytest.mark.parametrize(("saved", "present"), [(torch.float32, torch.float16), (torch.float16, torch.float32)])
def test_a_run_may_go_on_in_another_dtype(saved: torch.dtype, present: torch.dtype) -> None:
    """With dtype auto that is what a resume on another machine is."""
    one, other = build_stepper(saved), build_stepper(present)
    one.step(0, RATE, batches())
    other.load_state_dict(one.state_dict())
    other.step(1, RATE, batches())
    steps = [entry["step"] for entry in other.optimizer.state_dict()["adamw"]["state"].values()]
    assert all(float(step) == 2 for step in steps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loss_and_norm_are_those_of_float32_to_a_few_digits(dtype: torch.dtype) -> None:
    """The scale that keeps float16 gradients from vanishing is out of them before they are clipped."""
    data = batches(2)
    exact, rounded = build_stepper().step(0, RATE, data), build_stepper(dtype).step(0, RATE, data)
    torch.testing.assert_close(rounded.loss, exact.loss, rtol=0.01, atol=0)
    torch.testing.assert_close(rounded.gradient_norm, exact.gradient_norm, rtol=0.03, atol=0)
