"""Speculative decoding: the text of plain decoding, whatever is guessed."""

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from generation.support import rows_of
from native_support import needs_compiler

from gpt.config import SamplingParams
from gpt.generation import speculative
from gpt.generation.batch import Batch
from gpt.generation.runtime import DecodeOptions, Runtime, build_runtime
from gpt.generation.speculative import Lookup
from gpt.model import GPT
from gpt.system.errors import GenerationError
from gpt.system.progress import silent
from tiny import sharp_model
from variants import draw_model

pytestmark = needs_compiler


class Oracle:
    """Drafts that are right, or wrong, as often as is wanted; it knows the texts, which begin differently."""

    def __init__(self, texts: Sequence[Sequence[int]], wrong_every: int) -> None:
        self.texts, self.wrong_every = texts, wrong_every

    def draft(self, sequence: Sequence[int], count: int) -> list[int]:
        (text,) = (text for text in self.texts if text[: len(sequence)] == sequence)
        end = len(sequence)
        return [
            (token + 1) % 23 if self.wrong_every and (end + i) % self.wrong_every == 0 else token
            for i, token in enumerate(text[end : end + count])
        ]


@pytest.fixture(autouse=True)
def _always_speculate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether drafts are quicker is measured: here they always are."""
    monkeypatch.setattr(speculative, "FIRST_PLAIN", 0)
    monkeypatch.setattr(speculative, "LOSS_BUDGET", math.inf)


def runtime_of(model: GPT, speculate: bool) -> Runtime:
    return build_runtime(model, DecodeOptions("native"), report=silent, speculate=speculate)


def tokens_of(model: GPT, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
    return rows_of(Batch(runtime_of(model, False), prompts, params, range(len(prompts))), params.max_new_tokens)


def assert_same_chunks(model: GPT, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
    plain, drafted = (Batch(runtime_of(model, each), prompts, params, range(len(prompts))) for each in (False, True))
    while plain.active:
        assert plain.step() == drafted.step()
    assert not drafted.active


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "end_id": 4, "logprobs": 2},
        {"temperature": 1.3, "top_k": 7, "top_p": 0.9},
        {"temperature": 0.9, "min_p": 0.05, "repetition_penalty": 1.4},
    ],
    ids=str,
)
@pytest.mark.parametrize("wrong_every", [None, 0, 1, 2, 3, 7])
def test_text_and_logprobs_are_those_of_plain_decoding_however_often_a_draft_is_right(
    wrong_every: int | None, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are how often an oracle is wrong; None: there is none."""
    model = sharp_model(std=0.25, position="learned" if wrong_every else "rope")
    prompts, params = [[1, 2, 3], [5], [7] * 16, [8], [9]], SamplingParams(max_new_tokens=70, **sampling)
    plain = tokens_of(model, prompts, params.model_copy(update={"max_new_tokens": 90, "end_id": None}))
    texts = [[*prompt, *row] for prompt, row in zip(prompts, plain, strict=True)]
    if wrong_every is not None:
        monkeypatch.setattr(speculative, "Lookup", lambda: Oracle(texts, wrong_every))
    assert_same_chunks(model, prompts, params)


@pytest.mark.parametrize("seed", range(8))
def test_drafts_change_no_text_of_a_random_model(seed: int) -> None:
    chance = Random(seed)
    model = draw_model(chance)
    window = model.config.block_size
    prompts = [chance.choices(range(model.vocab_size), k=length) for length in (1, window // 2, window + 3)]
    assert_same_chunks(model, prompts, SamplingParams(max_new_tokens=32))


@pytest.mark.parametrize("speculate", [False, True])
def test_row_that_ends_before_its_logits_break_keeps_its_text(speculate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far ahead tokens are sampled, only those that are asked for count."""
    model = sharp_model(std=0.25)
    (expected,) = tokens_of(model, [[1, 2, 3]], SamplingParams(max_new_tokens=7, temperature=0))
    monkeypatch.setattr(speculative, "Lookup", lambda: Oracle([[1, 2, 3, *expected, *[0] * 10]], wrong_every=0))
    with torch.no_grad():
        model.wpe.weight[9] = math.nan  # type: ignore[index, union-attr]
    params = SamplingParams(max_new_tokens=20, temperature=0)
    batch = Batch(runtime_of(model, speculate), [[1, 2, 3]], params, [0])
    assert rows_of(batch, 7) == [expected]
    with pytest.raises(GenerationError, match="position 9 are not finite"):
        batch.step()


def test_lookup_goes_on_as_the_text_did_after_the_same_words() -> None:
    lookup = Lookup()
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    assert lookup.draft(text, 4) == [4, 5, 6, 7]
    text += [4, 5, 9, 9, 2, 3, 4]
    assert lookup.draft(text, 2) == [5, 9]  # of several places the latest
    assert Lookup().draft([1, 2, 3], 4) == []
