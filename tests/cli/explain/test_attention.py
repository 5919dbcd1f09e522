import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpt.checkpoint import Loaded
from gpt.inspection.tracing.edits import zero
from gpt.inspection.views.attention import ablate_heads, attention_patterns, summarize_head

PROMPT = "It was"
LABELS = ["I", "t", "␣", "w", "a", "s"]


@pytest.fixture
def patterns(loaded: Loaded) -> torch.Tensor:
    return attention_patterns(loaded.model, ids_of(loaded))


def ids_of(loaded: Loaded) -> torch.Tensor:
    return torch.tensor(loaded.tokenizer.encode(PROMPT).tolist())


def test_the_table_has_a_row_for_every_head(run: Any, loaded: Loaded, patterns: torch.Tensor) -> None:
    result = run("attention", "--prompt", PROMPT)
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines() if line.split()[:1] == ["0"]]
    changes = ablate_heads(loaded.model, ids_of(loaded))
    for head, row in enumerate(rows):
        summary = summarize_head(patterns[0, head])
        expected = [f"{value:.3f}" for value in vars(summary).values()]
        assert row == ["0", str(head), *expected, f"{changes[0, head]:+.4f}"]
    assert len(rows) == 2
    assert run("attention", "--prompt", PROMPT, "--layer", "0").out == result.out


@pytest.mark.parametrize("chosen", [[], [0], [0, 1]], ids=str)
def test_json_holds_the_weights(run: Any, patterns: torch.Tensor, chosen: list[int]) -> None:
    options = [part for pair in zip(("--layer", "--head"), map(str, chosen), strict=False) for part in pair]
    found = json.loads(run("attention", "--prompt", PROMPT, "--json", *options).out)
    assert found["labels"] == LABELS
    assert [found["layer"], found["head"]] == [*chosen, None, None][:2]
    torch.testing.assert_close(torch.tensor(found["weights"]), patterns[tuple(chosen)], rtol=0, atol=1e-6)


@pytest.mark.parametrize("chosen", [[], [0], [0, 1]], ids=str)
def test_json_holds_the_figures_of_the_heads_that_are_shown(
    run: Any, loaded: Loaded, patterns: torch.Tensor, chosen: list[int]
) -> None:
    options = [part for pair in zip(("--layer", "--head"), map(str, chosen), strict=False) for part in pair]
    heads = json.loads(run("attention", "--prompt", PROMPT, "--json", *options).out)["heads"]
    changes = ablate_heads(loaded.model, ids_of(loaded))
    shown = chosen[1:] or [0, 1]
    assert [(figures["layer"], figures["head"]) for figures in heads] == [(0, head) for head in shown]
    for figures, head in zip(heads, shown, strict=True):
        assert figures["without_it"] == pytest.approx(float(changes[0, head]), abs=1e-6)
        for name, value in vars(summarize_head(patterns[0, head])).items():
            assert figures[name] == pytest.approx(value)


def test_an_edit_changes_weights_and_figures(run: Any, loaded: Loaded) -> None:
    found = json.loads(run("attention", "--prompt", PROMPT, "--json", "--edit", "blocks.0.attn.hook_q:1=0").out)
    edits = {"blocks.0.attn.hook_q": zero(1)}
    weights, changes = (look(loaded.model, ids_of(loaded), edits) for look in (attention_patterns, ablate_heads))
    torch.testing.assert_close(torch.tensor(found["weights"]), weights, rtol=0, atol=1e-6)
    assert found["weights"][0][1][-1] == pytest.approx([1 / 6] * 6)  # no query, no preference
    assert [figures["without_it"] for figures in found["heads"]] == pytest.approx(changes[0].tolist())


def test_one_head_as_numbers(run: Any, patterns: torch.Tensor) -> None:
    out = run("attention", "--prompt", PROMPT, "--layer", "0", "--head", "1", "--numbers").out.splitlines()
    assert out[0].startswith("layer 0, head 1: rows: queries; columns: keys")
    for number, line in enumerate(out[3:]):
        weights = [f"{value:.3f}" for value in patterns[0, 1, number, : number + 1].tolist()]
        assert line.split() == [str(number), LABELS[number], *weights, *["."] * (5 - number)]
    assert len(out) == 3 + 6


@pytest.mark.parametrize("terminal", [False, True])
def test_one_head_as_shades(run: Any, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    out = run("attention", "--prompt", PROMPT, "--layer", "0", "--head", "0").out.splitlines()
    assert [line[0] for line in out[2:]] == LABELS
    assert ("\x1b[48;5;" in out[2]) is terminal
    assert ("██" in out[2]) is not terminal  # the first token looks at itself


def test_one_token_has_no_loss_to_change(run: Any) -> None:
    result = run("attention", "--prompt", "I")
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines() if line.split()[:1] == ["0"]]
    assert [row[-1] for row in rows] == ["-", "-"]
    heads = json.loads(run("attention", "--prompt", "I", "--json").out)["heads"]
    assert [figures["without_it"] for figures in heads] == [None, None]


def test_markdown_is_a_table(run: Any) -> None:
    lines = run("attention", "--prompt", PROMPT, "--markdown").out.splitlines()
    assert lines[0].startswith("## ")
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 2
    assert {line.count("|") for line in table} == {9}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layer", "1"], "--layer is 1, expected 0 (layers of the model)"),
        (["--layer", "-1"], "--layer is -1"),
        (["--layer", "0", "--head", "2"], "--head is 2, expected 0 to 1 (heads of a layer)"),
        (["--layer", "0", "--head", "-1"], "--head is -1"),
        (["--head", "0"], "--head needs --layer"),
        (["--numbers"], "--numbers prints one matrix; give --layer and --head"),
        (["--numbers", "--layer", "0"], "--numbers prints one matrix"),
        (["--layer", "one"], "--layer"),
        (["--layer", "0", "--head", "0", "--markdown"], "--markdown has no effect with --head"),
        (["--layer", "0", "--head", "0", "--numbers", "--json"], "--numbers has no effect with --json"),
        (["--layer", "0", "--head", "0", "--numbers", "--png", "x.png"], "--numbers has no effect with --png"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gives_one_line(refuse: Callable[..., str], options: list[str], words: str) -> None:
    assert words in refuse("attention", "--prompt", PROMPT, *options)
