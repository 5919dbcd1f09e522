import math

import pytest
import torch
from generation.scripted import Scripted, ScriptedRuntime
from generation.support import LETTERS, Text, complete, rows_of
from hypothesis import given
from hypothesis import strategies as st

import gpt
from gpt.config import SamplingParams
from gpt.generation import Batch, TextBatch, generate_tokens
from gpt.generation.runtime import build_runtime
from gpt.model import GPT
from gpt.system.errors import GenerationError
from patience import examples
from tiny import sharp_model


def completions(
    prompts: list[str], seeds: list[int] | None = None, model: GPT | None = None, **params: object
) -> list[Text]:
    return complete(model or sharp_model(), prompts, SamplingParams(**params), seeds)


rows = st.lists(st.tuples(st.text("abcdefgh", max_size=14), st.integers(0, 5)), min_size=1, max_size=5)


@examples(0.25)
@given(rows=rows, stop=st.sampled_from([(), ("a", "d"), ("ef",)]), temperature=st.sampled_from([0.0, 0.7, 1.5]))
def test_a_row_is_what_it_is_alone_whatever_rows_are_beside_it(
    rows: list[tuple[str, int]], stop: tuple[str, ...], temperature: float
) -> None:
    model, params = sharp_model(), SamplingParams(max_new_tokens=8, stop=stop, temperature=temperature)
    prompts, seeds = zip(*rows, strict=True)
    together = complete(model, prompts, params, seeds)
    alone = [complete(model, [prompt], params, [seed])[0] for prompt, seed in rows]
    assert together == alone


def test_rows_take_their_seeds_or_that_of_the_parameters() -> None:
    one, same, other = completions(["abc"] * 3, seeds=[4, 4, 5], max_new_tokens=20)
    assert one == same
    assert one.text != other.text
    assert completions(["a", "b"], seed=9) == completions(["a", "b"], seeds=[9, 9], seed=1)


def test_a_batch_of_no_prompts_is_no_texts() -> None:
    assert completions([]) == []
    assert gpt.generate(sharp_model(), LETTERS, []) == []


def test_prompts_and_seeds_have_to_be_as_many() -> None:
    for seeds in ([1], []):
        with pytest.raises(GenerationError, match=f"^{len(seeds)} seeds for 2 prompts; give one each$"):
            completions(["a", "b"], seeds=seeds)


def test_every_row_ends_at_its_own_stop() -> None:
    free = completions(["a", "b", "c", "d"], seeds=[1, 2, 3, 4], max_new_tokens=12)
    stopped = completions(["a", "b", "c", "d"], seeds=[1, 2, 3, 4], max_new_tokens=12, stop=("e", "kj"))
    for whole, cut in zip(free, stopped, strict=True):
        places = [place for stop in ("e", "kj") if (place := whole.text.find(stop)) >= 0]
        assert cut.text == whole.text[: min(places, default=12)]
        assert cut.finish == ("stop" if places else "length")
    assert {row.finish for row in stopped} == {"stop", "length"}


def test_an_end_token_ends_a_row_and_is_not_shown() -> None:
    (free,) = completions(["a"], max_new_tokens=20, seed=3)
    end = free.tokens[6].id
    first = [one.id for one in free.tokens].index(end)
    (ended,) = completions(["a"], max_new_tokens=20, seed=3, end_id=end)
    assert (ended.finish, ended.text) == ("end", free.text[:first])
    assert [one.id for one in ended.tokens] == [one.id for one in free.tokens[: first + 1]]
    params = SamplingParams(max_new_tokens=20, seed=3, end_id=end)
    assert list(generate_tokens(sharp_model(), LETTERS.encode("a").tolist(), params))[-1] == end


def test_an_end_token_shows_what_was_held_back_for_a_stop() -> None:
    (free,) = completions(["a"], max_new_tokens=5, seed=3)
    *before, end = (one.id for one in free.tokens)
    assert end not in before
    (ended,) = completions(["a"], seed=3, end_id=end, stop=(free.text[3:] + "abc",))
    assert (ended.finish, ended.text) == ("end", free.text[:4])


def test_a_stop_at_the_last_token_is_a_stop() -> None:
    (free,) = completions(["a"], max_new_tokens=5, temperature=0.9)
    assert (free.finish, len(free.text), len(free.tokens)) == ("length", 5, 5)
    assert free.text[-1] not in free.text[:-1]
    (row,) = completions(["a"], max_new_tokens=5, temperature=0.9, stop=(free.text[-1],))
    assert (row.finish, row.text) == ("stop", free.text[:-1])


@pytest.mark.parametrize("prompt", ["a", "abcdefgh", "abcdefghijklmnop"])
def test_overflow_stop_ends_a_text_with_the_token_that_a_full_window_gives(prompt: str) -> None:
    (row,) = completions([prompt], max_new_tokens=50, overflow="stop")
    left = 17 - len(prompt)
    assert (row.finish, len(row.text)) == ("window", left)
    assert completions([prompt], max_new_tokens=left, overflow="stop")[0].finish == "length"
    assert completions([prompt], max_new_tokens=50)[0].text.startswith(row.text)
    params = SamplingParams(max_new_tokens=50, overflow="stop")
    assert len(list(generate_tokens(sharp_model(), [1] * len(prompt), params))) == left


def test_a_prompt_longer_than_the_window_is_refused_by_the_call_itself_or_cropped() -> None:
    with pytest.raises(GenerationError, match="20 tokens, more than the window of 16"):
        TextBatch(build_runtime(sharp_model()), LETTERS, ["a", "b" * 20], SamplingParams())
    long = "abcdefghijklmnopqrstuv"
    assert completions([long], long_prompt="crop")[0].tokens == completions([long[-16:]])[0].tokens


def test_every_piece_names_its_row_and_rows_come_in_turn() -> None:
    params = SamplingParams(max_new_tokens=3)
    pieces = list(TextBatch(build_runtime(sharp_model()), LETTERS, ["a", "b"], params, [1, 2]))
    assert [piece.row for piece in pieces] == [0, 1] * 3
    assert [piece.finish for piece in pieces] == [None] * 4 + ["length"] * 2
    none = TextBatch(build_runtime(sharp_model()), LETTERS, ["a", "b"], SamplingParams(max_new_tokens=0))
    assert list(none) == [(0, "", None, "length"), (1, "", None, "length")]


def test_logprobs_are_the_models_own_whatever_the_sampling() -> None:
    model, prompt = sharp_model(), LETTERS.encode("abc").tolist()
    params = {"max_new_tokens": 12, "temperature": 0.4, "top_k": 5, "repetition_penalty": 1.3}
    (row,) = completions(["abc"], model=model, logprobs=3, **params)
    ids = prompt + [one.id for one in row.tokens]
    with torch.no_grad():
        expected = model(torch.tensor([ids[:-1]]))[0, len(prompt) - 1 :].log_softmax(dim=-1)
    for one, logprobs in zip(row.tokens, expected, strict=True):
        best = logprobs.topk(3)
        assert one.logprob == pytest.approx(logprobs[one.id].item(), abs=1e-5)
        assert [index for index, _ in one.top] == best.indices.tolist()
        assert [value for _, value in one.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert row.text == completions(["abc"], model=model, **params)[0].text


@pytest.mark.parametrize("count", [None, 0, 1, 1000])
def test_alternatives_are_those_asked_for_sorted_and_at_most_the_whole_vocabulary(count: int | None) -> None:
    (row,) = completions(["a"], max_new_tokens=3, logprobs=count)
    for one in row.tokens:
        assert (one.logprob is None) is (count is None)
        values = [value for _, value in one.top]
        assert len(values) == min(count or 0, 23)
        assert values == sorted(values, reverse=True)
        if count == 1000:
            assert math.fsum(math.exp(value) for value in values) == pytest.approx(1, abs=1e-5)
            assert dict(one.top)[one.id] == one.logprob


def test_the_repetition_penalty_sees_the_prompt_and_the_text_so_far() -> None:
    runtime = ScriptedRuntime(Scripted(lambda _: [4.0, 3.0, 2.0, 1.0]))
    params = SamplingParams(temperature=0, repetition_penalty=1000.0)
    assert rows_of(Batch(runtime, [[0], [1, 2]], params, [1, 1]), 3) == [[1, 2, 3], [0, 3, 0]]


def test_rows_that_are_finished_leave_the_batch() -> None:
    """Each row repeats its prompt, but the second ends at once and the first after three tokens."""
    last = {0: [9.0, 0.0, 0.0, 0.0], 1: [0.0, 0.0, 0.0, 9.0], 2: [0.0, 0.0, 9.0, 0.0]}
    backend = Scripted(lambda tokens: last[1] if len(tokens) == 4 and tokens[0] == 0 else last[tokens[0]])
    params = SamplingParams(temperature=0, end_id=3, max_new_tokens=6)
    batch = Batch(ScriptedRuntime(backend), [[0], [1], [2]], params, [1, 1, 1])
    assert rows_of(batch, 6) == [[0, 0, 0, 3], [3], [2] * 6]
    assert batch.active == []
    assert backend.asked == [3, 2, 2, 2, 1, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_of_one_row_that_are_not_finite_are_an_error_that_names_its_position(value: float) -> None:
    backend = Scripted(lambda context: [0.0, value if len(context) == 5 else 0.0])
    batch = Batch(ScriptedRuntime(backend), [[0], [1, 1, 0, 1], [0, 1]], SamplingParams(), [1, 2, 3])
    batch.step()
    with pytest.raises(GenerationError, match="after position 4 are not finite"):
        batch.step()
    assert batch.step() == {}


def test_a_row_without_a_token_is_refused() -> None:
    with pytest.raises(GenerationError, match="at least one token"):
        Batch(build_runtime(sharp_model()), [[1, 2], []], SamplingParams(), [1, 1])
