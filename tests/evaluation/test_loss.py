import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gpt.device import Compute
from gpt.evaluation.loss import Evaluation, evaluate, summed_cross_entropy
from gpt.evaluation.windows import full_batches, sliding_batches
from gpt.model import GPT
from tiny import tiny_config

CPU = Compute(torch.device("cpu"), torch.float32)
TOKENS = np.random.default_rng(0).integers(23, size=100).astype(np.uint8)


def test_the_loss_is_the_negative_log_probability_in_nats() -> None:
    logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    probabilities = logits.exp() / logits.exp().sum(dim=-1, keepdim=True)
    by_hand = -sum(probabilities[b, t, targets[b, t]].log() for b in range(2) for t in range(3))
    torch.testing.assert_close(summed_cross_entropy(logits, targets), torch.as_tensor(by_hand))


def naive_loss(model: GPT, tokens: list[int], stride: int) -> float:
    """One token at a time: the mean of -log p given the tokens of its window before it."""
    block, total = model.config.block_size, 0.0
    for target in range(1, len(tokens)):
        first_window_past = max(0, math.ceil((target - block) / stride))
        begin = first_window_past * stride
        logits = model(torch.tensor([tokens[begin:target]]))[0, -1]
        total -= float(logits.log_softmax(dim=-1)[tokens[target]])
    return total / (len(tokens) - 1)


@pytest.mark.parametrize("stride", [1, 5, 16])
def test_the_loss_is_that_of_a_naive_loop(tiny_model: GPT, stride: int) -> None:
    """100 tokens in windows of 16: the last window is shorter, and the last batch smaller."""
    batches = sliding_batches(TOKENS, 16, 4, stride)
    with torch.no_grad():
        expected = naive_loss(tiny_model, TOKENS.tolist(), stride)
    result = evaluate(tiny_model, batches, CPU)
    assert result.loss == pytest.approx(expected, abs=1e-5)
    assert result.tokens == 99


class ByPosition(nn.Module):
    """Gives the right answer at every place of a window but its first."""

    def forward(self, idx: Tensor) -> Tensor:
        logits = torch.zeros(*idx.shape, 200)
        logits.scatter_(2, (idx + 1).unsqueeze(-1), 1000.0)
        logits[:, 0] = 0.0
        return logits


def test_a_short_last_window_weighs_what_its_tokens_weigh() -> None:
    """21 predictions in windows of 8, 8 and 5, of which 3 cost log 200 and the others nothing."""
    result = evaluate(ByPosition(), full_batches(np.arange(22), block_size=8, batch_size=2), CPU)
    assert result.loss == pytest.approx(3 * math.log(200) / 21)
    assert result.tokens == 21


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_in_eval_mode_meanwhile_and_in_its_own_mode_afterwards(training: bool) -> None:
    model = GPT(tiny_config(dropout=0.5)).train(training)
    seen: set[tuple[bool, bool]] = set()
    model.register_forward_hook(lambda module, inputs, logits: seen.add((module.training, logits.requires_grad)))
    losses = {evaluate(model, full_batches(TOKENS, 16, 4), CPU).loss for _ in range(2)}
    assert len(losses) == 1
    assert seen == {(False, False)}
    assert model.training is training
    assert all(module.training is training for module in model.modules())


def test_what_poll_raises_ends_the_evaluation_and_restores_the_mode(tiny_model: GPT) -> None:
    forwards, poll = [], Mock(side_effect=[None, None, None, KeyError])
    tiny_model.train().register_forward_hook(lambda *arguments: forwards.append(1))
    with pytest.raises(KeyError):
        evaluate(tiny_model, full_batches(TOKENS, 16, 1), CPU, poll)
    assert len(forwards) == 3
    assert tiny_model.training


def test_bits_per_character() -> None:
    assert Evaluation(math.log(2), 10).bits_per_char(1.0) == pytest.approx(1.0)
    assert Evaluation(2.0, 10).bits_per_char(4.0) == pytest.approx(2.0 / math.log(2) / 4)
