"""What every view that reads a text, and the command itself, has in common."""

import io
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import Loaded
from gpt.cli.explain.text_options import memory_limit_bytes, read_edits
from gpt.errors import ConfigError

Refuse = Callable[..., str]
TEXT_VIEWS = ("attention", "lens", "surprisal")
every_text_view = pytest.mark.parametrize("view", TEXT_VIEWS)


@every_text_view
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", ""], "the prompt has 0 tokens"),
        (["--prompt", "It was the best of rooms"], "the prompt has 24 tokens, more than the window of 16"),
        (["--prompt", "It wäs"], "characters outside the vocabulary of 29: 'ä' at 4"),
        ([], "--prompt"),
        (["--prompt", "It", "--checkpoint", "runs/gone"], "runs/gone"),
        (["--prompt", "It", "--runs", "gone"], "no trained run below gone"),
        (["--prompt", "It", "--device", "quantum"], "device quantum"),
        (["--prompt", "It", "--json", "--markdown"], "--markdown"),
        (["--prompt", "It", "--jsn"], "--jsn"),
    ],
)
def test_a_mistake_gives_one_line(refuse: Refuse, view: str, options: list[str], words: str) -> None:
    assert words in refuse(view, *options)


@pytest.mark.parametrize("view", ["attention", "lens"])
@pytest.mark.parametrize("limit", ["0", "-1", "nan", "1e300", "much"])
def test_a_limit_that_is_none_gives_one_line(refuse: Refuse, view: str, limit: str) -> None:
    assert "--memory-limit" in refuse(view, "--prompt", "It", "--memory-limit", limit)


@pytest.mark.parametrize("view", ["attention", "lens"])
def test_too_much_memory_is_refused(refuse: Refuse, view: str) -> None:
    assert "more than the limit of 107" in refuse(view, "--prompt", "It was", "--memory-limit", "1e-7")


@every_text_view
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("blocks.0.attn.hook_zz=0", "unknown activation blocks.0.attn.hook_zz; did you mean blocks.0.attn.hook_z?"),
        ("blocks.0.attn.hook_z:2=0", "blocks.0.attn.hook_z has heads 0 to 1, not 2"),
        ("hook_embed:0=0", "hook_embed has no heads"),
        ("blocks.0.ln1.hook_scale=0", "can be read, but not edited"),
        ("blocks.0.attn.hook_z", "--edit blocks.0.attn.hook_z: expected NAME=FACTOR or NAME:HEAD=FACTOR"),
        ("blocks.0.attn.hook_z=", "expected NAME=FACTOR"),
        ("blocks.0.attn.hook_z=off", "expected NAME=FACTOR"),
        ("blocks.0.attn.hook_z=nan", "expected NAME=FACTOR"),
        ("blocks.0.attn.hook_z:=0", "expected NAME=FACTOR"),
        ("blocks.0.attn.hook_z:one=0", "expected NAME=FACTOR"),
        ("=0", "unknown activation"),
        ("", "expected NAME=FACTOR"),
    ],
)
def test_a_wrong_edit_gives_one_line(refuse: Refuse, view: str, edit: str, words: str) -> None:
    assert words in refuse(view, "--prompt", "It was", "--edit", edit)


@every_text_view
@pytest.mark.parametrize("options", [[], ["--json"], ["--html", "x.html"], ["--png", "x.png"]], ids=" ".join)
def test_an_edit_that_gives_no_numbers_gives_one_line(refuse: Refuse, view: str, options: list[str]) -> None:
    edit = ["--edit", "blocks.0.attn.hook_q=1e38", "--edit", "blocks.0.attn.hook_attn_scores=1e38"]
    assert "values that are not finite" in refuse(view, "--prompt", "It was", *edit, *options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["attention", "--layer", "0", "--memory-limit", "0"], "--memory-limit"),
        (["attention", "--edit", "x"], "--edit x"),
        (["lens", "--memory-limit", "0"], "--memory-limit"),
        (["lens", "--json", "--png", "x.png"], "--json prints"),
        (["surprisal", "--edit", "x"], "--edit x"),
    ],
    ids=str,
)
def test_what_needs_no_model_is_said_before_one_is_loaded(refuse: Refuse, options: list[str], words: str) -> None:
    assert words in refuse(*options, "--prompt", "It", "--runs", "gone")


def test_a_factor_of_zero_is_zeros() -> None:
    (edit,) = read_edits(Namespace(edit=["blocks.0.attn.hook_attn_scores=0"]))["blocks.0.attn.hook_attn_scores"]
    assert edit.change(torch.tensor([-torch.inf, 1.0])).tolist() == [0.0, 0.0]


def test_edits_are_factors_of_activations_or_heads() -> None:
    edits = read_edits(Namespace(edit=["blocks.0.attn.hook_z:1=0.5", "hook_embed=-2", "hook_embed=0"]))
    assert list(edits) == ["blocks.0.attn.hook_z", "hook_embed"]
    (one,), (whole, again) = edits.values()
    assert [edit.head for edit in (one, whole, again)] == [1, None, None]
    assert [edit.change(torch.tensor(3.0)).item() for edit in (one, whole, again)] == [1.5, -6.0, 0.0]
    assert read_edits(Namespace(edit=[])) == {}


@pytest.mark.parametrize(("gib", "expected"), [(4.0, 4 * 2**30), (0.5, 2**29)])
def test_the_limit_is_in_gib(gib: float, expected: int) -> None:
    assert memory_limit_bytes(Namespace(memory_limit=gib)) == expected
    with pytest.raises(ConfigError):
        memory_limit_bytes(Namespace(memory_limit=-gib))


@every_text_view
def test_standard_input_is_a_prompt(run: Any, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"It was")))
    read = json.loads(run(view, "--prompt", "-", "--json").out)
    assert read["labels"] == ["I", "t", "␣", "w", "a", "s"]
    assert read == json.loads(run(view, "--prompt", "It was", "--json").out)


@every_text_view
def test_the_source_is_the_checkpoint(run: Any, loaded: Loaded, trained: Path, view: str) -> None:
    for path in ("runs/tiny", "runs/tiny/last"):
        source = json.loads(run(view, "--prompt", "It", "--json", "--checkpoint", path).out)["source"]
        assert (trained / source).resolve() == loaded.folder.resolve()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "VIEW"),
        (["atention"], "invalid choice: 'atention'"),
        (["--prompt", "It"], "VIEW"),
        (["lens", "--prompt", "It", "x1"], "x1"),
    ],
    ids=str,
)
def test_an_unknown_view_gives_one_line(refuse: Refuse, options: list[str], words: str) -> None:
    assert words in refuse(*options)


@pytest.mark.parametrize("view", [None, "shapes", *TEXT_VIEWS])
def test_help_ends_with_an_example(run: Any, view: str | None) -> None:
    code, out, _ = run(*([view] if view else []), "--help")
    assert code == 0
    *_, heading, example = out.rstrip().splitlines()
    assert heading == "example:"
    assert example.startswith(f"  python scripts/explain.py {view or 'attention'} --")


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("attention", ["computing the attention weights of 6 tokens", "measuring the loss without each head"]),
        ("lens", ["computing the logit lens of 6 tokens"]),
        ("surprisal", ["computing the surprisal of 6 tokens"]),
        ("shapes", ["tracing the forward pass"]),
    ],
)
def test_what_takes_long_is_announced(run: Any, monkeypatch: pytest.MonkeyPatch, view: str, words: list[str]) -> None:
    @contextmanager
    def at_once(report: Callable[[str], None], line: str) -> Iterator[None]:
        report(line)
        yield

    monkeypatch.setattr(f"gpt.cli.explain.{view}.announced", at_once)
    assert run(view, "--prompt", "It was").err.splitlines() == words
