"""What a step minimizes, against its definition."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.device import Compute
from gpt.training.distillation import Distillation, DistillBatch
from gpt.training.objective import cross_entropy

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


def taught(probabilities: Tensor) -> DistillBatch:
    return DistillBatch(INPUTS, TARGETS, probabilities.half())


def gradient(minimized: Tensor, model: Table) -> Tensor:
    return torch.autograd.grad(minimized, model.logits)[0]


def test_a_teacher_that_is_certain_of_the_text_changes_nothing() -> None:
    model, certain = Table(), F.one_hot(TARGETS, 7)
    plain, loss = cross_entropy(model, (INPUTS, TARGETS), COMPUTE)
    mixed, same = Distillation(0.3)(model, taught(certain), COMPUTE)
    torch.testing.assert_close((mixed, same), (plain, loss))
    torch.testing.assert_close(gradient(mixed, model), gradient(plain, model))


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_the_gradient_is_that_of_the_mixture_with_the_divergence(weight: float) -> None:
    model, teacher = Table(), torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(3)).softmax(-1).half()
    mixed, loss = Distillation(weight)(model, taught(teacher), COMPUTE)
    plain, _ = cross_entropy(model, (INPUTS, TARGETS), COMPUTE)
    divergence = F.kl_div(model.logits.log_softmax(-1), teacher.float(), reduction="sum")
    expected = (1 - weight) * gradient(plain, model) + weight * gradient(divergence, model)
    torch.testing.assert_close(gradient(mixed, model), expected, atol=2e-3, rtol=0)  # probabilities are float16
    torch.testing.assert_close(loss, plain.detach())
    assert not loss.requires_grad
