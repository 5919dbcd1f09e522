"""`scripts/sample.py --speculate`: drafts, with which the text is the same."""

import re
from pathlib import Path

import pytest
from native_support import needs_compiler

from cli.sampling import text_of
from gpt.cli import sample, train


@pytest.fixture(autouse=True)
def _in_trained_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


@needs_compiler
@pytest.mark.parametrize("source", ["ngram", "lookup", "runs/tiny"])
@pytest.mark.parametrize(
    "options", [["--greedy"], ["--num-samples", "3"], ["--top-k", "5", "--repetition-penalty", "1.3"]], ids=" ".join
)
def test_the_text_is_the_same_with_drafts(capsys: pytest.CaptureFixture[str], source: str, options: list[str]) -> None:
    common = ["--prompt", "It was", "--max-new-tokens", "60", *options]
    assert text_of(capsys, *common, "--speculate", source) == text_of(capsys, *common)


@pytest.mark.parametrize("source", ["ngram", "lookup", "runs/tiny"])
def test_without_a_compiler_it_goes_on_without_drafts_and_says_so(
    source: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["--prompt", "It was", "--max-new-tokens", "20", "--backend", "eager"]
    plain = text_of(capsys, *common)
    monkeypatch.setattr("gpt.kernels.build.find_compiler", lambda: None)
    assert sample.main(["--checkpoint", "runs/tiny", *common, "--speculate", source]) == 0
    written = capsys.readouterr()
    assert written.out == plain
    assert "decoding without speculation" in written.err


@needs_compiler
def test_stats_say_how_many_drafts_stood(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.generation.speculative.FIRST_PLAIN", 0)
    assert (
        sample.main(["--checkpoint", "runs/tiny", "--max-new-tokens", "30", "--stats", "--speculate", "runs/tiny"]) == 0
    )
    assert re.search(r"cache [\d,]+ bytes; 100% of drafts accepted\n$", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--speculate", "nowhere"], "nowhere"),
        (["--speculate", "ngram", "--beam", "2"], "--speculate has no effect with --beam"),
        (["--speculate", "runs/other"], "--speculate runs/other: its vocabulary differs from that of"),
        (["--speculate", "ngram", "--checkpoint", "runs/other"], "has no n-gram table"),
    ],
    ids=str,
)
def test_drafts_that_cannot_be_had_are_one_line(
    options: list[str],
    message: str,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tiny").symlink_to(trained / "runs" / "tiny")
    (tmp_path / "corpus.txt").write_text("quite another alphabet\n" * 40, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if "runs/other" in options:
        config = ["--config", str(trained / "tiny.yaml"), "run.name=other", "train.ngrams=false", "train.max_steps=3"]
        assert train.main(config) == 0
        capsys.readouterr()
    checkpoint = [] if "--checkpoint" in options else ["--checkpoint", "runs/tiny"]
    assert sample.main([*checkpoint, *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
