"""`section.key=value` wherever `--config` is taken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VIEWS = ("shapes", "params", "flops", "memory")
GIVEN = {"flops": ["--bandwidth", "1", "--matmul-rate", "1"]}


SOURCES = {"file": ["--config", "tiny.yaml"], "published": ["--published", "gpt2"], "run": []}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
@pytest.mark.parametrize("view", VIEWS)
def test_an_override_changes_the_model_that_is_looked_at(view: str, source: list[str], run: Callable[..., Any]) -> None:
    """Wherever it stands between the options."""
    options = [*source, *GIVEN.get(view, []), "--json"]
    first, *others = overrides = ["model.n_head=1", "model.n_embd=48", "model.vocab_size=65"]
    plain, changed = run(view, *options), run(view, *options, *overrides)
    mixed = run(view, first, *options, *others)
    assert (plain.code, changed.code, mixed) == (0, 0, changed)
    before, after = json.loads(plain.out), json.loads(changed.out)
    assert after["source"].endswith(", with model.n_head=1 model.n_embd=48 model.vocab_size=65")
    assert {key for key in before if before[key] != after[key]} > {"source"}


def test_a_count_by_hand(run: Callable[..., Any]) -> None:
    code, out, _ = run("params", "--published", "gpt2", "model.n_layer=0", "--json")
    assert code == 2
    code, out, _ = run("params", "--published", "gpt2", "model.n_layer=1", "model.bias=false", "--json")
    assert json.loads(out)["total"] == (50257 + 1024) * 768 + 12 * 768**2 + 3 * 768


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.n_layr=3"], "command line: model.n_layr: unknown key; did you mean n_layer?"),
        (["nonsense"], "command line: 'nonsense' is not of the form section.key=value"),
        (["model.n_layer=3", "model.n_layer=4"], "command line: model.n_layer is given twice"),
        (["model.n_embd=2000000000", "model.n_head=1"], "of 8 EiB or more cannot be counted; lower its sizes"),
        (["model.n_layer=1000000000"], "a model of 1,000,000,000 blocks needs at least"),
    ],
)
def test_a_mistake_gives_one_line(view: str, overrides: list[str], words: str, refuse: Callable[..., str]) -> None:
    assert words in refuse(view, "--config", "tiny.yaml", *GIVEN.get(view, []), *overrides)


@pytest.mark.parametrize("view", ["attention", "lens", "surprisal", "walk"])
def test_a_view_of_weights_takes_no_override(view: str, refuse: Callable[..., str]) -> None:
    assert "unrecognized arguments: model.n_layer=3" in refuse(view, "--prompt", "It was", "model.n_layer=3")


def test_an_unknown_option_is_no_override(refuse: Callable[..., str]) -> None:
    assert "unrecognized arguments: --nope" in refuse("params", "--published", "gpt2", "--nope", "model.n_layer=3")


def test_the_help_says_so(run: Callable[..., Any]) -> None:
    for view in VIEWS:
        assert "section.key=value" in run(view, "--help").out


def test_flops_of_a_billion_tokens_are_counted_at_once(run: Callable[..., Any], trained: Path) -> None:
    options = ["flops", "--config", "tiny.yaml", "model.block_size=1000000000", *GIVEN["flops"], "--json"]
    code, out, _ = run(*options)
    assert code == 0
    assert json.loads(out)["generation"]["new_tokens"] == 500_000_000
