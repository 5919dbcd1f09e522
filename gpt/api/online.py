"""Dynamic evaluation: a text is learned from while it is read (Krause et al. 2017, 1709.07432; 2019, 1904.08378)."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from gpt.model import GPT
from gpt.model.quantized import weights_format
from gpt.system.device import Compute
from gpt.system.errors import InputError
from gpt.training.loss import IGNORE, Batch, summed_loss

OPTIMIZER, RATE = "sgd", 0.1
"""The update rule and its default learning rate, see benchmarks/LOG.md."""


def dynamic_evaluation(model: GPT, batches: Iterator[Batch], rate: float) -> tuple[GPT, Iterator[Batch]]:
    """Return a copy of a model, in eval mode, and the same batches: after the use of each, the copy learns from it.

    The copy makes one step of gradient descent on the mean loss of the batch, in float32 and without dropout.

    Args:
        rate: learning rate.

    Raises:
        InputError: the weights are quantized; while the batches are read: the loss is not finite any more.
    """
    if (weights := weights_format(model)) != "float32":
        raise InputError(f"{weights} weights cannot be trained, as protocol online does; take the float32 ones")
    with torch.inference_mode(False):
        learner = copy.deepcopy(model).eval().requires_grad_(True)
    return learner, _then_learned_from(learner, batches, rate)


def _then_learned_from(model: GPT, batches: Iterator[Batch], rate: float) -> Iterator[Batch]:
    parameters: list[Tensor] = list(model.parameters())
    compute = Compute(parameters[0].device, torch.float32)
    for number, (inputs, targets) in enumerate(batches):
        yield inputs, targets
        with torch.inference_mode(False), torch.enable_grad():
            # autograd takes no tensors that were made in inference mode
            loss = summed_loss(model, inputs.clone(), targets.clone(), compute) / (targets != IGNORE).sum()
            if number > 0 and not loss.isfinite():
                raise InputError(f"the loss is not finite after {number} updates with a rate of {rate:g}; lower it")
            gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_sub_(parameters, gradients, alpha=rate)
