"""Questions and answers from the command line: trained on, evaluated, asked and talked with."""

import io
import json
from pathlib import Path

import pytest

import gpt
from cli.conftest import Call, Refuse
from gpt.config import SamplingParams
from gpt.config.sources import load_config
from gpt.data.bpe import BPETokenizer, learn_bpe
from gpt.data.pairs import ANSWER, TURN, Message
from gpt.data.tokenizers import CharTokenizer
from gpt.generation import conversation
from gpt.generation.conversation import encode_conversation
from gpt.system.errors import GenerationError

WORDS = ("red", "blue", "green", "white", "black", "brown", "pink", "gray")
PAIRS = [
    {"prompt": f"{first} {second}", "answer": second.upper()} for first in WORDS for second in WORDS
]
QUICK = "train.max_steps=4 train.eval_interval=2 model.n_layer=1 model.block_size=64"


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Call) -> Path:
    """The folder of a run on pairs.jsonl, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps(pair) for pair in PAIRS] * 4
    Path("pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    err = run(f"train pairs.jsonl {QUICK}").err
    assert err.count("questions and answers, of which the answers are learned") == 1
    return tmp_path


@pytest.mark.usefixtures("answers")
def test_pairs_are_recognized_evaluated_and_asked(
    run: Call, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(Path("runs/pairs/config.yaml")).config
    assert config.data.items == "pairs"
    assert config.sample.stop == (TURN,)
    assert config.sample.temperature == 0
    sample = Path("runs/pairs/samples/step-000004.txt").read_text()
    assert sample.partition("\n")[0] in {pair["prompt"] for pair in PAIRS}
    found = run("evaluate --checkpoint pairs").json
    assert found["answers"] == found["items"] > 0
    assert 0 <= found["exact_answers"] <= found["answers"]
    row = run("sample --checkpoint pairs --prompt 'red blue' --json").json
    assert row["prompt"] == "red blue"
    text = run("sample --checkpoint pairs --prompt 'red blue'").out
    assert text == f"red blue\n{row['text']}\n"
    asked = gpt.Run("pairs")
    assert asked.sample("red blue") + "\n" == text
    assert asked.ask("red blue") == row["text"]
    # A talk as in the terminal, whose second answer depends on the first question.
    history = [("red blue", row["text"])]
    monkeypatch.setattr("sys.stdin", io.StringIO("red blue\nblue red\n"))
    answers = run("chat --checkpoint pairs").out.splitlines()
    assert answers == [row["text"], asked.ask("blue red", history)]
    assert "ask one with --prompt" in refuse("sample --checkpoint pairs")
    assert "ask one with --prompt" in refuse("sample --checkpoint pairs --interactive")


@pytest.mark.usefixtures("answers")
def test_talk_is_answered_with_its_history(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def noted(tokenizer: object, messages: list[Message], *rest: object) -> list[int]:
        asked.append([message.role for message in messages])
        return encode_conversation(tokenizer, messages, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(conversation, "encode_conversation", noted)
    monkeypatch.setattr("sys.stdin", io.StringIO("red blue\ngreen pink\n\nred red\n"))
    assert len(run("chat --checkpoint pairs").out.splitlines()) == 3
    assert asked == [["user"], ["user", "assistant", "user"], ["user"]]


def test_run_on_running_text_does_not_chat(here: Path, refuse: Refuse) -> None:
    error = refuse("chat --checkpoint runs/tiny")
    assert "was not trained on questions and answers" in error


CHARS = CharTokenizer("abc\n\x1d\x1e\x1f")
PARAMS = SamplingParams(begin_id=CHARS.stoi["\x1e"])
TALK = [Message("user", "ab"), Message("assistant", "c"), Message("user", "ca")]


def text_of(messages: list[Message], block_size: int) -> str:
    return CHARS.decode(encode_conversation(CHARS, messages, PARAMS, block_size))


def test_conversation_is_read_as_in_training() -> None:
    assert text_of(TALK, 64) == "\x1eab\x1fc\x1dca\x1f"


def test_history_is_cut_from_its_oldest_turn() -> None:
    assert text_of(TALK, 10) == "\x1eca\x1f"


def test_message_of_the_system_stays_when_history_is_cut() -> None:
    talk = [Message("system", "cc"), *TALK]
    assert text_of(talk, 64) == "\x1ecc\n\nab\x1fc\x1dca\x1f"
    assert text_of(talk, 15) == "\x1ecc\n\nca\x1f"
    longer = [*talk, Message("assistant", "a"), Message("user", "b")]
    assert text_of(longer, 16) == "\x1ecc\n\nca\x1fa\x1db\x1f"


def test_message_of_the_system_that_fills_the_window_is_refused() -> None:
    alone = [Message("system", "a" * 7), Message("user", "b")]
    with pytest.raises(GenerationError, match="the message of the system has 10 tokens, and"):
        text_of(alone, 10)
    together = "the question with the message of the system has 12 tokens, more than"
    with pytest.raises(GenerationError, match=together):
        text_of(alone, 11)


def test_mark_after_a_question_is_a_token_of_its_own() -> None:
    content = learn_bpe([f"b?{ANSWER}" * 9], 258).to_dict()["tokenizer"]
    tokenizer = BPETokenizer(content)
    assert len(tokenizer.encode(f"?{ANSWER}")) == 1  # a pair that such a text has
    ids = encode_conversation(tokenizer, [Message("user", "a?")], SamplingParams(begin_id=30), 64)
    assert ids == [30, *tokenizer.encode("a?").tolist(), *tokenizer.encode(ANSWER).tolist()]


def test_question_that_no_window_holds_is_refused() -> None:
    with pytest.raises(GenerationError, match="the question has 11 tokens, more than the window"):
        text_of([Message("user", "a" * 9)], 10)


def test_conversation_ends_with_a_question() -> None:
    with pytest.raises(GenerationError, match="the last message must be the user's"):
        text_of(TALK[:2], 64)


@pytest.mark.usefixtures("answers")
def test_run_of_pairs_is_resumed_by_its_own_configuration(run: Call) -> None:
    run("train --resume pairs train.max_steps=6")
    assert load_config(Path("runs/pairs/config.yaml")).config.sample.stop == (TURN,)


@pytest.mark.usefixtures("answers")
def test_exported_run_of_pairs_answers_when_it_is_imported(
    run: Call, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("export --to hf --checkpoint pairs --output hf")
    err = run("import_model --from hf --input hf --output runs/back").err
    assert "it writes as the run on questions and answers that was exported" in err
    asked = "sample --prompt 'red blue' --checkpoint"
    assert run(f"{asked} back").out == run(f"{asked} pairs").out
    monkeypatch.setattr("sys.stdin", io.StringIO("red blue\n"))
    assert len(run("chat --checkpoint back").out.splitlines()) == 1
    error = refuse("evaluate --checkpoint back")
    assert "has no record of its training corpus; give a text with --text-file" in error


@pytest.mark.usefixtures("answers")
def test_answer_longer_than_the_window_is_refused_with_its_line(refuse: Refuse) -> None:
    lines = [json.dumps(pair) for pair in [*PAIRS * 2, {"prompt": "red", "answer": "GREEN " * 30}]]
    Path("long.jsonl").write_text("\n".join(lines), encoding="utf-8")
    error = refuse(f"train long.jsonl {QUICK}")
    problem = "line 129: the answer has 181 tokens, and model.block_size is 64; shorten it"
    assert f"long.jsonl, {problem}" in error
    assert not Path("runs/long").exists()
    # The recipe's own window is long enough for the answer above, and not for this one.
    lines[-1] = json.dumps({"prompt": "red", "answer": "GREEN " * 50})
    Path("longer.jsonl").write_text("\n".join(lines), encoding="utf-8")
    error = refuse("make_config longer.jsonl")
    assert "longer.jsonl, line 129: the answer has 301 tokens" in error
