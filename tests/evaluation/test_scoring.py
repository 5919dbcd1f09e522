import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gpt.data import ByteTokenizer, CharTokenizer
from gpt.evaluation.scoring import Score, score_text
from gpt.model import GPT
from gpt.system.errors import DataError, GenerationError
from patience import examples
from tiny import sharp_model

LETTERS = CharTokenizer("\nabcdefghijklmnopqrstuv")  # 23 ids
WIDTH = 6
TEXT = "thecatsatonthematandtheratranoffbefore"


def small_model(**changes: object) -> GPT:
    return sharp_model(std=0.3, n_layer=1, block_size=WIDTH, **changes)


@torch.no_grad()
def logprob_after(model: GPT, context: list[int], token: int) -> float:
    return float(model(torch.tensor([context]))[0, -1].log_softmax(dim=-1)[token])


def begin_of(place: int, stride: int) -> int:
    """Where the first window begins, of those `stride` apart, that predicts the token at a place."""
    begin = 0
    while begin + WIDTH < place:
        begin += stride
    return begin


@examples(0.25)
@given(length=st.integers(2, 30), stride=st.integers(1, WIDTH))
def test_every_token_is_scored_once_by_the_first_window_that_reaches_it(length: int, stride: int) -> None:
    model, ids = small_model(), LETTERS.encode(TEXT[:length]).tolist()
    expected = [logprob_after(model, ids[begin_of(place, stride) : place], ids[place]) for place in range(1, length)]
    assert score_text(model, LETTERS, TEXT[:length], stride).logprobs == pytest.approx(expected, abs=1e-5)


def test_numbers_by_hand() -> None:
    score = Score((math.log(0.5), math.log(0.25), math.log(0.125)), chars=2)
    assert score.logprob == pytest.approx(math.log(1 / 64))
    assert score.perplexity == pytest.approx(4)
    assert score.bits_per_char == pytest.approx(3)
    assert Score((-1e4,), chars=1).perplexity == math.inf


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary() -> None:
    model = small_model()
    nn.init.zeros_(model.lm_head.weight)
    score = score_text(model, LETTERS, TEXT)
    assert score.perplexity == pytest.approx(23)
    assert score.bits_per_char == pytest.approx(math.log2(23))
    assert score.chars == len(score.logprobs) == len(TEXT) - 1


@pytest.mark.parametrize(
    ("text", "tokens", "chars"),
    [("ab", 1, 1), ("aé", 2, 1), ("éa", 2, 2), ("日本", 5, 2), ("é", 1, 1), ("a🙂b", 5, 2)],
)
def test_bytes_count_the_characters_that_they_complete(text: str, tokens: int, chars: int) -> None:
    model = small_model(tie_weights=False, vocab_size=256)
    nn.init.zeros_(model.lm_head.weight)
    score = score_text(model, ByteTokenizer(), text)
    assert (len(score.logprobs), score.chars) == (tokens, chars)
    assert score.bits_per_char == pytest.approx(8 * tokens / chars)


@pytest.mark.parametrize(("unknown", "chars"), [("drop", 2), ("replace", 3)])
def test_characters_that_were_dropped_are_not_counted(unknown: str, chars: int) -> None:
    score = score_text(small_model(), CharTokenizer(LETTERS.itos, unknown), "ab€c")
    assert score.chars == len(score.logprobs) == chars


@pytest.mark.parametrize(
    ("text", "stride", "error", "message"),
    [
        ("", None, GenerationError, "a text of 0 tokens has nothing to score"),
        ("a", None, GenerationError, "a text of 1 tokens has nothing to score"),
        (TEXT, 0, GenerationError, "stride is 0"),
        (TEXT, -1, GenerationError, "stride is -1"),
        ("ab€", None, DataError, "'€' at 2"),
    ],
)
def test_what_cannot_be_scored_is_refused(text: str, stride: int | None, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        score_text(small_model(), LETTERS, text, stride)
