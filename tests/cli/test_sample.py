import io
from pathlib import Path

import pytest

from gpt.cli import sample


@pytest.fixture(autouse=True)
def _in_trained_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


def text_of(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert sample.main([*options]) == 0
    return capsys.readouterr().out


def test_the_newest_run_is_used_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert sample.main(["--prompt", "Who", "--max-new-tokens", "5"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Who")
    assert len(captured.out) == len("Who") + 5 + 1
    assert "runs/tiny/checkpoints" in captured.err


@pytest.mark.parametrize("path", ["runs/tiny", "runs/tiny/best", "runs/tiny/last", "runs/tiny/checkpoints/step-000003"])
def test_every_kind_of_path_is_understood(capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert text_of(capsys, "--checkpoint", path, "--max-new-tokens", "3").startswith("")


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
    monkeypatch.setattr("sys.stdin", io.StringIO("The keeper"))
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
        (["--prompt-file", "gone.txt"], "cannot read gone.txt"),
    ],
)
def test_a_mistake_gives_one_line(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert sample.main(options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
