import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from native_support import needs_compiler

from cli.sampling import text_of
from gpt.cli import evaluate, sample, train
from gpt.cli.sample_writers import SEPARATOR, TextWriter
from tiny import CORPUS

CHARS = sorted(set(CORPUS))


@pytest.fixture(autouse=True)
def _in_trained_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


def objects_of(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text_of(capsys, "--json", *options).split("\n")[:-1]]


def test_the_newest_run_is_used_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert sample.main(["--prompt", "Who", "--max-new-tokens", "5"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Who")
    assert len(captured.out) == len("Who") + 5 + 1
    assert "runs/tiny/checkpoints" in captured.err


@pytest.mark.parametrize("path", ["runs/tiny", "runs/tiny/best", "runs/tiny/last", "runs/tiny/checkpoints/step-000003"])
def test_every_kind_of_path_is_understood(capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert len(text_of(capsys, "--checkpoint", path, "--max-new-tokens", "3")) == 3 + 1


def test_the_same_seed_gives_the_same_text_and_another_gives_another(capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (
        text_of(capsys, "--prompt", "It", "--seed", seed, "--max-new-tokens", "40") for seed in ("7", "7", "8")
    )
    assert first == again
    assert first != other


def test_sample_i_is_the_text_of_seed_plus_i(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "It", "--max-new-tokens", "20"]
    both = text_of(capsys, *options, "--seed", "7", "--num-samples", "2")
    second = text_of(capsys, *options, "--seed", "8")
    assert both.count("It") >= 2
    assert both.endswith(second)


def test_greedy_is_temperature_zero(capsys: pytest.CaptureFixture[str]) -> None:
    greedy = text_of(capsys, "--greedy", "--prompt", "a", "--max-new-tokens", "20", "--seed", "1")
    assert greedy == text_of(capsys, "--temperature", "0", "--prompt", "a", "--max-new-tokens", "20", "--seed", "2")


def test_the_prompt_comes_from_a_file_or_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("The keeper", encoding="utf-8")
    expected = text_of(capsys, "--prompt", "The keeper", "--max-new-tokens", "9")
    assert text_of(capsys, "--prompt-file", str(tmp_path / "prompt.txt"), "--max-new-tokens", "9") == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The keeper")))
    assert text_of(capsys, "--prompt", "-", "--max-new-tokens", "9") == expected


def test_a_stop_text_ends_the_text_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "It", "--seed", "3", "--max-new-tokens", "60"]
    whole = text_of(capsys, *options)[len("It") : -1]
    stop = whole[20:22]
    assert text_of(capsys, *options, "--stop", stop)[len("It") : -1] == whole[: whole.index(stop)]


def test_unknown_characters_are_listed_before_anything_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert sample.main(["--prompt", "a€b¥"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "'€' at 1, '¥' at 3" in captured.err


def test_unknown_characters_can_be_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--max-new-tokens", "9", "--seed", "4"]
    plain = text_of(capsys, "--prompt", "ab", *options)
    assert text_of(capsys, "--prompt", "a€b", "--unknown", "drop", *options)[3:] == plain[2:]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "-1"], "--temperature: got -1.0"),
        (["--temperature", "nan"], "--temperature: got nan"),
        (["--top-p", "0"], "--top-p: got 0.0, expected greater than 0"),
        (["--top-p", "1.5"], "--top-p: got 1.5, expected less than or equal to 1"),
        (["--top-k", "-3"], "--top-k: got -3"),
        (["--min-p", "2"], "--min-p: got 2.0"),
        (["--num-samples", "0"], "--num-samples is 0"),
        (["--stop", ""], "--stop"),
        (["--max-new-tokens", "-1"], "--max-new-tokens: got -1"),
        (["--greedy", "--temperature", "0.5"], "--greedy is temperature 0"),
        (["--checkpoint", "nowhere"], "nowhere: no such run or checkpoint"),
        (["--runs", "nowhere"], "no trained run below nowhere"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--device", "gpu"], "gpu"),
        (["--device", "cuda:99999999999"], "device cuda:99999999999: expected auto, cpu, cuda, cuda:N or mps"),
        (["--seed", "1" + "0" * 22], "--seed: got 1" + "0" * 22),
        (["--max-new-tokens", "1" + "0" * 22], "--max-new-tokens: got 1" + "0" * 22),
        (["--prompt-file", "gone.txt"], "cannot read gone.txt"),
        (["--prompt-file", "."], "cannot read ."),
        (["--prompts-file", "gone.txt"], "cannot read gone.txt"),
        (["--output", "nowhere/out.txt", "--checkpoint", "runs/tiny"], "cannot write nowhere/out.txt"),
        (["--output", ".", "--checkpoint", "runs/tiny"], "cannot write ."),
        (["--beam", "0"], "--beam is 0, expected at least 1"),
        (["--length-penalty", "-1"], "--length-penalty is -1, expected at least 0"),
        (["--length-penalty", "nan"], "--length-penalty is nan"),
        (["--length-penalty", "inf"], "--length-penalty is inf"),
        (["--prefill-chunk", "0"], "--prefill-chunk is 0, expected at least 1"),
        (
            ["--prefill-chunk", "1" + "0" * 20],
            f"--prefill-chunk is 1{'0' * 20}, expected",
        ),
        (["--slide-chunk", "0"], "--slide-chunk: got 0, expected greater than or equal to 1"),
        (["--repetition-penalty", "0"], "--repetition-penalty: got 0.0, expected greater than 0"),
        (["--repetition-penalty", "nan"], "--repetition-penalty: got nan"),
        (["--logprobs", "-1"], "--logprobs: got -1"),
        (["--seed", "-1"], "--seed: got -1"),
        (["--seed", str(2**32)], "--seed: got 4294967296"),
        (
            ["--seed", str(2**32 - 1), "--num-samples", "2", "--checkpoint", "runs/tiny"],
            "--seed is 4294967295, and sample i has this + i",
        ),
        (["--refuse-empty", "--checkpoint", "runs/tiny"], "the prompt is empty"),
        (["--prompt", "a" * 17, "--checkpoint", "runs/tiny"], "17 tokens, more than the window of 16"),
        (["--prompt", "a" * 17, "--beam", "2", "--checkpoint", "runs/tiny"], "17 tokens, more than the window of 16"),
    ],
)
def test_a_mistake_gives_one_line(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert sample.main(options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


@pytest.mark.parametrize(
    "options",
    [
        ["--kv-dtype", "float"],
        ["--overflow", "end"],
        ["--unknown", "skip"],
        ["--beam", "two"],
        ["--logprobs", "1.5"],
        ["--prompt", "a", "--prompts-file", "b"],
        ["--prompt", "a", "--interactive"],
        ["--num-sample", "2"],
    ],
    ids=" ".join,
)
def test_options_the_parser_does_not_understand_exit_with_2(
    capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        sample.main(options)
    assert caught.value.code == 2
    assert options[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "holds no prompt"), (b"\n\n", "holds no prompt"), (b"ab\xff", "not UTF-8 text (byte 2)")],
)
def test_a_file_without_prompts_gives_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    (tmp_path / "prompts.txt").write_bytes(content)
    assert sample.main(["--prompts-file", str(tmp_path / "prompts.txt")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: {tmp_path / 'prompts.txt'} {'is ' if 'UTF' in words else ''}{words}\n"


def test_standard_input_that_is_not_text_gives_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc\xff"), encoding="utf-8"))
    assert sample.main(["--prompt", "-"]) == 2
    assert capsys.readouterr().err == "error: standard input is not UTF-8 text (byte 3)\n"


def test_prompts_of_a_file_are_gone_on_from_in_order_each_with_every_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("It was\n\nTom\nseven keys\n", encoding="utf-8")
    options = ["--max-new-tokens", "8", "--seed", "5"]
    together = text_of(capsys, "--prompts-file", str(tmp_path / "prompts.txt"), "--num-samples", "2", *options)
    alone = [
        text_of(capsys, "--prompt", prompt, *options[:-1], seed)
        for prompt in ("It was", "Tom", "seven keys")
        for seed in ("5", "6")
    ]
    assert together == SEPARATOR.join(alone)


def test_more_samples_than_a_group_holds_are_printed_as_one_list(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "It", "--max-new-tokens", "3"]
    texts = text_of(capsys, *options, "--seed", "1", "--num-samples", str(sample.GROUP + 2))[:-1].split(
        "\n" + SEPARATOR
    )
    assert len(texts) == sample.GROUP + 2
    last = text_of(capsys, *options, "--seed", str(1 + sample.GROUP), "--num-samples", "2")
    assert last == ("\n" + SEPARATOR).join(texts[-2:]) + "\n"


def test_rows_that_end_at_different_times_are_printed_whole_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "It", "--max-new-tokens", "30", "--stop", "e", "--stop", "a"]
    together = text_of(capsys, *options, "--seed", "1", "--num-samples", "6")
    alone = [text_of(capsys, *options, "--seed", str(seed)) for seed in range(1, 7)]
    assert len({len(text) for text in alone}) > 2
    assert together == SEPARATOR.join(alone)


def test_json_gives_one_object_a_text_with_what_the_text_is(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "It", "--max-new-tokens", "9", "--seed", "7"]
    rows = objects_of(capsys, *options, "--num-samples", "2")
    texts = text_of(capsys, *options, "--num-samples", "2")[:-1].split("\n" + SEPARATOR)
    assert rows == [
        {"prompt": "It", "text": text[2:], "seed": seed, "finish": "length", "tokens": 9}
        for seed, text in zip((7, 8), texts, strict=True)
    ]


@pytest.mark.parametrize(
    ("options", "finish"),
    [(["--stop", "e", "--stop", "a", "--stop", "o"], "stop"), (["--overflow", "stop"], "window"), ([], "length")],
)
def test_json_says_why_a_text_ended(capsys: pytest.CaptureFixture[str], options: list[str], finish: str) -> None:
    (row,) = objects_of(capsys, "--prompt", "It", "--max-new-tokens", "60", *options)
    assert row["finish"] == finish
    assert {"length": row["tokens"] == 60, "window": row["tokens"] == 15, "stop": row["tokens"] < 60}[finish]


def test_json_gives_log_probabilities_and_alternatives(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = objects_of(capsys, "--prompt", "It", "--max-new-tokens", "6", "--logprobs", "3", "--greedy")
    assert "".join(one["token"] for one in row["logprobs"]) == row["text"]
    for one in row["logprobs"]:
        assert len(one["top"]) == 3
        assert one["top"][0] == [one["token"], one["logprob"]]
        assert [value for _, value in one["top"]] == sorted((value for _, value in one["top"]), reverse=True)
    (row,) = objects_of(capsys, "--prompt", "It", "--max-new-tokens", "1", "--logprobs", "1000")
    assert sorted(token for token, _ in row["logprobs"][0]["top"]) == CHARS
    assert math.fsum(math.exp(value) for _, value in row["logprobs"][0]["top"]) == pytest.approx(1, abs=1e-5)


def test_output_goes_to_a_file_and_messages_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, path = ["--prompt", "It", "--max-new-tokens", "9", "--num-samples", "2"], tmp_path / "out.txt"
    expected = text_of(capsys, *options)
    assert sample.main([*options, "--stats", "--output", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == expected
    assert capsys.readouterr().out == ""


def test_beam_prints_the_hypotheses_best_first(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "It", "--beam", "3", "--max-new-tokens", "5"]
    rows = objects_of(capsys, *options)
    assert [set(row) for row in rows] == [{"prompt", "text", "logprob", "score"}] * 3
    assert all(len(row["text"]) == 5 and row["score"] == pytest.approx(row["logprob"] / 5) for row in rows)
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    assert text_of(capsys, *options) == "".join(
        f"It{row['text']}\n[log-probability {row['logprob']:.3f} nats, score {row['score']:.4f}]\n\n" for row in rows
    )


def test_a_beam_of_one_is_greedy_with_and_without_a_cache(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "It", "--max-new-tokens", "30"]
    (greedy,) = objects_of(capsys, *options, "--greedy")
    for more in ([], ["--no-cache"]):
        (found,) = objects_of(capsys, *options, "--beam", "1", *more)
        assert found["text"] == greedy["text"]


def test_beam_ends_a_text_before_its_stop(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prompt", "It", "--beam", "1", "--max-new-tokens", "12"]
    (whole,) = objects_of(capsys, *options)
    stop = whole["text"][5:7]
    (cut,) = objects_of(capsys, *options, "--stop", stop)
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert cut["logprob"] > whole["logprob"]


def test_beam_takes_several_prompts_and_no_new_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.txt").write_text("It\nTom\n", encoding="utf-8")
    options = ["--prompts-file", str(tmp_path / "prompts.txt"), "--beam", "2", "--max-new-tokens"]
    assert [row["prompt"] for row in objects_of(capsys, *options, "3")] == ["It", "It", "Tom", "Tom"]
    assert objects_of(capsys, *options, "0") == [
        {"prompt": prompt, "text": "", "logprob": 0.0, "score": 0.0} for prompt in ("It", "Tom")
    ]


def test_ids_the_tokenizer_does_not_have_are_neither_sampled_nor_listed(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--config", "tiny.yaml", f"model.vocab_size={len(CHARS) + 300}", "train.max_steps=3"]) == 0
    capsys.readouterr()
    rows = objects_of(capsys, "--prompt", "It", "--beam", str(len(CHARS)), "--max-new-tokens", "1")
    assert {row["text"] for row in rows} == set(CHARS)
    (row,) = objects_of(capsys, "--prompt", "It", "--max-new-tokens", "1", "--logprobs", "1000")
    assert sorted(token for token, _ in row["logprobs"][0]["top"]) == CHARS


@pytest.mark.parametrize(
    ("options", "name", "size"),
    [
        pytest.param([], "native, fp32 cache", r"[\d,]+", marks=needs_compiler),
        (["--backend", "eager"], "eager, fp32 cache", "2,048"),
        pytest.param(["--kv-dtype", "bf16"], "native, bf16 cache", r"[\d,]+", marks=needs_compiler),
        (["--kv-dtype", "fp16"], "eager, fp16 cache", "1,024"),
        (["--kv-dtype", "int8", "--backend", "eager"], "eager, int8 cache", "640"),
        (["--no-cache"], "eager, no cache", "0"),
    ],
    ids=str,
)
def test_stats_are_one_line_beside_the_text(
    capsys: pytest.CaptureFixture[str], options: list[str], name: str, size: str
) -> None:
    assert (
        sample.main(["--checkpoint", "runs/tiny", "--prompt", "It", "--max-new-tokens", "9", "--stats", *options]) == 0
    )
    captured = capsys.readouterr()
    assert re.fullmatch(
        rf"{name}: 9 tokens; first after [\d.]+ ms, then [\d,]+ tokens/s; cache {size} bytes\n", captured.err
    )
    assert len(captured.out) == len("It") + 9 + 1


def test_stats_of_no_tokens_are_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert sample.main(["--checkpoint", "runs/tiny", "--max-new-tokens", "0", "--stats"]) == 0
    expected = r"(native|eager), fp32 cache: 0 tokens; first after [\d.]+ ms, then 0 tokens/s; cache 0 bytes\n"
    assert re.fullmatch(expected, capsys.readouterr().err)


@pytest.mark.parametrize(
    "options",
    [
        ["--backend", "eager"],
        ["--no-cache"],
        ["--kv-dtype", "fp32"],
        ["--prefill-chunk", "1"],
        ["--prefill-chunk", "99"],
    ],
    ids=" ".join,
)
def test_how_it_is_computed_does_not_change_the_text(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    common = ["--prompt", "It was", "--max-new-tokens", "60", "--num-samples", "2"]
    assert text_of(capsys, *common, *options) == text_of(capsys, *common)


@pytest.mark.parametrize(
    "options",
    [["--slide-chunk", "16"], ["--repetition-penalty", "2"], ["--top-k", "2"], ["--min-p", "0.9"]],
    ids=" ".join,
)
def test_what_is_sampled_does_change_the_text(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    common = ["--prompt", "It was", "--max-new-tokens", "200"]
    assert text_of(capsys, *common, *options) != text_of(capsys, *common)


def test_the_end_of_a_long_prompt_is_gone_on_from_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--max-new-tokens", "9"]
    cropped = text_of(capsys, "--prompt", "every door had a key", "--crop-prompt", *options)
    assert cropped.startswith("every door had a key")
    assert cropped[20:] == text_of(capsys, "--prompt", "every door had a key"[-16:], *options)[16:]


def test_nothing_but_text_is_written_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\033" not in text_of(capsys, "--prompt", "It", "--max-new-tokens", "5")


def test_a_prompt_that_is_interrupted_does_not_leave_the_terminal_bold() -> None:
    class Stopped(io.StringIO):
        def write(self, text: str) -> int:
            if text == "It was":
                raise SystemExit(143)
            return super().write(text)

    file = Stopped()
    file.isatty = lambda: True  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        TextWriter(["It was"], file)
    assert file.getvalue() == "\033[1m\033[0m"


def test_the_prompt_is_bold_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--prompt", "It", "--max-new-tokens", "5"]
    plain = text_of(capsys, *options)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert text_of(capsys, *options) == "\033[1mIt\033[0m" + plain[2:]
    assert "\033" not in text_of(capsys, "--max-new-tokens", "5")
    assert "\033" not in text_of(capsys, *options, "--json")
    text_of(capsys, *options, "--output", str(tmp_path / "out.txt"))
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == plain


@pytest.mark.parametrize(
    "options",
    [
        ["--interactive", "--json"],
        ["--interactive", "--num-samples", "2"],
        ["--interactive", "--beam", "2"],
        ["--beam", "2", "--stats"],
        ["--beam", "2", "--num-samples", "2"],
        ["--logprobs", "2"],
        ["--logprobs", "0"],
        ["--no-cache", "--kv-dtype", "int8"],
        ["--no-cache", "--prefill-chunk", "3"],
        ["--length-penalty", "2"],
        ["--beam", "2", "--temperature", "0.5"],
    ],
)
def test_an_option_that_would_be_ignored_is_refused(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    assert sample.main(options) == 2
    assert "has no effect with" in capsys.readouterr().err


def test_a_wrong_prompt_leaves_the_output_file_alone(tmp_path: Path) -> None:
    output, prompts = tmp_path / "out.txt", tmp_path / "prompts.txt"
    output.write_text("kept", encoding="utf-8")
    prompts.write_text("It\na€\n", encoding="utf-8")
    assert sample.main(["--prompts-file", str(prompts), "--output", str(output)]) == 2
    assert output.read_text(encoding="utf-8") == "kept"


def test_beam_search_ends_at_the_edge_of_the_window_where_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = text_of(capsys, "--prompt", "It", "--beam", "2", "--max-new-tokens", "40", "--overflow", "stop")
    first = text.split("\n[log-probability")[0]
    assert len(first) == 16 + 1  # the window, and the token that it gives


def test_without_a_compiler_decoding_goes_on_eagerly_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = text_of(capsys, "--backend", "eager", "--prompt", "It")
    monkeypatch.setattr("gpt.kernels.build.find_compiler", lambda: None)
    assert sample.main(["--prompt", "It"]) == 0
    captured = capsys.readouterr()
    assert captured.out == expected
    assert "no native backend, which is several times faster: no C++ compiler was found" in captured.err
    assert sample.main(["--prompt", "It", "--backend", "native"]) == 2
    assert "error: no native backend: no C++ compiler was found" in capsys.readouterr().err
    assert sample.main(["--prompt", "It", "--backend", "native", "--kv-dtype", "fp16"]) == 2
    assert "the native backend needs a cache of fp32, bf16 or int8" in capsys.readouterr().err


def test_prompts_are_split_at_line_ends_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.txt").write_bytes("\ufeffIt\u2028was\x0cthe\r\nTom\x85\n".encode())
    options = ["--prompts-file", str(tmp_path / "prompts.txt"), "--max-new-tokens", "1", "--unknown", "replace"]
    assert [row["prompt"] for row in objects_of(capsys, *options)] == ["It\u2028was\x0cthe", "Tom\x85"]


@pytest.mark.parametrize(("newlines", "kept"), [("keep", "It\r\nwas"), ("lf", "It\nwas"), ("strict", "It\nwas")])
def test_a_prompt_has_the_line_ends_of_the_corpus(
    newlines: str, kept: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = "\n" if newlines == "strict" else "\r\n"
    (workplace / "corpus.txt").write_bytes((CORPUS * 30).replace("\n", end).encode())
    assert train.main(["--config", "tiny.yaml", f"data.newlines={newlines}", "train.max_steps=3"]) == 0
    (workplace / "prompt.txt").write_bytes(b"It\r\nwas")
    capsys.readouterr()
    for options in (["--prompt-file", "prompt.txt"], ["--prompt", "It\r\nwas"]):
        (row,) = objects_of(capsys, *options, "--max-new-tokens", "1")
        assert row["prompt"] == kept
    assert evaluate.main(["--text-file", "prompt.txt", "--per-char"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert "".join(char for char, _ in summary["per_char"]) == kept[1:]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_lone_surrogate_is_replaced_in_a_file_too(
    form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--prompt", "It\udc80was", "--unknown", "replace", "--max-new-tokens", "4", *form]
    expected = text_of(capsys, *options[:1], "It?was", *options[2:])
    assert sample.main([*options, "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected


def test_a_hundred_million_samples_begin_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Enough(Exception):
        pass

    begun = []

    def begin(*arguments: Any) -> None:
        begun.append(arguments)
        raise Enough

    monkeypatch.setattr("gpt.generation.TextBatch", begin)
    with pytest.raises(Enough):
        sample.main(["--checkpoint", "runs/tiny", "--num-samples", "100000000"])
    assert len(begun) == 1
