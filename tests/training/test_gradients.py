from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config import OptimConfig
from gpt.device import Compute
from gpt.evaluation.loss import IGNORE, Batch
from gpt.model import GPT
from gpt.training.optimizers import build_optimizer
from gpt.training.step import Stepper
from tiny import tiny_config

B, T, V = 9, 16, 23


@pytest.fixture
def model() -> GPT:
    return GPT(tiny_config(n_layer=1))


def batch(rows: int) -> Batch:
    return torch.randint(V, (rows, T)), torch.randint(V, (rows, T))


def loss_and_gradients(model: GPT, micro_batches: Sequence[Batch]) -> tuple[Tensor, list[Tensor]]:
    cpu = torch.device("cpu")
    loss = Stepper(model, build_optimizer(model, OptimConfig(), cpu), Compute(cpu, torch.float32), 0).gradients(
        micro_batches
    )
    return loss, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def assert_same(one: tuple[Tensor, list[Tensor]], other: tuple[Tensor, list[Tensor]]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-6)
    assert len(one[1]) == len(other[1]) > 0
    for left, right in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)


def test_one_batch_gives_the_mean_and_the_gradients_of_torch(model: GPT) -> None:
    inputs, targets = batch(B)
    ours = loss_and_gradients(model, [(inputs, targets)])
    model.zero_grad()
    mean = F.cross_entropy(model(inputs).view(-1, V), targets.reshape(-1))
    mean.backward()
    assert_same(ours, (mean.detach(), [p.grad for p in model.parameters() if p.grad is not None]))
    assert not ours[0].requires_grad


@pytest.mark.parametrize("sizes", [[1] * 9, [3, 3, 3], [4, 4, 1], [8, 1]])
@pytest.mark.parametrize("padded", [False, True])
def test_micro_batches_add_up_to_the_whole_batch(model: GPT, sizes: list[int], padded: bool) -> None:
    """Also where the last is smaller, and where padding leaves some of them fewer targets."""
    inputs, targets = batch(B)
    if padded:
        targets[0, 5:] = IGNORE
        targets[4, :] = IGNORE
        targets[8, :15] = IGNORE
    pieces = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))
    assert_same(loss_and_gradients(model, pieces), loss_and_gradients(model, [(inputs, targets)]))


def test_padding_is_as_if_it_were_not_there(model: GPT) -> None:
    inputs, targets = batch(2)
    padded = targets.clone()
    padded[1, :] = IGNORE
    assert_same(loss_and_gradients(model, [(inputs, padded)]), loss_and_gradients(model, [(inputs[:1], targets[:1])]))
