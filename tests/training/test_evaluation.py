import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gpt.device import Compute
from gpt.model import GPT
from gpt.training.evaluation import Evaluation, evaluate, full_batches, random_batches, sliding_batches
from gpt.training.loss import IGNORE, Batch
from tiny import tiny_config

CPU = Compute(torch.device("cpu"), torch.float32, False)
TOKENS = np.random.default_rng(0).integers(23, size=100).astype(np.uint8)


def counted(batches: Iterator[Batch]) -> list[tuple[int, int]]:
    """Target and length of context of every prediction that counts, where each token is its own place."""
    found = []
    for inputs, targets in batches:
        for row_inputs, row_targets in zip(inputs.tolist(), targets.tolist(), strict=True):
            for column, target in enumerate(row_targets):
                if target != IGNORE:
                    assert row_inputs[column] == target - 1
                    found.append((target, column + 1))
    return found


@given(length=st.integers(2, 90), block_size=st.integers(1, 20), batch_size=st.integers(1, 7))
def test_full_predicts_every_token_once_and_in_order(length: int, block_size: int, batch_size: int) -> None:
    batches = list(full_batches(np.arange(length), block_size, batch_size))
    assert [target for target, _ in counted(iter(batches))] == list(range(1, length))
    assert all(inputs.shape[0] <= batch_size and inputs.shape[1] <= block_size for inputs, _ in batches)
    assert all(inputs.shape == targets.shape for inputs, targets in batches)


@given(
    length=st.integers(2, 90),
    block_size=st.integers(1, 20),
    batch_size=st.integers(1, 7),
    share=st.floats(0, 1),
)
def test_sliding_predicts_every_token_once_with_the_context_that_the_stride_leaves(
    length: int, block_size: int, batch_size: int, share: float
) -> None:
    stride = max(1, round(share * block_size))
    found = counted(sliding_batches(np.arange(length), block_size, batch_size, stride))
    assert [target for target, _ in found] == list(range(1, length))
    assert all(min(target, block_size - stride + 1) <= context <= block_size for target, context in found)


def test_sliding_by_one_gives_every_token_all_the_context_there_is() -> None:
    found = counted(sliding_batches(np.arange(50), block_size=8, batch_size=3, stride=1))
    assert found == [(target, min(target, 8)) for target in range(1, 50)]


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
    class Stop(Exception):
        pass

    forwards, polls = [], iter(range(100))
    tiny_model.train().register_forward_hook(lambda *arguments: forwards.append(1))

    def poll() -> None:
        if next(polls) == 3:
            raise Stop

    with pytest.raises(Stop):
        evaluate(tiny_model, full_batches(TOKENS, 16, 1), CPU, poll)
    assert len(forwards) == 3
    assert tiny_model.training


def test_random_crops_have_their_own_generator() -> None:
    before = torch.get_rng_state()
    first = list(random_batches(TOKENS, 16, 4, batches=5, seed=3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    again = list(random_batches(TOKENS, 16, 4, batches=5, seed=3))
    other = list(random_batches(TOKENS, 16, 4, batches=5, seed=4))
    assert len(first) == 5
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(first, other, strict=True))


def test_bits_per_character() -> None:
    assert Evaluation(math.log(2), 10).bits_per_char(1.0) == pytest.approx(1.0)
    assert Evaluation(2.0, 10).bits_per_char(4.0) == pytest.approx(2.0 / math.log(2) / 4)
