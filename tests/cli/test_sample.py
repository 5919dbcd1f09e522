import io
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from native_support import needs_compiler

from cli.conftest import Call
from gpt.cli import sample
from gpt.cli.sample_writers import SEPARATOR, TextWriter
from tiny import CORPUS

CHARS = sorted(set(CORPUS))
TEXT = "sample --prompt It --max-new-tokens"
pytestmark = pytest.mark.usefixtures("here")


def test_the_newest_run_is_used_and_named(run: Call) -> None:
    _, out, err = run("sample --prompt Who --max-new-tokens 5")
    assert out.startswith("Who")
    assert len(out) == len("Who") + 5 + 1
    assert "runs/tiny/checkpoints" in err
    for path in ("runs/tiny", "runs/tiny/best", "runs/tiny/last", "runs/tiny/checkpoints/step-000003"):
        assert len(run(f"sample --checkpoint {path} --max-new-tokens 3").out) == 3 + 1


def test_a_seed_decides_the_text_and_sample_i_has_seed_plus_i(run: Call) -> None:
    first, again, other = (run(f"{TEXT} 40 --seed {seed}").out for seed in (7, 7, 8))
    assert first == again != other
    assert run(f"{TEXT} 40 --seed 7 --num-samples 2").out == first + SEPARATOR + other
    assert run(f"{TEXT} 20 --seed 1 --greedy").out == run(f"{TEXT} 20 --seed 2 --temperature 0").out


def test_a_random_seed_is_said(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "randrange", lambda most: 8)
    assert "with --seed 8\n" in run(f"{TEXT} 40").err
    assert run(f"{TEXT} 40").out == run(f"{TEXT} 40 --seed 8").out
    assert "--seed" not in run(f"{TEXT} 40 --greedy").err


def test_the_prompt_comes_from_standard_input(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run("sample --prompt 'The keeper' --max-new-tokens 9").out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The keeper")))
    assert run("sample --prompt - --max-new-tokens 9").out == expected


def test_a_stop_text_ends_the_text_before_it(run: Call) -> None:
    whole = run(f"{TEXT} 60 --seed 3").out[len("It") : -1]
    stop = whole[20:22]
    assert run(f"{TEXT} 60 --seed 3 --stop", stop).out[len("It") : -1] == whole[: whole.index(stop)]


def test_unknown_characters_can_be_dropped(run: Call) -> None:
    plain = run("sample --prompt ab --max-new-tokens 9 --seed 4").out
    assert run("sample --prompt a€b --unknown drop --max-new-tokens 9 --seed 4").out[3:] == plain[2:]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_prompts_gives_one_line(tmp_path: Path, refuse: Any, content: str) -> None:
    (tmp_path / "prompts.txt").write_text(content)
    assert refuse(f"sample --prompts-file {tmp_path}/prompts.txt") == f"error: {tmp_path}/prompts.txt holds no prompt"


def test_texts_are_printed_whole_and_in_order(tmp_path: Path, run: Call) -> None:
    """Of several prompts, each with every seed; of rows that end at different times; of more than one group."""
    (tmp_path / "prompts.txt").write_text("It was\n\nTom\nseven keys\n", encoding="utf-8")
    together = run(f"sample --prompts-file {tmp_path}/prompts.txt --num-samples 2 --max-new-tokens 8 --seed 5").out
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
    texts = run(f"{TEXT} 3 --seed 1 --num-samples {sample.GROUP + 2}").out[:-1].split("\n" + SEPARATOR)
    assert len(texts) == sample.GROUP + 2
    last = run(f"{TEXT} 3 --seed {1 + sample.GROUP} --num-samples 2").out
    assert last == ("\n" + SEPARATOR).join(texts[-2:]) + "\n"


def test_json_gives_one_object_a_text_with_what_the_text_is(run: Call) -> None:
    rows = run(f"{TEXT} 9 --seed 7 --num-samples 2 --json").rows
    texts = run(f"{TEXT} 9 --seed 7 --num-samples 2").out[:-1].split("\n" + SEPARATOR)
    assert rows == [
        {"prompt": "It", "text": text[2:], "seed": seed, "finish": "length", "tokens": 9}
        for seed, text in zip((7, 8), texts, strict=True)
    ]


@pytest.mark.parametrize(
    ("options", "finish"), [("--stop e --stop a --stop o", "stop"), ("--overflow stop", "window"), ("", "length")]
)
def test_json_says_why_a_text_ended(run: Call, options: str, finish: str) -> None:
    row = run(f"{TEXT} 60 --json {options}").json
    assert row["finish"] == finish
    assert {"length": row["tokens"] == 60, "window": row["tokens"] == 15, "stop": row["tokens"] < 60}[finish]


def test_json_gives_log_probabilities_and_alternatives(run: Call) -> None:
    row = run(f"{TEXT} 6 --json --logprobs 3 --greedy").json
    assert "".join(one["token"] for one in row["logprobs"]) == row["text"]
    for one in row["logprobs"]:
        assert len(one["top"]) == 3
        assert one["top"][0] == [one["token"], one["logprob"]]
        assert [value for _, value in one["top"]] == sorted((value for _, value in one["top"]), reverse=True)
    row = run(f"{TEXT} 1 --json --logprobs 1000").json
    assert sorted(token for token, _ in row["logprobs"][0]["top"]) == CHARS
    assert math.fsum(math.exp(value) for _, value in row["logprobs"][0]["top"]) == pytest.approx(1, abs=1e-5)


def test_beam_prints_the_hypotheses_best_first(tmp_path: Path, run: Call) -> None:
    rows = run(f"{TEXT} 5 --beam 3 --json").rows
    assert [set(row) for row in rows] == [{"prompt", "text", "logprob", "score"}] * 3
    assert all(len(row["text"]) == 5 and row["score"] == pytest.approx(row["logprob"] / 5) for row in rows)
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert run(f"{TEXT} 5 --beam 3").out == "".join(
        f"It{row['text']}\n[log-probability {row['logprob']:.3f} nats, score {row['score']:.4f}]\n\n" for row in rows
    )
    (tmp_path / "prompts.txt").write_text("It\nTom\n", encoding="utf-8")
    beams = f"sample --prompts-file {tmp_path}/prompts.txt --beam 2 --json --max-new-tokens"
    assert [row["prompt"] for row in run(f"{beams} 3").rows] == ["It", "It", "Tom", "Tom"]
    assert run(f"{beams} 0").rows == [
        {"prompt": prompt, "text": "", "logprob": 0.0, "score": 0.0} for prompt in ("It", "Tom")
    ]


def test_a_beam_of_one_is_greedy_and_ends_before_its_stop_or_at_the_edge_of_the_window(run: Call) -> None:
    greedy = run(f"{TEXT} 30 --greedy --json").json["text"]
    whole, uncached = (run(f"{TEXT} 30 --beam 1 --json {more}").json for more in ("", "--backend eager"))
    assert whole["text"] == uncached["text"] == greedy
    stop = greedy[5:7]
    cut = run(f"{TEXT} 30 --beam 1 --json --stop", stop).json
    assert cut["text"] == greedy[: greedy.index(stop)]
    assert cut["logprob"] > whole["logprob"]
    text = run(f"{TEXT} 40 --beam 2 --overflow stop").out.split("\n[log-probability")[0]
    assert len(text) == 16 + 1  # the window, and the token that it gives


def test_ids_the_tokenizer_does_not_have_are_neither_sampled_nor_listed(workplace: Path, run: Call) -> None:
    run(f"train --config tiny.yaml model.vocab_size={len(CHARS) + 300} train.max_steps=3")
    assert {row["text"] for row in run(f"{TEXT} 1 --json --beam {len(CHARS)}").rows} == set(CHARS)
    row = run(f"{TEXT} 1 --json --logprobs 1000").json
    assert sorted(token for token, _ in row["logprobs"][0]["top"]) == CHARS


@pytest.mark.parametrize(
    ("options", "name"),
    [
        pytest.param("", "native, fp32 cache", marks=needs_compiler),
        ("--backend eager", "eager, fp32 cache"),
        pytest.param("--kv-dtype bf16", "native, bf16 cache", marks=needs_compiler),
        ("--kv-dtype fp16", "eager, fp16 cache"),
    ],
)
@pytest.mark.parametrize("tokens", [0, 9])
def test_stats_are_one_line_beside_the_text(run: Call, options: str, name: str, tokens: int) -> None:
    _, out, err = run(f"{TEXT} {tokens} --seed 1 --checkpoint runs/tiny --stats {options}")
    assert re.fullmatch(rf"{name}: {tokens} tokens, [\d,]+ tokens/s\n", err)
    assert len(out) == len("It") + tokens + 1


def test_how_it_is_computed_does_not_change_the_text_and_what_is_sampled_does(run: Call) -> None:
    line = "sample --prompt 'It was' --max-new-tokens 60 --num-samples 2 "
    plain = run(line).out
    for same in ("--backend eager", "--kv-dtype fp32"):
        assert run(line + same).out == plain, same
    line = "sample --prompt 'It was' --max-new-tokens 200 "
    plain = run(line).out
    for other in ("--repetition-penalty 2", "--top-k 2", "--min-p 0.9"):
        assert run(line + other).out != plain, other


def test_the_end_of_a_long_prompt_is_gone_on_from_where_that_is_asked_for(run: Call) -> None:
    prompt = "every door had a key"
    cropped = run("sample --crop-prompt --max-new-tokens 9 --prompt", prompt).out
    assert cropped.startswith(prompt)
    assert cropped[20:] == run("sample --max-new-tokens 9 --prompt", prompt[-16:]).out[16:]


def test_a_prompt_that_is_interrupted_does_not_leave_the_terminal_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(io.StringIO):
        def write(self, text: str) -> int:
            if text == "It was":
                raise SystemExit(143)
            return super().write(text)

    file = Stopped()
    file.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout", file)
    with pytest.raises(SystemExit):
        TextWriter(["It was"])
    assert file.getvalue() == "\033[1m\033[0m"


def test_the_prompt_is_bold_on_a_terminal_only(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run(f"{TEXT} 5").out
    assert "\033" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(f"{TEXT} 5").out == "\033[1mIt\033[0m" + plain[2:]
    assert (
        "\033[1ma\\x1b\\u202eb\033[0m" in run("sample --unknown drop --max-new-tokens 5 --prompt", "a\x1b\u202eb").out
    )
    assert "\033" not in run("sample --max-new-tokens 5").out + run(f"{TEXT} 5 --json").out


def test_without_a_compiler_decoding_goes_on_eagerly_and_says_so(
    run: Call, refuse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run("sample --backend eager --prompt It").out
    monkeypatch.setattr("gpt.kernels.build._LOADED", {})
    monkeypatch.setattr("gpt.kernels.build.find_compiler", lambda: None)
    _, out, err = run("sample --prompt It")
    assert out == expected
    assert "no native backend, which is several times faster: no C++ compiler was found" in err
    assert "error: no native backend: no C++ compiler was found" in refuse("sample --prompt It --backend native")
    needs = refuse("sample --prompt It --backend native --kv-dtype fp16")
    assert "the native backend has no cache of fp16" in needs


def test_prompts_are_split_at_line_ends_only(tmp_path: Path, run: Call) -> None:
    (tmp_path / "prompts.txt").write_bytes("\ufeffIt\u2028was\x0cthe\r\nTom\x85\n".encode())
    rows = run(f"sample --prompts-file {tmp_path}/prompts.txt --max-new-tokens 1 --unknown replace --json").rows
    assert [row["prompt"] for row in rows] == ["It\u2028was\x0cthe", "Tom\x85"]


def test_a_prompt_has_the_line_ends_of_the_corpus(workplace: Path, run: Call) -> None:
    run("train --config tiny.yaml train.max_steps=3")
    (workplace / "prompt.txt").write_bytes(b"It\r\nwas")
    assert run("sample --json --max-new-tokens 1 --prompt", "It\r\nwas").json["prompt"] == "It\nwas"
    assert "".join(char for char, _ in run("evaluate --text-file prompt.txt --per-char").json["per_char"]) == "t\nwas"


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_lone_surrogate_is_replaced(form: str, run: Call) -> None:
    line = f"sample --unknown replace --max-new-tokens 4 {form} --prompt"
    assert run(line, "It\udc80was").out == run(line, "It?was").out


def test_a_hundred_million_samples_are_made_as_they_are_printed(monkeypatch: pytest.MonkeyPatch, run: Call) -> None:
    """They are no list: the reader of the output may leave after the first."""

    def leave(*arguments: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("gpt.cli.sample_writers.TextWriter.take", leave)
    monkeypatch.setattr("gpt.cli.command._silence_output", lambda: None)
    assert run("sample --checkpoint runs/tiny --prompt It --num-samples 100000000").out == "It"


@needs_compiler
def test_the_text_is_the_same_with_drafts(run: Call) -> None:
    for options in ("--greedy", "--num-samples 3", "--top-k 5 --repetition-penalty 1.3"):
        line = f"sample --prompt 'It was' --max-new-tokens 60 {options}"
        assert run(f"{line} --speculate").out == run(line).out


@needs_compiler
def test_stats_say_how_many_drafts_stood(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.generation.speculative.FIRST_PLAIN", 0)
    said = run("sample --checkpoint runs/tiny --prompt 'It was, it was' --max-new-tokens 30 --stats --speculate").err
    assert re.search(r"tokens/s; \d+% of drafts accepted\n$", said)


def test_without_a_compiler_it_goes_on_without_drafts_and_says_so(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run(f"{TEXT} 20 --backend eager").out
    monkeypatch.setattr("gpt.kernels.build._LOADED", {})
    monkeypatch.setattr("gpt.kernels.build.find_compiler", lambda: None)
    _, out, err = run(f"{TEXT} 20 --backend eager --speculate")
    assert out == plain
    assert "decoding without speculation" in err
