"""What a step minimizes, against its definition."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.config import TrainConfig
from gpt.device import Compute
from gpt.evaluation.loss import IGNORE
from gpt.training.objective import Objective, build_objective

COMPUTE = Compute(torch.device("cpu"), torch.float32)
INPUTS = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(1))


class Table(nn.Module):
    """A model whose parameters are its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(2)))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits


def minimized(objective: Objective, model: Table, *teacher: Tensor, step: int = 0) -> tuple[Tensor, Tensor]:
    """Return what is minimized, and the gradient of each logit; the loss has none."""
    value, loss = objective(model, (INPUTS, TARGETS, *teacher), COMPUTE, step)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, by_hand(model.logits.detach() / objective.temperature))
    return value, torch.autograd.grad(value, model.logits)[0]


def by_hand(logits: Tensor, ahead: int = 0) -> Tensor:
    """Sum the cross-entropy of the tokens after the next ones, position by position."""
    rows = [(row, t) for row in range(2) for t in range(5 - ahead)]
    return torch.stack([-logits[row, t].log_softmax(-1)[TARGETS[row, t + ahead]] for row, t in rows]).sum()


def test_the_default_is_the_cross_entropy_of_the_targets_that_count() -> None:
    model, targets = Table(), TARGETS.clone()
    targets[0, 3:] = IGNORE
    value, loss = Objective()(model, (INPUTS, targets), COMPUTE, 0)
    expected = F.cross_entropy(model.logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    assert value.item() == loss.item() == expected.item()


def test_a_temperature_divides_the_logits() -> None:
    model, scaled = Table(), Table()
    scaled.logits.data /= 0.8
    value, gradient = minimized(Objective(temperature=0.8), model)
    plain, expected = minimized(Objective(), scaled)
    torch.testing.assert_close((value, gradient * 0.8), (plain, expected))


@pytest.mark.parametrize(("step", "share"), [(0, 1.0), (15, 0.25), (20, 0.0), (29, 0.0)])
def test_tokens_further_ahead_count_less_from_step_to_step(step: int, share: float) -> None:
    model = Table()
    value, _ = minimized(Objective(ahead=(0.5, 0.25), ahead_steps=20), model, step=step)
    further = 0.5 * by_hand(model.logits, 1) + 0.25 * by_hand(model.logits, 2)
    torch.testing.assert_close(value, by_hand(model.logits) + share * further)


def test_a_sequence_shorter_than_the_distance_adds_nothing() -> None:
    model = Table()
    far = Objective(ahead=(1.0,) * 6, ahead_steps=1)
    torch.testing.assert_close(minimized(far, model)[0], sum(by_hand(model.logits, k) for k in range(5)))


def test_a_teacher_that_is_certain_of_the_text_changes_nothing() -> None:
    model = Table()
    taught = minimized(Objective(teacher_weight=0.3), model, F.one_hot(TARGETS, 7).half())
    torch.testing.assert_close(taught, minimized(Objective(), model))


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_the_gradient_is_that_of_the_mixture_with_the_divergence(weight: float) -> None:
    model, teacher = Table(), torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(3)).softmax(-1).half()
    _, mixed = minimized(Objective(teacher_weight=weight), model, teacher)
    divergence = F.kl_div(model.logits.log_softmax(-1), teacher.float(), reduction="sum")
    expected = (1 - weight) * minimized(Objective(), model)[1]
    expected += weight * torch.autograd.grad(divergence, model.logits)[0]
    torch.testing.assert_close(mixed, expected, atol=2e-3, rtol=0)  # probabilities are float16


def test_a_configuration_says_what_is_minimized() -> None:
    train = TrainConfig(temperature=0.9, ahead_weights=(0.5,), max_steps=300, teacher_weight=0.2)
    assert build_objective(train) == Objective(0.9, (0.5,), 200, 0.2)
