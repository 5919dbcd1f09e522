"""The loss over a text in windows, and scores of texts."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from gpt.api.scoring import Score, score_text
from gpt.data import ByteTokenizer, CharTokenizer
from gpt.data.tokens import IGNORE
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.system.errors import DataError, GenerationError
from gpt.training.loss import Evaluation, evaluate, full_batches, sliding_batches
from patience import examples
from tiny import sharp_model, tiny_config

LETTERS = CharTokenizer("\nabcdefghijklmnopqrstuv")  # 23 ids
CPU = Compute(torch.device("cpu"), torch.float32)
TOKENS = np.random.default_rng(0).integers(23, size=100).astype(np.uint8)


@given(
    length=st.integers(2, 90),
    block_size=st.integers(1, 20),
    batch_size=st.integers(1, 7),
    share=st.floats(0, 1),
)
@example(length=50, block_size=8, batch_size=3, share=0.0)
@example(length=50, block_size=8, batch_size=3, share=1.0)
def test_windows_predict_every_token_once(
    length: int, block_size: int, batch_size: int, share: float
) -> None:
    stride = max(1, round(share * block_size))
    found = []  # target and length of its context, where each token is its own place
    for inputs, targets in sliding_batches(np.arange(length), block_size, batch_size, stride):
        assert inputs.shape == targets.shape
        assert inputs.shape[0] <= batch_size
        assert inputs.shape[1] <= block_size
        kept = targets != IGNORE
        assert torch.equal(inputs[kept], targets[kept] - 1)
        found += [(int(targets[row, column]), int(column) + 1) for row, column in kept.nonzero()]
    assert [target for target, _ in found] == list(range(1, length))
    assert all(
        min(target, block_size - stride + 1) <= context <= block_size for target, context in found
    )
    if stride == 1:
        assert [context for _, context in found] == [min(target, block_size) for target, _ in found]


@pytest.mark.parametrize("stride", [1, 5, 16])
@torch.no_grad()
def test_loss_is_the_mean_of_a_loop_over_single_tokens(tiny_model: GPT, stride: int) -> None:
    """100 tokens in windows of 16: the last window is shorter, and the last batch smaller."""
    total = 0.0
    for target in range(1, 100):
        # The first of the windows, which begin at multiples of the stride, that reaches the target.
        begin = max(0, math.ceil((target - 16) / stride)) * stride
        logits = tiny_model(torch.tensor([TOKENS[begin:target].tolist()]))[0, -1]
        total -= float(logits.log_softmax(dim=-1)[TOKENS[target]])
    batches = (
        full_batches(TOKENS, 16, 4) if stride == 16 else sliding_batches(TOKENS, 16, 4, stride)
    )
    result = evaluate(tiny_model, batches, CPU)
    assert result == Evaluation(pytest.approx(total / 99, abs=1e-5), 99)
    assert result.bits_per_char(4.0) == pytest.approx(result.loss / math.log(2) / 4)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_is_in_eval_mode_and_restores_the_mode(training: bool) -> None:
    model = GPT(tiny_config(dropout=0.5)).train(training)
    seen: set[tuple[bool, bool]] = set()
    model.register_forward_hook(
        lambda module, inputs, logits: seen.add((module.training, logits.requires_grad))
    )
    losses = {evaluate(model, full_batches(TOKENS, 16, 4), CPU).loss for _ in range(2)}
    assert len(losses) == 1
    assert seen == {(False, False)}
    assert all(module.training is training for module in model.modules())


WIDTH = 6
TEXT = "thecatsatonthematandtheratranoffbefore"


def small_model(**changes: object) -> GPT:
    return sharp_model(std=0.3, n_layer=1, block_size=WIDTH, **changes)


@examples(0.25)
@given(length=st.integers(2, 30), stride=st.integers(1, WIDTH))
@torch.no_grad()
def test_token_is_scored_by_the_first_window_that_reaches_it(length: int, stride: int) -> None:
    model = small_model()
    ids = LETTERS.encode(TEXT[:length]).tolist()
    expected = []
    begin = 0
    for place in range(1, length):
        begin += stride * (begin + WIDTH < place)
        logits = model(torch.tensor([ids[begin:place]]))[0, -1]
        expected.append(float(logits.log_softmax(dim=-1)[ids[place]]))
    assert score_text(model, LETTERS, TEXT[:length], stride).logprobs == pytest.approx(
        expected, abs=1e-5
    )


def test_perplexity_and_bits_of_known_probabilities() -> None:
    score = Score((math.log(0.5), math.log(0.25), math.log(0.125)), chars=2)
    assert score.logprob == pytest.approx(math.log(1 / 64))
    assert score.perplexity == pytest.approx(4)
    assert score.bits_per_char == pytest.approx(3)
    assert Score((-1e4,), chars=1).perplexity == math.inf


@pytest.mark.parametrize(
    ("text", "tokens", "chars"),
    [("ab", 1, 1), ("aé", 2, 1), ("éa", 2, 2), ("日本", 5, 2), ("é", 1, 1), ("a🙂b", 5, 2)],
)
def test_bytes_count_as_the_characters_that_they_complete(
    text: str, tokens: int, chars: int
) -> None:
    model = small_model(tie_weights=False, vocab_size=256)
    nn.init.zeros_(model.lm_head.weight)
    score = score_text(model, ByteTokenizer(), text)
    assert (len(score.logprobs), score.chars) == (tokens, chars)
    assert score.bits_per_char == pytest.approx(8 * tokens / chars)


@pytest.mark.parametrize(("unknown", "chars"), [("drop", 2), ("replace", 3)])
def test_dropped_characters_are_not_counted(unknown: str, chars: int) -> None:
    score = score_text(small_model(), CharTokenizer(LETTERS.itos, unknown), "ab€c")
    assert score.chars == len(score.logprobs) == chars


@pytest.mark.parametrize(
    ("text", "stride", "error", "message"),
    [
        ("a", None, GenerationError, "a text of 1 tokens has nothing to score"),
        (TEXT, 0, GenerationError, "stride is 0"),
        ("ab€", None, DataError, "'€' at 2"),
    ],
)
def test_texts_and_strides_that_score_nothing_are_refused(
    text: str, stride: int | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        score_text(small_model(), LETTERS, text, stride)
