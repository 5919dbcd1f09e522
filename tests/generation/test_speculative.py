"""Speculative decoding: the text of plain decoding, whatever is guessed."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from native_support import needs_compiler

from gpt.config import SamplingParams
from gpt.data.ngrams import NgramTable
from gpt.environment import read_settings
from gpt.errors import GenerationError
from gpt.generation import speculative
from gpt.generation.backends.eager import UncachedBackend
from gpt.generation.backends.selection import DecodeOptions, MakeDrafter, NativeRuntime, build_runtime
from gpt.generation.decoder import StepDecoder
from gpt.generation.drafts import Drafter, LookupDrafter, ModelDrafter, NgramDrafter
from gpt.generation.sampling import next_token_probabilities
from gpt.model import GPT
from gpt.progress import silent
from tiny import sharp_model

pytestmark = needs_compiler


class Oracle:
    """Drafts that are right, or wrong, as often as is wanted; it knows the text."""

    def __init__(self, texts: Sequence[Sequence[int]], wrong_every: int) -> None:
        self.texts, self.wrong_every = texts, wrong_every

    def draft(self, row: int, context: Sequence[int], uniforms: Sequence[float]) -> list[int]:
        end = len(context)
        true = list(self.texts[row][end : end + len(uniforms)])
        return [
            (token + 1) % 23 if self.wrong_every and (end + i) % self.wrong_every == 0 else token
            for i, token in enumerate(true)
        ]


class Guesses:
    """The same drafts whatever came before."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def draft(self, row: int, context: Sequence[int], uniforms: Sequence[float]) -> list[int]:
        return list(self.tokens[: len(uniforms)])


@pytest.fixture(autouse=True)
def _always_speculate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether drafts are quicker is measured: here they always are."""
    monkeypatch.setattr(speculative, "FIRST_PLAIN", 0)
    monkeypatch.setattr(speculative, "MAX_LOST", math.inf)


def runtime_with(model: GPT, make_drafter: MakeDrafter | None) -> NativeRuntime:
    return NativeRuntime(model, DecodeOptions(), read_settings(), silent, make_drafter)


def tokens_of(
    model: GPT, prompts: Sequence[Sequence[int]], params: SamplingParams, make_drafter: MakeDrafter | None = None
) -> list[list[int]]:
    decoder = runtime_with(model, make_drafter).decoder(prompts, params, range(len(prompts)))
    rows: list[list[int]] = [[] for _ in prompts]
    for _ in range(params.max_new_tokens):
        for row, sampled in decoder.step().items():
            rows[row].append(sampled.id)
    return rows


def ngram_drafter(params: SamplingParams) -> Drafter:
    return NgramDrafter(NgramTable.learn(np.arange(400, dtype=np.uint16) % 23, 23))


def model_drafter(params: SamplingParams) -> Drafter:
    small = sharp_model(n_layer=1, std=0.25)
    return ModelDrafter(partial(runtime_with(small, None).backend, params), params)


DRAFTERS: dict[str, MakeDrafter] = {
    "ngram": ngram_drafter,
    "lookup": lambda params: LookupDrafter(),
    "model": model_drafter,
}
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 7, "top_p": 0.9},
    {"temperature": 0.9, "min_p": 0.05, "repetition_penalty": 1.4},
]
every_sampling = pytest.mark.parametrize("sampling", SAMPLING, ids=str)


@every_sampling
@pytest.mark.parametrize("name", sorted(DRAFTERS))
@pytest.mark.parametrize("position", ["learned", "rope"])
def test_the_text_is_the_one_of_plain_decoding(name: str, position: str, sampling: dict[str, float]) -> None:
    model = sharp_model(std=0.25, position=position)
    params = SamplingParams(max_new_tokens=70, **sampling)
    prompts = [[1, 2, 3], [5], [7] * 16]
    assert tokens_of(model, prompts, params, DRAFTERS[name]) == tokens_of(model, prompts, params)


@every_sampling
@pytest.mark.parametrize("wrong_every", [0, 1, 2, 3, 7])
def test_the_text_is_the_same_however_often_a_draft_is_right(wrong_every: int, sampling: dict[str, float]) -> None:
    model = sharp_model(std=0.25)
    prompts, params = [[1, 2, 3], [5]], SamplingParams(max_new_tokens=60, **sampling)
    plain = tokens_of(model, prompts, SamplingParams(max_new_tokens=80, **sampling))
    texts = [[*prompt, *row] for prompt, row in zip(prompts, plain, strict=True)]
    found = tokens_of(model, prompts, params, lambda params: Oracle(texts, wrong_every))
    assert found == [row[:60] for row in plain]


def test_greedy_text_is_that_of_the_eager_reference_on_a_hundred_prompts() -> None:
    model, params = sharp_model(std=0.25), SamplingParams(max_new_tokens=40, temperature=0)
    prompts = [torch.randint(23, (int(torch.randint(1, 16, ())),)).tolist() for _ in range(100)]
    reference = StepDecoder(UncachedBackend(model), prompts, params, range(100))
    expected: list[list[int]] = [[] for _ in prompts]
    for _ in range(40):
        for row, sampled in reference.step().items():
            expected[row].append(sampled.id)
    for begin in range(0, 100, 20):
        assert tokens_of(model, prompts[begin : begin + 20], params, ngram_drafter) == expected[begin : begin + 20]


def test_samples_have_the_distribution_of_the_model() -> None:
    """Chi-square of 50,000 texts of two tokens against their probabilities, one by one."""
    model = sharp_model(std=0.3, vocab_size=4)
    params = SamplingParams(max_new_tokens=3, temperature=0.9)
    prompt, count = [1, 2], 50_000
    with torch.inference_mode():
        backend = UncachedBackend(model)

        def probabilities(context: list[int]) -> list[float]:
            return next_token_probabilities(backend.next_logits([context]), params)[0].tolist()

        expected = {
            (a, b, c): probabilities(prompt)[a] * probabilities([*prompt, a])[b] * probabilities([*prompt, a, b])[c]
            for a, b, c in itertools.product(range(4), repeat=3)
        }
    runtime = runtime_with(model, lambda params: Guesses([2, 0, 3]))
    found: Counter[tuple[int, ...]] = Counter()
    accepted = 0.0
    for begin in range(0, count, 500):
        decoder = runtime.decoder([prompt] * 500, params, range(begin, begin + 500))
        steps = [decoder.step() for _ in range(3)]
        found.update(tuple(step[row].id for step in steps) for row in range(500))
        accepted += decoder.acceptance or 0.0
    assert 0.05 < accepted / (count / 500) < 0.6  # or little was tested
    chi_square = sum((found[text] - count * p) ** 2 / (count * p) for text, p in expected.items())
    freedom = len(expected) - 1
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)


def test_right_drafts_save_passes_and_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model, params = sharp_model(block_size=200), SamplingParams(max_new_tokens=100, temperature=0)
    (text,) = tokens_of(model, [[1]], SamplingParams(max_new_tokens=120, temperature=0))
    oracle = Oracle([[1, *text]], 0)
    decoder = runtime_with(model, lambda params: oracle).decoder([[1]], params, [0])
    passes = _count(monkeypatch, decoder)
    assert [decoder.step()[0].id for _ in range(100)] == text[:100]
    assert decoder.acceptance == 1.0
    assert passes() < 100 / 5


def test_drafts_that_fall_end_speculation_and_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model, params = sharp_model(block_size=1100), SamplingParams(max_new_tokens=1000, temperature=0)
    (text,) = tokens_of(model, [[1]], params)
    decoder = runtime_with(model, lambda params: Oracle([[1, *text, *[0] * 10]], 1)).decoder([[1]], params, [0])
    passes = _count(monkeypatch, decoder)
    generate, now = decoder._backend.generate, [0.0]  # type: ignore[attr-defined]

    def watched(contexts: object, uniforms: torch.Tensor, *arguments: object) -> object:
        now[0] += uniforms.size(1)
        return generate(contexts, uniforms, *arguments)

    monkeypatch.setattr(decoder._backend, "generate", watched)  # type: ignore[attr-defined]
    # a clock on which a pass with drafts takes as long as two without
    monkeypatch.setattr("gpt.generation.speculative.time.perf_counter", lambda: now[0] + 2 * passes())
    assert [decoder.step()[0].id for _ in range(1000)] == text
    assert passes() == 3 * 5  # at once, and after 100 and 400 more tokens, until more than 4 tokens are lost
    assert decoder.acceptance == 0.0


def test_the_speed_without_drafts_is_that_of_many_tokens_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call costs as much as 30 tokens here, and drafts 2 a token: more than calls of 64, less than calls of 8."""
    monkeypatch.undo()
    model, params = sharp_model(block_size=1100), SamplingParams(max_new_tokens=1000, temperature=0)
    (text,) = tokens_of(model, [[1]], params)
    decoder = runtime_with(model, lambda params: Oracle([[1, *text, *[0] * 10]], 3)).decoder([[1]], params, [0])
    passes = _count(monkeypatch, decoder)
    generate, now = decoder._backend.generate, [0.0]  # type: ignore[attr-defined]

    def watched(contexts: object, uniforms: torch.Tensor, *arguments: object) -> object:
        now[0] += 30e-6 + 1e-6 * uniforms.size(1)
        return generate(contexts, uniforms, *arguments)

    monkeypatch.setattr(decoder._backend, "generate", watched)  # type: ignore[attr-defined]
    clock = "gpt.generation.speculative.time.perf_counter"
    monkeypatch.setattr(
        clock, lambda: now[0] + 6e-6 * passes()
    )  # 2 a token: more than in calls of 64, less than in calls of 8
    assert [decoder.step()[0].id for _ in range(1000)] == text
    assert 0 < passes() < 40


def _count(monkeypatch: pytest.MonkeyPatch, decoder: object) -> Callable[[], int]:
    """How often drafts were checked."""
    calls: list[None] = []
    backend = decoder._backend  # type: ignore[attr-defined]
    verify = backend.verify

    def watched(*arguments: object) -> object:
        calls.append(None)
        return verify(*arguments)

    monkeypatch.setattr(backend, "verify", watched)
    return lambda: len(calls)


def test_log_probabilities_are_those_of_plain_decoding() -> None:
    model, params = sharp_model(std=0.25), SamplingParams(max_new_tokens=30, logprobs=2)
    plain = runtime_with(model, None).decoder([[3, 1]], params, [5])
    drafted = runtime_with(model, DRAFTERS["model"]).decoder([[3, 1]], params, [5])
    for _ in range(30):
        one, other = plain.step()[0], drafted.step()[0]
        assert one.id == other.id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_rows_that_finish_leave_the_others_their_texts() -> None:
    model, params = sharp_model(std=0.25), SamplingParams(max_new_tokens=40)
    prompts = [[1, 2], [3], [4, 5, 6]]
    expected = tokens_of(model, prompts, params)
    decoder = runtime_with(model, DRAFTERS["model"]).decoder(prompts, params, range(3))
    rows: list[list[int]] = [[] for _ in prompts]
    for step in range(40):
        for row, sampled in decoder.step().items():
            rows[row].append(sampled.id)
        decoder.finish({10: {1}, 25: {0}}.get(step, set()))
    assert rows == [expected[0][:26], expected[1][:11], expected[2]]


def test_logits_that_are_not_finite_are_an_error_that_names_the_position() -> None:
    model = sharp_model()
    with torch.no_grad():
        model.wpe.weight[9] = math.nan  # type: ignore[index, union-attr]
    with pytest.raises(GenerationError, match="position 9 are not finite"):
        tokens_of(model, [[1, 2, 3]], SamplingParams(max_new_tokens=20), DRAFTERS["lookup"])


@pytest.mark.parametrize("make_drafter", [None, DRAFTERS["lookup"], DRAFTERS["model"]], ids=["none", "lookup", "model"])
def test_a_row_that_ends_before_its_logits_break_keeps_its_text(make_drafter: MakeDrafter | None) -> None:
    """However far ahead tokens are sampled, only those that are asked for count."""
    model = sharp_model(std=0.25)
    (expected,) = tokens_of(model, [[1, 2, 3]], SamplingParams(max_new_tokens=7, temperature=0))
    with torch.no_grad():
        model.wpe.weight[9] = math.nan  # type: ignore[index, union-attr]
    params = SamplingParams(max_new_tokens=20, temperature=0)
    decoder = runtime_with(model, make_drafter).decoder([[1, 2, 3]], params, [0])
    assert [decoder.step()[0].id for _ in range(7)] == expected
    with pytest.raises(GenerationError, match="position 9 are not finite"):
        decoder.step()


def test_drafts_of_a_damaged_model_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, small = sharp_model(std=0.25), sharp_model(n_layer=1)
    with torch.no_grad():
        small.wpe.weight[5] = math.nan  # type: ignore[index, union-attr]
    params = SamplingParams(max_new_tokens=40)
    make = partial(ModelDrafter, partial(runtime_with(small, None).backend, params))
    assert tokens_of(model, [[1, 2]], params, make) == tokens_of(model, [[1, 2]], params)


def test_rows_that_are_ahead_wait_and_none_goes_past_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model, params = sharp_model(block_size=200), SamplingParams(max_new_tokens=60, temperature=0)
    prompts = [[1], [2], [3]]
    plain = tokens_of(model, prompts, SamplingParams(max_new_tokens=80, temperature=0))
    texts = [[*prompt, *row] for prompt, row in zip(prompts, plain, strict=True)]

    class Uneven(Oracle):
        """Right about the first row, wrong about the others."""

        def draft(self, row: int, context: Sequence[int], uniforms: Sequence[float]) -> list[int]:
            true = super().draft(row, context, uniforms)
            return true if row == 0 else [(token + 1) % 23 for token in true]

    decoder = runtime_with(model, lambda params: Uneven(texts, 0)).decoder(prompts, params, range(3))
    sampled: list[list[int]] = [[] for _ in prompts]
    for count in range(1, 61):
        for row, token in decoder.step().items():
            sampled[row].append(token.id)
        lengths = [len(context) - 1 for context in decoder._sequences]  # type: ignore[attr-defined]
        assert max(lengths) <= min(60, count + speculative.MAX_DRAFTS)
    assert sampled == [row[:60] for row in plain]


def test_where_there_is_no_native_backend_it_goes_on_without_drafts_and_says_so() -> None:
    model, lines = sharp_model(), list[str]()
    runtime = build_runtime(model, DecodeOptions("eager"), report=lines.append, make_drafter=ngram_drafter)
    assert lines == ["decoding without speculation, which only the native backend can do; the text is the same"]
    assert runtime.decoder([[1]], SamplingParams(max_new_tokens=1), [1]).acceptance is None


# --- drafters ------------------------------------------------------------------------------------


def test_lookup_goes_on_as_the_text_did_after_the_same_words() -> None:
    drafter = LookupDrafter()
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    assert drafter.draft(0, text, [0.0] * 4) == [4, 5, 6, 7]
    text += [4, 5, 9, 9, 2, 3, 4]
    assert drafter.draft(0, text, [0.0] * 2) == [5, 9]  # of several places the latest
    assert drafter.draft(1, [1, 2, 3], [0.0] * 4) == []


def test_a_model_drafts_what_it_would_draw_by_the_same_numbers() -> None:
    params, prompt = SamplingParams(max_new_tokens=8, seed=3), [4, 2]
    (expected,) = tokens_of(sharp_model(n_layer=1, std=0.25), [prompt], params)
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.rand(8, generator=generator).tolist()
    assert model_drafter(params).draft(0, prompt, uniforms) == expected
