"""Drafts of a small model change how fast a text comes, and no token of it."""

import math
from itertools import cycle
from typing import Any

import pytest
import torch
from generation.support import LETTERS, Drive, Text, complete, runtime_of
from native_support import needs_compiler

import gpt
from gpt.config import SamplingParams
from gpt.generation.draft_length import LENGTHS, DraftLength
from gpt.generation.runtime import DecodeOptions, Runtime, build_runtime
from gpt.model import GPT
from gpt.system.errors import GenerationError
from tiny import sharp_model

every_backend = pytest.mark.parametrize(
    "backend", ["eager", "graph", pytest.param("native", marks=needs_compiler)]
)
PROMPTS = ["abc", "v", "", "hjklmnopqrstu"]
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 9},
    {"temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.3},
    {"temperature": 0.8, "min_p": 0.05, "logprobs": 3},
    {"temperature": 0.8, "presence_penalty": 0.4, "logit_bias": ((5, 2.0),)},
    {"temperature": 0.8, "stop": ("ab", "h", "q")},
    {"temperature": 0.8, "end_id": 7},
    {"temperature": 0.8, "overflow": "stop"},
]


def noisy_copy(model: GPT, noise: float, **changes: Any) -> GPT:
    """A model whose weights are near those of another one, so that it often guesses right."""
    copy = sharp_model(std=0.25, **changes)
    torch.manual_seed(1)
    with torch.no_grad():
        for own, other in zip(copy.parameters(), model.parameters(), strict=True):
            if own.shape == other.shape:
                own.copy_(other + noise * torch.randn_like(other))
    return copy


@pytest.fixture
def every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts of all lengths in turn, whatever the clock says."""
    lengths = cycle(LENGTHS)
    monkeypatch.setattr(DraftLength, "next", lambda self: next(lengths))


def tokens_of(texts: list[Text]) -> list[list[tuple[int, str]]]:
    """The ids and the shown text of each chunk."""
    return [
        [(chunk.token.id, chunk.text) for chunk in text.chunks if chunk.token is not None]
        for text in texts
    ]


def runtimes(backend: str, model: GPT, draft: GPT) -> tuple[Runtime, Runtime]:
    small = runtime_of(draft, backend)
    return runtime_of(model, backend), runtime_of(model, backend, draft=small)


@every_backend
@pytest.mark.parametrize("given", PARAMS, ids=str)
@pytest.mark.usefixtures("every_length")
def test_texts_with_a_draft_are_those_without(backend: str, given: dict[str, Any]) -> None:
    model = sharp_model(std=0.25, position="rope")
    draft = noisy_copy(model, 0.02, position="rope")
    plain, drafted = runtimes(backend, model, draft)
    params = SamplingParams(max_new_tokens=60, seed=3, **given)
    expected = complete(model, PROMPTS, params, runtime=plain)
    found = complete(model, PROMPTS, params, runtime=drafted)
    assert tokens_of(found) == tokens_of(expected)
    assert [text.finish for text in found] == [text.finish for text in expected]
    stats = drafted.draft_experience
    assert 0 < stats.accepted < stats.drafted


@every_backend
@pytest.mark.parametrize("noise", [0.0, 5.0], ids=["the model itself", "another model"])
@pytest.mark.usefixtures("every_length")
def test_draft_of_any_quality_and_window_gives_the_same_text(backend: str, noise: float) -> None:
    model = sharp_model(std=0.25, position="rope", block_size=40)
    draft = noisy_copy(model, noise, position="rope", block_size=12, n_kv_head=4)
    plain, drafted = runtimes(backend, model, draft)
    params = SamplingParams(max_new_tokens=100, seed=9)
    expected = complete(model, PROMPTS, params, runtime=plain)
    assert tokens_of(complete(model, PROMPTS, params, runtime=drafted)) == tokens_of(expected)


@pytest.mark.usefixtures("every_length")
def test_model_that_drafts_for_itself_is_always_right() -> None:
    model = sharp_model(std=0.25, position="rope", block_size=64)
    runtime = build_runtime(model, DecodeOptions("eager"), draft=model)
    complete(model, ["abc"], SamplingParams(max_new_tokens=50, seed=1), runtime=runtime)
    stats = runtime.draft_experience
    assert stats.accepted == stats.drafted > 30


@every_backend
@pytest.mark.usefixtures("every_length")
def test_requests_that_join_and_wait_get_the_text_that_they_get_alone(backend: str) -> None:
    """With blocks for two windows of three, so that sequences lose their places and blocks."""
    model = sharp_model(std=0.25, position="rope", block_size=128)
    draft = noisy_copy(model, 0.02, position="rope", block_size=128)
    plain, drafted = runtimes(backend, model, draft)
    drive = Drive(drafted.engine(LETTERS, max_sequences=3, prefill_chunk=8, blocks=4))
    answers = []
    for number, prompt in enumerate(["abc", "abcdefghijklm" * 6, "v", "abcdefghijklm" * 6, "q"]):
        answers.append(drive.add(prompt, max_new_tokens=90, seed=number, temperature=0.8))
        drive.step(7)
    drive.finish()
    assert drive.engine.stats().preemptions > 0
    for number, answer in enumerate(answers):
        assert answer.request is not None
        prompt = LETTERS.decode(answer.request.prompt_ids)
        params = answer.request.params
        alone = complete(model, [prompt], params, seeds=[number], runtime=plain)[0]
        assert answer.ids == alone.ids


@every_backend
@pytest.mark.usefixtures("every_length")
def test_draft_with_broken_weights_costs_no_text(backend: str) -> None:
    model = sharp_model(std=0.25)
    draft = noisy_copy(model, 0.0)
    with torch.no_grad():
        draft.wpe.weight[9] = math.nan  # type: ignore[index, union-attr]
    plain, drafted = runtimes(backend, model, draft)
    params = SamplingParams(max_new_tokens=30, seed=3)
    expected = complete(model, ["abc"], params, runtime=plain)
    assert tokens_of(complete(model, ["abc"], params, runtime=drafted)) == tokens_of(expected)


@every_backend
@pytest.mark.usefixtures("every_length")
def test_draft_without_any_guess_counts_as_not_used(backend: str) -> None:
    """The target then samples alone, perhaps several tokens in a call: none of them was guessed."""
    model = sharp_model(std=0.25)
    draft = noisy_copy(model, 0.0)
    with torch.no_grad():
        draft.wpe.weight.fill_(math.nan)  # type: ignore[union-attr, operator]
    plain, drafted = runtimes(backend, model, draft)
    params = SamplingParams(max_new_tokens=60, seed=3)
    expected = complete(model, ["abc"], params, runtime=plain)
    assert tokens_of(complete(model, ["abc"], params, runtime=drafted)) == tokens_of(expected)
    stats = drafted.draft_experience
    assert (stats.passes, stats.drafted, stats.accepted) == (0, 0, 0)
    assert stats.describe() == "draft: not used"
    # The rate begins at 0.5, and falls with each wrong guess.
    assert 0 <= stats.acceptance.rate < 0.5


@every_backend
@pytest.mark.usefixtures("every_length")
def test_broken_model_fails_at_the_same_token_with_a_draft(backend: str) -> None:
    model = sharp_model(std=0.25)
    draft = noisy_copy(model, 0.0)
    with torch.no_grad():
        model.wpe.weight[9] = math.nan  # type: ignore[index, union-attr]
    texts = []
    for runtime in runtimes(backend, model, draft):
        drive = Drive(runtime.engine(LETTERS, max_sequences=1))
        answer = drive.add("abc", max_new_tokens=30, temperature=0.0)
        drive.finish()
        assert answer.request is not None
        texts.append((answer.ids, answer.finish, str(answer.request.error)))
    assert texts[0] == texts[1]
    assert "position 9 are not finite" in texts[0][2]


def test_generate_takes_a_draft() -> None:
    model = sharp_model(std=0.25)
    draft = noisy_copy(model, 0.02)
    given: dict[str, Any] = {"max_new_tokens": 30, "seed": 4}
    expected = gpt.generate(model, LETTERS, ["abc", "v"], **given)
    assert gpt.generate(model, LETTERS, ["abc", "v"], draft=draft, **given) == expected
    runtime = gpt.build_runtime(model)
    with pytest.raises(GenerationError, match="draft has no effect beside runtime"):
        gpt.generate(model, LETTERS, "abc", draft=draft, runtime=runtime)


def test_draft_with_other_token_ids_is_refused() -> None:
    with pytest.raises(GenerationError, match="the draft has 24 token ids, the model 23"):
        build_runtime(sharp_model(), draft=sharp_model(vocab_size=24))


def test_drafts_are_chosen_by_the_clock_while_requests_wait() -> None:
    """Steps in which somebody waits have no room for drafts, and leave the choice as it was."""
    model = sharp_model(std=0.25, position="rope", block_size=64)
    draft = noisy_copy(model, 0.02, position="rope", block_size=64)
    plain, drafted = runtimes("eager", model, draft)
    drive = Drive(drafted.engine(LETTERS, max_sequences=1))
    answers = [drive.add("abc", max_new_tokens=40, seed=seed) for seed in range(3)]
    drive.finish()
    assert drafted.draft_experience.passes > 0
    params = SamplingParams(max_new_tokens=40)
    expected = complete(model, ["abc"] * 3, params, seeds=range(3), runtime=plain)
    assert [answer.ids for answer in answers] == [text.ids for text in expected]
