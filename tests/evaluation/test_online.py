import copy

import numpy as np
import pytest
import torch
from torch import nn

from gpt.data import CharTokenizer
from gpt.device import Compute
from gpt.evaluation.loss import batch_losses, evaluate
from gpt.evaluation.online import learning
from gpt.evaluation.scoring import score_text
from gpt.evaluation.windows import full_batches
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import InputError
from tiny import sharp_model
from variants import VARIANTS, keys_of, name_of

CPU = Compute(torch.device("cpu"), torch.float32)
TOKENS = np.random.default_rng(0).integers(23, size=100).astype(np.uint8)
REPEATED = np.tile(np.arange(17), 12).astype(np.uint8)


def block_losses(model: nn.Module, tokens: np.ndarray, rate: float | None) -> list[float]:
    """Of each block of 16, summed, in order; without a rate nothing is learned."""
    batches = full_batches(tokens, 16, 1)
    if rate is not None:
        assert isinstance(model, GPT)
        model, batches = learning(model, batches, rate)
    return batch_losses(model, batches, CPU, lambda: None)[0]


def test_each_block_is_scored_by_a_model_that_descended_the_mean_losses_of_those_before(tiny_model: GPT) -> None:
    by_hand, expected = copy.deepcopy(tiny_model).eval(), []
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.3)
    for inputs, targets in full_batches(TOKENS, 16, 1):
        loss = nn.functional.cross_entropy(by_hand(inputs)[0], targets[0])
        expected.append(loss.item() * targets.numel())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert block_losses(tiny_model, TOKENS, 0.3) == pytest.approx(expected, rel=1e-5)


def test_nothing_is_predicted_with_what_comes_later() -> None:
    changed = TOKENS.copy()
    changed[65:] = (changed[65:] + 1) % 23  # the fifth block and its targets
    before, after = (block_losses(sharp_model(), tokens, 0.1) for tokens in (TOKENS, changed))
    assert before[:4] == after[:4]
    assert before[4] != after[4]


def test_a_rate_of_zero_is_the_full_protocol() -> None:
    assert block_losses(sharp_model(), TOKENS, 0.0) == block_losses(sharp_model(), TOKENS, None)


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_a_text_that_repeats_itself_is_predicted_ever_better(variant: tuple[object, ...]) -> None:
    model = sharp_model(0.1, **keys_of(variant))
    full, online = (block_losses(model, REPEATED, rate) for rate in (None, 0.1))
    assert online[0] == full[0]
    assert sum(online[-4:-1]) < 0.95 * sum(full[-4:-1])


def test_the_model_stays_as_it_was_and_a_frozen_one_is_learned_from() -> None:
    model = sharp_model(dropout=0.5).requires_grad_(False).train()
    before = copy.deepcopy(model.state_dict())
    losses = {evaluate(*learning(model, full_batches(TOKENS, 16, 1), 0.1), CPU).loss for _ in range(2)}
    assert len(losses) == 1, "dropout was on"
    assert model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_text_is_scored_as_a_split_is() -> None:
    """Also in inference mode, whose tensors autograd does not take."""
    letters = CharTokenizer("\nabcdefghijklmnopqrstuv")
    with torch.inference_mode():
        score = score_text(sharp_model(), letters, letters.decode(TOKENS.tolist()), rate=0.1)
    assert -score.logprob == pytest.approx(sum(map(float, block_losses(sharp_model(), TOKENS, 0.1))), rel=1e-5)


@pytest.mark.parametrize("weights", ["int8", "bf16"])
def test_weights_that_cannot_be_trained_are_refused(weights: str) -> None:
    with pytest.raises(InputError, match=f"^{weights} weights cannot be trained, .* take the float32 ones$"):
        learning(quantize(sharp_model(), weights), iter([]), 0.1)


def test_a_rate_that_destroys_the_model_is_told() -> None:
    with pytest.raises(InputError, match=r"^the loss is not finite after \d updates with a rate of 1e\+30; lower it$"):
        block_losses(sharp_model(), TOKENS, 1e30)
