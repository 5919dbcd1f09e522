import io
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.conftest import Call, Refuse
from gpt.cli import sample
from gpt.cli.sample_writers import SEPARATOR
from gpt.generation.batch import TextBatch
from gpt.generation.sequence import TextChunk
from tiny import CORPUS

CHARS = sorted(set(CORPUS))
TEXT = "sample --prompt It --max-new-tokens"
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.native.build._LOADED", {})
    monkeypatch.setattr("gpt.native.build.find_compiler", lambda: None)


def test_seed_decides_the_text_and_is_said(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = (run(f"{TEXT} 40 --seed {seed}").out for seed in (7, 7, 8))
    assert first == again != other
    assert run(f"{TEXT} 40 --seed 7 --num-samples 2").out == first + SEPARATOR + other
    monkeypatch.setattr(sample, "randrange", lambda most: 8)
    _, out, err = run(f"{TEXT} 40")
    assert out == other
    assert "with --seed 8\n" in err
    greedy = run(f"{TEXT} 20 --greedy")
    assert "--seed" not in greedy.err
    assert greedy.out == run(f"{TEXT} 20 --seed 2 --temperature 0").out


def test_options_decide_what_is_sampled_and_not_how(run: Call) -> None:
    line = "sample --prompt 'It was' --max-new-tokens 60 --num-samples 2"
    plain = run(line).out
    for same in ("--backend eager", "--kv-dtype fp32"):
        assert run(f"{line} {same}").out == plain, same
    for other in ("--repetition-penalty 2", "--top-k 2", "--min-p 0.9"):
        assert run(f"{line} {other}").out != plain, other


def test_prompts_are_taken_as_they_are(
    own: Path, run: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From standard input and files, whose lines end only where they do; with the line ends of the
    corpus.
    """
    expected = run("sample --prompt 'The keeper' --max-new-tokens 9").out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The keeper")))
    assert run("sample --prompt - --max-new-tokens 9").out == expected
    Path("prompts.txt").write_bytes("\ufeffIt\u2028was\x0cthe\r\nTom\x85\n".encode())
    rows = run("sample --prompts-file prompts.txt --max-new-tokens 1 --unknown replace --json").rows
    assert [row["prompt"] for row in rows] == ["It\u2028was\x0cthe", "Tom\x85"]
    assert run("sample --json --max-new-tokens 1 --prompt", "It\r\nwas").json["prompt"] == "It\nwas"
    Path("prompt.txt").write_bytes(b"It\r\nwas")
    assert (
        "".join(
            char for char, _ in run("evaluate --text-file prompt.txt --per-char").json["per_char"]
        )
        == "t\nwas"
    )
    for form in ("", "--json"):
        line = f"sample --unknown replace --max-new-tokens 4 {form} --prompt"
        assert run(line, "It\udc80was").out == run(line, "It?was").out
    prompt = "every door had a key"
    cropped = run("sample --crop-prompt --max-new-tokens 9 --prompt", prompt).out
    assert cropped.startswith(prompt)
    assert cropped[20:] == run("sample --max-new-tokens 9 --prompt", prompt[-16:]).out[16:]


def test_texts_are_printed_whole_and_in_order(tmp_path: Path, run: Call) -> None:
    """Of several prompts, each with every seed; of rows that end at different times; of more than
    one group.
    """
    (tmp_path / "prompts.txt").write_text("It was\n\nTom\nseven keys\n", encoding="utf-8")
    together = run(
        f"sample --prompts-file {tmp_path}/prompts.txt --num-samples 2 --max-new-tokens 8 --seed 5"
    ).out
    alone = [
        run("sample --max-new-tokens 8 --prompt", prompt, "--seed", seed).out
        for prompt in ("It was", "Tom", "seven keys")
        for seed in "56"
    ]
    assert together == SEPARATOR.join(alone)
    together = run(f"{TEXT} 30 --stop e --stop a --seed 1 --num-samples 6").out
    alone = [run(f"{TEXT} 30 --stop e --stop a --seed {seed}").out for seed in range(1, 7)]
    assert len({len(text) for text in alone}) > 2
    assert together == SEPARATOR.join(alone)
    texts = (
        run(f"{TEXT} 3 --seed 1 --num-samples {sample.BATCH_SIZE + 2}")
        .out[:-1]
        .split("\n" + SEPARATOR)
    )
    assert len(texts) == sample.BATCH_SIZE + 2
    last = run(f"{TEXT} 3 --seed {1 + sample.BATCH_SIZE} --num-samples 2").out
    assert last == ("\n" + SEPARATOR).join(texts[-2:]) + "\n"


def test_json_has_an_object_a_text(run: Call) -> None:
    rows = run(f"{TEXT} 9 --seed 7 --num-samples 2 --json").rows
    texts = run(f"{TEXT} 9 --seed 7 --num-samples 2").out[:-1].split("\n" + SEPARATOR)
    assert rows == [
        {"prompt": "It", "text": text[2:], "seed": seed, "finish": "length", "tokens": 9}
        for seed, text in zip((7, 8), texts, strict=True)
    ]
    row = run(f"{TEXT} 60 --json --overflow stop").json
    assert (row["finish"], row["tokens"]) == ("window", 15)
    assert run(f"{TEXT} 60 --json --stop e --stop a --stop o").json["finish"] == "stop"
    row = run(f"{TEXT} 6 --json --logprobs 3 --greedy").json
    assert "".join(one["token"] for one in row["logprobs"]) == row["text"]
    for one in row["logprobs"]:
        assert len(one["top"]) == 3
        assert one["top"][0] == [one["token"], one["logprob"]]
        assert [value for _, value in one["top"]] == sorted(
            (value for _, value in one["top"]), reverse=True
        )


def test_token_of_a_byte_is_named_as_the_server_names_it(workplace: Path, run: Call) -> None:
    run("train --config tiny.yaml data.tokenizer=byte train.max_steps=3")
    (row,) = run("sample --prompt a --seed 1 --max-new-tokens 30 --json --logprobs 256").rows
    names = [chr(byte) if byte < 128 else f"bytes:\\x{byte:02x}" for byte in range(256)]
    assert [one["token"] for one in row["logprobs"]] == [
        names[one["id"]] for one in row["logprobs"]
    ]
    assert any(one["token"].startswith("bytes:") for one in row["logprobs"])
    assert sorted(name for name, _ in row["logprobs"][0]["top"]) == sorted(names)
    Path("text.txt").write_text("a\N{LATIN SMALL LETTER E WITH ACUTE}", encoding="utf-8")
    scored = run("evaluate --text-file text.txt --per-char").json["per_char"]
    assert [name for name, _ in scored] == ["bytes:\\xc3", "bytes:\\xa9"]


def test_beam_prints_the_hypotheses_best_first(tmp_path: Path, run: Call) -> None:
    rows = run(f"{TEXT} 5 --beam 3 --json").rows
    assert [set(row) for row in rows] == [{"prompt", "text", "logprob", "score"}] * 3
    assert all(
        len(row["text"]) == 5 and row["score"] == pytest.approx(row["logprob"] / 5) for row in rows
    )
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert run(f"{TEXT} 5 --beam 3").out == "".join(
        (
            f"It{row['text']}\n[log-probability {row['logprob']:.3f} nats, score "
            f"{row['score']:.4f}]\n\n"
        )
        for row in rows
    )
    (tmp_path / "prompts.txt").write_text("It\nTom\n", encoding="utf-8")
    rows = run(
        f"sample --prompts-file {tmp_path}/prompts.txt --beam 2 --json --max-new-tokens 3"
    ).rows
    assert [row["prompt"] for row in rows] == ["It", "It", "Tom", "Tom"]


def test_beam_finds_each_text_before_a_stop_once(workplace: Path, run: Call) -> None:
    run("train --config tiny.yaml data.tokenizer=bpe data.bpe_vocab_size=300 train.max_steps=3")
    texts = [
        row["text"]
        for row in run("sample --prompt the --max-new-tokens 1 --beam 300 --stop e --json").rows
    ]
    assert not any("e" in text for text in texts)
    for text in ("", " k"):  # of the tokens e, en and ep; ke, key, keep and keeper after a space
        assert texts.count(text) == 1


def test_words_are_sampled_as_tokens_and_unknown_ones_named(workplace: Path, run: Call) -> None:
    run("train --config tiny.yaml data.tokenizer=word data.word_vocab_size=20 train.max_steps=3")
    sampled = run("sample --prompt 'the zebra\n' --max-new-tokens 5")
    assert "warning: words outside the vocabulary are read as <unk>: zebra" in sampled.err
    assert sampled.out.startswith("the zebra\n")
    assert "read as <unk>" not in run("sample --prompt 'the ' --max-new-tokens 5").err
    assert "the  ␣" in run("explain lens --prompt 'the keeper the'").out  # not cut to ·
    split = run("evaluate --split val").json
    assert split["bits_per_char"] < split["loss"] / math.log(2)  # a word has several characters
    text = "hippopotamus the hippopotamus"
    Path("words.txt").write_text(text, encoding="utf-8")
    scored = run("evaluate --text-file words.txt").json
    # each character of an unknown word counts, and those of the first token do not
    bits = -scored["logprob"] / math.log(2) / len(" the hippopotamus")
    assert scored["bits_per_char"] == pytest.approx(bits)


def test_ids_without_a_token_are_neither_sampled_nor_listed(workplace: Path, run: Call) -> None:
    run(f"train --config tiny.yaml model.vocab_size={len(CHARS) + 300} train.max_steps=3")
    assert {row["text"] for row in run(f"{TEXT} 1 --json --beam {len(CHARS)}").rows} == set(CHARS)
    row = run(f"{TEXT} 1 --json --logprobs 1000").json
    assert sorted(token for token, _ in row["logprobs"][0]["top"]) == CHARS


def test_without_a_compiler_decoding_is_eager(no_compiler: None, run: Call, refuse: Refuse) -> None:
    expected = run("sample --backend eager --prompt It").out
    _, out, err = run("sample --prompt It")
    assert out == expected
    assert "no native backend, which is several times faster: no C++ compiler was found" in err
    assert "error: no native backend: no C++ compiler was found" in refuse(
        "sample --prompt It --backend native"
    )
    needs = refuse("sample --prompt It --backend native --kv-dtype fp16")
    assert "the native backend has no cache of fp16" in needs


Session = Callable[..., tuple[str, str]]
FIVE = "sample --max-new-tokens 5 --prompt"


@pytest.fixture
def session(run: Call, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Output and messages of an interactive session in which these lines are typed, at a terminal
    or not.
    """

    def session(typed: bytes, options: str = "", terminal: bool = False) -> tuple[str, str]:
        stdin = io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8")
        monkeypatch.setattr(stdin, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr("sys.stdin", stdin)
        _, out, err = run(
            f"sample --interactive --checkpoint runs/tiny --max-new-tokens 5 --seed 1337 {options}"
        )
        beginning = f"using runs/tiny/checkpoints/step-000006\n{sample.HELP}\n"
        assert err.startswith(beginning)
        return out, err.removeprefix(beginning)

    return session


def test_session_answers_each_prompt_as_its_options_say(session: Session, run: Call) -> None:
    prompts = (("It", "1337"), ("", "1338"), ("Tom", "1339"))
    assert session(b"It\n\nTom\n") == (
        "".join(run(FIVE, prompt, "--seed", seed).out for prompt, seed in prompts),
        "",
    )
    out, _ = session("a€b\n".encode(), "--backend eager --unknown drop --seed 3")
    assert out == "a€b" + run(FIVE, "ab", "--seed", "3").out[2:]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a€b¥".encode(), "'€' at 1, '¥' at 3"),
        (b"a" * 17, "17 tokens, more than the window of 16"),
        (b"It\xff", "'\ufffd' at 2"),
    ],
)
def test_session_goes_on_after_a_mistake(
    session: Session, run: Call, line: bytes, words: str
) -> None:
    out, err = session(line + b"\nIt\n")
    assert out == run(FIVE, "It").out
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_ctrl_c_in_a_text_ends_that_text_only(
    session: Session, run: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, other = (run(FIVE, "It", "--seed", seed).out for seed in ("1337", "1338"))
    stopped: list[bool] = []

    class InterruptedOnce(TextBatch):
        def __iter__(self) -> Iterator[TextChunk]:
            for count, piece in enumerate(super().__iter__()):
                if count == 3 and not stopped:
                    stopped.append(True)
                    signal.raise_signal(signal.SIGINT)
                yield piece

    monkeypatch.setattr("gpt.generation.batch.TextBatch", InterruptedOnce)
    assert session(b"It\nIt\n") == (whole[: len("It") + 3] + "\n" + other, "")


def test_draft_changes_no_character(run: Call, refuse: Refuse) -> None:
    line = "sample --prompt 'It was' --max-new-tokens 60 --seed 3"
    plain = run(line)
    drafted = run(f"{line} --draft tiny --stats")
    assert drafted.out == plain.out
    assert "draft: " in drafted.err
    assert "tokens a pass" in drafted.err
    assert "--draft: nowhere: no such run" in refuse(f"{line} --draft nowhere")
    assert "--draft has no effect with --beam" in refuse("sample --beam 2 --draft tiny")
