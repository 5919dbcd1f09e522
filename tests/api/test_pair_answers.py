"""Answers that are right to the last character are counted, and no others."""

from pathlib import Path

import numpy as np
import torch

from gpt.api.pair_answers import count_exact
from gpt.checkpoint import Loaded
from gpt.config import Config
from gpt.data.dataset import Dataset
from gpt.data.items import ItemIds
from gpt.data.pairs import ANSWER, END_OF_TEXT, TURN
from gpt.data.tokenizers import CharTokenizer
from tiny import sharp_model

CHARS = CharTokenizer([*"abcd", END_OF_TEXT, ANSWER, TURN])
IDS = ItemIds(CHARS.stoi[END_OF_TEXT], CHARS.stoi[ANSWER], CHARS.stoi[TURN])
LETTERS = CHARS.encode("abcd").tolist()
MODEL = sharp_model(vocab_size=CHARS.vocab_size, block_size=32)


def own_answer(question: list[int]) -> list[int] | None:
    """Answer by plain forward passes; None if no mark ends the answer within the window."""
    ids = [IDS.end, *question, IDS.answer]  # type: ignore[list-item]  # pairs have all marks
    answer: list[int] = []
    while len(ids) < 30:
        with torch.no_grad():
            token = int(MODEL(torch.tensor([ids]))[0, -1].argmax())
        if token in (IDS.end, IDS.turn):
            return answer
        ids.append(token)
        answer.append(token)
    return None


def counted(pairs: list[tuple[list[int], list[int]]]) -> tuple[int, int]:
    tokens: list[int] = []
    for question, answer in pairs:
        tokens += [*question, IDS.answer, *answer, IDS.end]  # type: ignore[list-item]
    split = np.array(tokens, dtype=np.uint8)
    dataset = Dataset(split, split, CHARS, "fingerprint", items=IDS)
    sample = {"begin_id": IDS.end, "end_id": IDS.end, "stop": (TURN,)}
    config = Config.model_validate(
        {"model": MODEL.config.model_dump(), "data": {"items": "pairs"}, "sample": sample}
    )
    return count_exact(Loaded(MODEL, CHARS, config, Path("run"), {}), dataset, split)


def test_answers_of_the_model_itself_are_right_and_changed_ones_are_not() -> None:
    draw = np.random.default_rng(0)
    pairs: list[tuple[list[int], list[int]]] = []
    while len(pairs) < 80:  # more than a batch
        question = draw.choice(LETTERS, size=int(draw.integers(1, 9))).tolist()
        answer = own_answer(question)
        if answer:
            pairs.append((question, answer))
    assert counted(pairs) == (80, 80)
    pairs.sort(key=lambda pair: len(pair[1]), reverse=True)
    assert len(pairs[2][1]) > 4
    (first, answer), (second, longer), (third, shorter), *rest = pairs
    other = next(letter for letter in LETTERS if letter != answer[0])
    changed = [(first, [other, *answer[1:]])]
    changed.append((second, [*longer, LETTERS[0]]))  # goes on
    changed.append((third, shorter[:-1]))  # ends too early
    assert counted(changed + rest) == (77, 80)
