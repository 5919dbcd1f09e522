"""Training steps on the device, against the CPU and against mathematics."""

import copy

import pytest
import torch
from torch import Tensor

from cuda_device import no_synchronization, stepper_of
from gpt.evaluation.loss import Batch
from gpt.model import GPT
from gpt.system.errors import NonFiniteError
from gpt.training.compiling import compile_blocks
from tiny import tiny_config

every_optimizer = pytest.mark.parametrize("name", ["adamw", "muon"])
every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def batch_of(seed: int, rows: int = 8) -> Batch:
    """Inputs, and targets that are a function of them."""
    inputs = torch.randint(23, (rows, 16), generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs * 7 + 3) % 23


def snapshot(model: GPT) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@every_optimizer
def test_losses_are_those_of_the_cpu(device: torch.device, name: str) -> None:
    torch.manual_seed(0)
    model = GPT(tiny_config(position="rope", norm="rmsnorm", qk_norm=True))
    losses = []
    for place in (torch.device("cpu"), device):
        stepper = stepper_of(copy.deepcopy(model).to(place), place, name=name)
        losses.append([float(stepper.step(i, 3e-3, [batch_of(i), batch_of(i + 50)]).loss) for i in range(20)])
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(losses[1], losses[0], atol=2e-4 if name == "adamw" else 3e-2, rtol=0)


@every_type
@every_optimizer
def test_every_type_learns(device: torch.device, dtype: torch.dtype, name: str) -> None:
    torch.manual_seed(0)
    model = GPT(tiny_config(dropout=0.05)).to(device)
    stepper = stepper_of(model, device, dtype, name=name)
    losses = [float(stepper.step(i, 1e-2, [batch_of(i)]).loss) for i in range(120)]
    stepper.check()
    assert losses[-1] < 0.6 * losses[0]


@every_type
@every_optimizer
def test_a_step_waits_for_nothing(device: torch.device, dtype: torch.dtype, name: str) -> None:
    model = GPT(tiny_config(dropout=0.1)).to(device)
    stepper = stepper_of(model, device, dtype, name=name)
    for number in range(3):  # the first ones make what stays
        with no_synchronization(device) if number else no_synchronization(torch.device("cpu")):
            stepper.step(number, 1e-3, [batch_of(number), batch_of(number + 50)])


def test_compiled_blocks_give_the_gradients_of_plain_ones(device: torch.device) -> None:
    torch.manual_seed(0)
    model = GPT(tiny_config(position="rope", norm="rmsnorm")).to(device)
    plain, compiled = stepper_of(model, device), stepper_of(copy.deepcopy(model), device)
    batch = batch_of(1)
    compile_blocks(compiled.model, lambda: compiled.gradients([batch]), True, print)
    for stepper in (plain, compiled):
        stepper.gradients([batch])
    for one, other in zip(plain.model.parameters(), compiled.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_optimizer
def test_a_loss_that_is_not_finite_changes_nothing(device: torch.device, dtype: torch.dtype, name: str) -> None:
    model = GPT(tiny_config()).to(device)
    stepper = stepper_of(model, device, dtype, name=name)
    stepper.step(0, 1e-3, [batch_of(0)])
    before = snapshot(model)
    handle = model.ln_f.register_forward_hook(lambda module, inputs, output: output * torch.nan)

    def step() -> None:
        stepper.step(1, 1e-3, [batch_of(1)])
        stepper.check()

    with pytest.raises(NonFiniteError, match="at step 1"):
        step()
    handle.remove()
    assert all(map(torch.equal, before, model.parameters()))


@every_optimizer
def test_float16_gradients_that_overflow_are_left_out_and_lower_the_scale(device: torch.device, name: str) -> None:
    model = GPT(tiny_config()).to(device)
    stepper = stepper_of(model, device, torch.float16, name=name)
    stepper.step(0, 1e-3, [batch_of(0)])
    before, scale = snapshot(model), stepper.scaler.get_scale()
    handle = model.wte.weight.register_hook(lambda gradient: gradient * torch.inf)
    stepper.step(1, 1e-3, [batch_of(1)])
    handle.remove()
    assert all(map(torch.equal, before, model.parameters()))
    assert stepper.scaler.get_scale() < scale
    stepper.step(2, 1e-3, [batch_of(2)])
    assert not all(map(torch.equal, before, model.parameters()))


@every_type
@every_optimizer
def test_a_state_that_went_through_the_cpu_continues(device: torch.device, dtype: torch.dtype, name: str) -> None:
    torch.manual_seed(0)
    stepper = stepper_of(GPT(tiny_config()).to(device), device, dtype, name=name)
    for number in range(3):
        stepper.step(number, 1e-3, [batch_of(number)])
    state = torch.utils._pytree.tree_map_only(Tensor, lambda x: x.cpu().clone(), stepper.state_dict())
    other = stepper_of(copy.deepcopy(stepper.model), device, dtype, name=name)
    other.load_state_dict(state)
    for one in (stepper, other):
        one.step(3, 1e-3, [batch_of(3)])
    for mine, theirs in zip(stepper.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)
