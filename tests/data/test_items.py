"""Items of a text: how it is split, what its batches hold, and what is recognized as a list."""

import functools
import json
import operator
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from gpt.config import DataConfig
from gpt.data.dataset import Dataset
from gpt.data.item_batches import ItemSampler, item_batches
from gpt.data.items import ItemIds, item_spans
from gpt.data.pairs import MARKS
from gpt.data.preparation import prepare
from gpt.data.recognition import is_grouped, recognize_items
from gpt.data.tokens import IGNORE
from gpt.system.environment import Settings
from gpt.system.errors import DataError
from gpt.system.progress import silent

NAMES = [f"{first}{middle}{last}" for first in "BDKLMN" for middle in "aeiou" for last in "nrst"]
"""120 names of three letters."""
END = 0
OFFLINE = Settings(data_dir=None, cache_dir=Path("unused"), offline=True)
IDS = ItemIds(END)


def prepared(folder: Path, text: str, items: str = "lines", **changes: object) -> Dataset:
    file = folder / "list.txt"
    file.write_text(text, encoding="utf-8", newline="")
    values = {"source": "file", "path": str(file), "dir": str(folder), "items": items, **changes}
    return prepare(DataConfig.model_validate(values), OFFLINE, silent)


def texts_of(dataset: Dataset, split: str) -> list[str]:
    tokens = getattr(dataset, split)
    assert dataset.items is not None
    spans = item_spans(tokens, dataset.items.end)
    return [dataset.tokenizer.decode(tokens[begin : end - 1]) for begin, end in spans]


@pytest.mark.parametrize("tokenizer", ["char", "byte", "bpe"])
def test_splits_of_a_list_do_not_depend_on_its_order(tmp_path: Path, tokenizer: str) -> None:
    changes = {"tokenizer": tokenizer, "test_fraction": 0.2}
    if tokenizer == "bpe":
        changes["bpe_vocab_size"] = 300
    shuffled = random.Random(1).sample(NAMES, len(NAMES))
    one = prepared(tmp_path, "\n".join(sorted(NAMES)), **changes)
    other = prepared(tmp_path, "\n".join(shuffled), **changes)
    splits = {name: texts_of(one, name) for name in ("train", "val", "test")}
    assert splits == {name: texts_of(other, name) for name in splits}
    assert [len(texts) for texts in splits.values()] == [84, 12, 24]
    assert sorted(functools.reduce(operator.iadd, splits.values(), [])) == sorted(NAMES)


def test_duplicates_of_an_item_are_in_one_split(tmp_path: Path) -> None:
    lines = [name for name in NAMES for _ in range(5)]
    dataset = prepared(tmp_path, "\n".join(lines))
    train = texts_of(dataset, "train")
    val = texts_of(dataset, "val")
    assert not set(train) & set(val)
    assert Counter(train + val) == Counter(lines)


def test_items_have_no_line_ends_of_other_systems(tmp_path: Path) -> None:
    text = "\ufeff" + "\r\n".join(["", "  Ann", "", "Bob  ", "Cleo", ""])
    dataset = prepared(tmp_path, text)
    assert sorted(texts_of(dataset, "train") + texts_of(dataset, "val")) == ["  Ann", "Bob", "Cleo"]


def test_paragraphs_keep_the_line_ends_inside_them(tmp_path: Path) -> None:
    poems = [f"rose {number}\nviolet {number}" for number in range(10)]
    dataset = prepared(tmp_path, "\n \n\n".join(poems), "paragraphs")
    assert sorted(texts_of(dataset, "train") + texts_of(dataset, "val")) == poems


def test_list_of_one_item_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has 1 items with data\.items: lines; at least 2"):
        prepared(tmp_path, "Ann\n\n")


def test_list_of_one_item_many_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too many items are the same"):
        prepared(tmp_path, "Ann\nAnn\nAnn\n")


def test_mark_inside_an_item_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'\\x1e' \(record separator\) in line 2"):
        prepared(tmp_path, "Ann\nB\x1eob\nCleo\n")


def test_mark_is_refused_with_the_line_of_its_own_file(tmp_path: Path) -> None:
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "1.txt").write_text("Ann\nBob\n")
    (folder / "2.txt").write_text("Cleo\nD\x1fan\n")
    with pytest.raises(DataError) as caught:
        prepared(tmp_path, "", path=str(folder))
    place = "2.txt has the control character '\\x1f' (unit separator) in line 2"
    assert str(caught.value).startswith(str(folder / place))


@pytest.mark.parametrize(
    ("text", "fractions", "sizes"),
    [
        ("Ann\nBob\n", {"test_fraction": 0.4}, [1, 1, 0]),
        ("Ann\nBob\nCleo\n", {"val_fraction": 0.5, "test_fraction": 0.4}, [1, 1, 1]),
    ],
)
def test_short_list_leaves_an_item_for_training_and_validation(
    tmp_path: Path, text: str, fractions: dict[str, float], sizes: list[int]
) -> None:
    dataset = prepared(tmp_path, text, **fractions)
    test = [] if dataset.test is None else texts_of(dataset, "test")
    assert [len(texts_of(dataset, "train")), len(texts_of(dataset, "val")), len(test)] == sizes


def tokens_of(*items: list[int]) -> np.ndarray:
    return np.array([token for item in items for token in [*item, END]], dtype=np.uint8)


ITEMS = [[number] * (1 + number % 5) for number in range(1, 40)]
TOKENS = tokens_of(*ITEMS)


def items_in(inputs: torch.Tensor, targets: torch.Tensor) -> list[list[int]]:
    """Return the items that the targets of one row are, and check the inputs against them."""
    counted = targets[targets != IGNORE].tolist()
    assert targets[len(counted) :].unique().tolist() in ([], [IGNORE])
    assert inputs.tolist()[: len(counted)] == [END, *counted[:-1]]
    assert counted[-1] == END
    items: list[list[int]] = [[]]
    for token in counted:
        if token == END:
            items.append([])
        else:
            items[-1].append(token)
    return items[:-1]


def test_windows_of_an_epoch_hold_each_item_once_and_whole() -> None:
    sampler = ItemSampler(TOKENS, 12, 5, IDS)
    orders = []
    for epoch in range(3):
        found = []
        while sampler.epoch == epoch:
            inputs, targets = sampler.get_batch(1)
            assert inputs.shape == targets.shape == (1, 12)
            found += items_in(inputs[0], targets[0])
        assert sorted(found) == sorted(ITEMS)
        orders.append(found)
    assert orders[0] != orders[1] != orders[2]


def test_items_longer_than_a_window_are_cut_into_pieces() -> None:
    long = list(range(1, 30))
    sampler = ItemSampler(tokens_of(long, [40], [41]), 8, 5, IDS)
    found = []
    while sampler.epoch == 0:
        _, targets = sampler.get_batch(1)
        found += targets[targets != IGNORE].tolist()
    assert Counter(found) == Counter([*long, 40, 41, END, END, END])


def test_saved_state_of_a_list_continues_its_epoch() -> None:
    one = ItemSampler(TOKENS, 12, 5, IDS)
    for _ in range(7):
        one.get_batch(3)
    other = ItemSampler(TOKENS, 12, 9, IDS)
    other.load_state_dict(one.state_dict())
    for _ in range(10):
        assert torch.equal(torch.stack(one.get_batch(3)), torch.stack(other.get_batch(3)))


def test_state_of_running_text_does_not_continue_a_list() -> None:
    with pytest.raises(ValueError, match=r"a different data\.items"):
        ItemSampler(TOKENS, 12, 5, IDS).load_state_dict({"seed": 1, "epoch": 0, "position": 0})


def test_processes_read_their_rows_of_the_same_batch() -> None:
    whole = ItemSampler(TOKENS, 12, 5, IDS).get_batch(4)
    part = ItemSampler(TOKENS, 12, 5, IDS).get_batch(4, rows=torch.tensor([1, 3]))
    assert torch.equal(part[0], whole[0][[1, 3]])
    assert torch.equal(part[1], whole[1][[1, 3]])


def test_evaluation_predicts_each_item_from_its_own_beginning() -> None:
    found = []
    for inputs, targets in item_batches(TOKENS, 16, 4, IDS):
        for row in range(len(inputs)):
            found += items_in(inputs[row], targets[row])
    assert sorted(found) == sorted(ITEMS)


def test_loss_of_answers_counts_them_and_their_ends() -> None:
    ids = ItemIds(end=0, answer=1, turn=2)
    conversation = np.array([7, 8, 1, 5, 6, 2, 9, 1, 4, 0])
    expected = [token in (5, 6, 2, 4, 0) for token in conversation.tolist()]
    assert ids.counted(conversation).tolist() == expected


VERSE = "\n".join(f"and then the {number} of us went down to the sea" for number in range(500))

RESTS = [first + second for first in "伟芳娜秀敏" for second in "明丽强磊军"]
CHINESE_NAMES = [first + rest for first in "王李张刘陈" for rest in RESTS]
SPEECHES = ["a line of verse\n" * (number % 7) + "and the last" for number in range(200)]
"""Texts of one to seven lines."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n".join(NAMES), "lines"),
        ("\n".join(NAMES[:90]), "none"),
        ("the same line again\n" * 2000, "none"),
        ("\n\n".join(NAMES), "none"),  # one line each: paragraphs of prose look so too
        (VERSE, "none"),
        ("\n".join(f"山川异域风月同天第{number}句" for number in range(200)), "none"),
        ("\n".join(CHINESE_NAMES), "lines"),
        ("\n".join(sorted(VERSE.split("\n"))), "lines"),
        ("\n\n".join(["an old pond\na frog jumps in\nsound of water"] * 120), "paragraphs"),
        ("\n\n".join(SPEECHES), "none"),
    ],
)
def test_recognized_items(text: str, expected: str) -> None:
    assert recognize_items(text) == expected


@pytest.mark.parametrize("is_sorted", [True, False])
def test_sorted_text_is_found_by_the_beginnings_of_its_lines(
    tmp_path: Path, is_sorted: bool
) -> None:
    lines = [f"{name} and {other}" for name in NAMES for other in NAMES[:20]]
    order = sorted(lines) if is_sorted else random.Random(1).sample(lines, len(lines))
    assert is_grouped(prepared(tmp_path, "\n".join(order), "none")) == is_sorted


def test_batches_of_pairs_learn_answers_only() -> None:
    ids = ItemIds(end=0, answer=1, turn=2)
    pair = [7, 8, 1, 5, 6]
    batches = item_batches(tokens_of(pair, [9, 1, 3]), 16, 4, ids)
    found = [targets[targets != IGNORE].tolist() for _, targets in batches]
    assert found == [[3, END, 5, 6, END]]
    sampler = ItemSampler(tokens_of(pair), 16, 5, ids)
    inputs, targets = sampler.get_batch(1)
    assert inputs[0, :6].tolist() == [END, *pair]
    assert targets[0, :6].tolist() == [IGNORE, IGNORE, IGNORE, 5, 6, END]


def test_question_longer_than_the_window_is_cut_at_its_beginning() -> None:
    ids = ItemIds(end=0, answer=1, turn=2)
    tokens = tokens_of([*range(10, 30), 1, 5, 6])
    _, targets = ItemSampler(tokens, 8, 5, ids).get_batch(1)
    assert targets[0].tolist() == [*[IGNORE] * 5, 5, 6, END]


@pytest.mark.parametrize("num_cut", range(5, 10))
def test_answers_count_after_a_conversation_was_cut_within_one(num_cut: int) -> None:
    """Its first question is cut off, and the last answer is still learned."""
    ids = ItemIds(end=0, answer=1, turn=2)
    conversation = np.array([8, 8, 8, 8, 1, 5, 5, 5, 5, 2, 8, 1, 6, 6, 0])
    is_counted = [False] * 5 + [True] * 5 + [False] * 2 + [True] * 3
    assert ids.counted(conversation).tolist() == is_counted
    expected = [False] * (10 - num_cut) + [False, False, True, True, True]
    assert ids.counted(conversation[num_cut:]).tolist() == expected


def test_byte_pairs_are_learned_without_marks(tmp_path: Path) -> None:
    lines = [f'{{"prompt": "is it {name}?", "answer": "it is."}}' for name in NAMES]
    changes = {"tokenizer": "bpe", "bpe_vocab_size": 300}
    tokenizer = prepared(tmp_path, "\n".join(lines), "pairs", **changes).tokenizer
    tokens = [tokenizer.token_bytes(index).decode("latin-1") for index in range(300)]
    assert "is" in tokens
    assert [token for token in tokens if len(token) > 1 and set(token) & set(MARKS)] == []


def test_each_answer_of_a_conversation_has_to_fit_the_window_alone(tmp_path: Path) -> None:
    turns = [
        {"role": role, "content": text}
        for role, text in [("user", "who?"), ("assistant", "x" * 20)] * 3
    ]
    pairs = "\n".join(
        json.dumps({"messages": [*turns, {"role": "user", "content": name}, turns[1]]})
        for name in NAMES
    )
    dataset = prepared(tmp_path, pairs, "pairs")
    dataset.check_length(22)
    with pytest.raises(DataError, match=r"21 tokens, and model\.block_size is 21"):
        dataset.check_length(21)
