"""The n-gram table against counting by hand."""

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.data import ngrams
from gpt.data.ngrams import MAX_CONTEXT, NgramTable


def learn(text: list[int], vocab_size: int = 5) -> NgramTable:
    return NgramTable.learn(np.array(text, dtype=np.uint16), vocab_size)


def token_after(table: NgramTable, context: list[int]) -> int | None:
    found = table.next(context)
    return None if found is None else found[0]


def by_counting(text: list[int], context: list[int], longest: int = MAX_CONTEXT) -> tuple[int, float] | None:
    """What followed the longest end of the context that has anything behind it, of equals the lowest; its share."""
    followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for length in range(1, longest + 1):
        for start in range(len(text) - length):
            followers[tuple(text[start : start + length])][text[start + length]] += 1
    for length in range(min(longest, len(context)), 0, -1):
        found = followers.get(tuple(context[-length:]))
        if found:
            best = min(found, key=lambda token: (-found[token], token))
            return best, found[best] / (found.total() + 1)
    return None


@given(st.lists(st.integers(0, 4), max_size=60), st.lists(st.integers(0, 4), max_size=12))
def test_the_table_gives_what_counting_gives(text: list[int], context: list[int]) -> None:
    table = learn(text)
    for asked in (context, text, text[: len(text) // 2]):
        expected = by_counting(text, asked)
        assert token_after(table, asked) == (None if expected is None else expected[0])


def test_shares_are_those_that_counting_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams, "MIN_CHANGE", 0.0)
    text = torch.randint(3, (500,)).tolist()
    table = learn(text, 3)
    for end in range(1, 500):
        found, expected = table.next(text[:end]), by_counting(text, text[:end])
        assert found is not None
        assert expected is not None
        assert found == (expected[0], pytest.approx(expected[1], abs=1 / 255))


def test_a_longer_context_that_is_surer_is_kept_and_one_that_changes_nothing_is_not() -> None:
    text = [0, 1, 0, 1, 2, 1, 2, 1, 0, 1, 0, 1] * 20 + [3, 1, 0] * 20
    table = learn(text)
    short, longer = table.next([1]), table.next([3, 1])
    assert short is not None
    assert longer is not None
    assert (short[0], longer[0]) == (0, 0)
    assert longer[1] > short[1] + ngrams.MIN_CHANGE
    assert [len(keys) for keys in learn([0, 1] * 50).keys] == [2] + [0] * (MAX_CONTEXT - 1)


def test_a_large_text_keeps_its_most_frequent_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams, "MAX_BYTES", 40 * ngrams.ENTRY_BYTES)
    text = ([0, 1, 2, 3] * 20 + torch.randint(5, (20,)).tolist()) * 10
    table = learn(text)
    tensors = table.to_tensors()
    assert sum(tensors[f"{n}.keys"].numel() for n in range(1, len(table.keys) + 1)) <= 40
    assert token_after(table, [0, 1, 2]) == 3


def test_contexts_of_a_large_vocabulary_are_shorter_so_that_their_numbers_fit() -> None:
    text = torch.randint(60_000, (2_000,)).tolist()
    table = NgramTable.learn(np.array(text * 2, dtype=np.uint16), 60_000)
    assert len(table.keys) == 2
    assert all(int(keys.max()) < 2**62 for keys in table.keys if len(keys))
    for end in range(1, 2_000, 97):
        expected = by_counting(text * 2, text[:end], longest=2)
        assert expected is not None
        assert token_after(table, text[:end]) == expected[0]


def test_a_table_comes_back_from_its_tensors() -> None:
    text = torch.randint(5, (200,)).tolist()
    table = learn(text)
    again = NgramTable.from_tensors(table.to_tensors())
    assert again.vocab_size == 5
    assert all(again.next(text[:end]) == table.next(text[:end]) for end in range(1, 200))
    with pytest.raises(KeyError):
        NgramTable.from_tensors({"vocab_size": torch.tensor(5), "2.keys": torch.zeros(1), "2.tokens": torch.zeros(1)})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("1.tokens", lambda column: column[:-1]),
        ("1.shares", lambda column: column[:-1]),
        ("1.tokens", lambda column: column.float()),
        ("1.tokens", lambda column: column + 5),
        ("1.tokens", lambda column: column - 5),
        ("1.keys", lambda column: column.unsqueeze(0)),
    ],
)
def test_columns_that_were_not_saved_so_are_refused(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = learn(torch.randint(5, (200,)).tolist()).to_tensors()
    with pytest.raises(ValueError, match=r"columns|token"):
        NgramTable.from_tensors({**tensors, name: change(tensors[name])})
