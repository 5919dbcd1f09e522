import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpt.checkpoint import Loaded
from gpt.config import SamplingParams
from gpt.evaluation.scoring import score_text
from gpt.inspection.tracing.edits import scale
from gpt.inspection.views.surprisal import surprisal, surprisal_view

PROMPT = "It was"
SETTINGS = {"temperature": 0.6, "top_k": 4, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3}
OPTIONS = [part for name, value in SETTINGS.items() for part in ("--" + name.replace("_", "-"), str(value))]


def ids_of(loaded: Loaded) -> torch.Tensor:
    return torch.tensor(loaded.tokenizer.encode(PROMPT).tolist())


def test_json_holds_the_view(run: Any, loaded: Loaded) -> None:
    found = json.loads(run("surprisal", "--prompt", PROMPT, "--json", "--top", "2", *OPTIONS).out)
    params = SamplingParams.model_validate(SETTINGS)
    expected = surprisal_view(loaded.model, loaded.tokenizer, ids_of(loaded), params, 2)
    assert found.pop("source")
    assert found == json.loads(json.dumps(expected))
    assert found["mean_bits"] == pytest.approx(score_text(loaded.model, loaded.tokenizer, PROMPT).bits_per_char)


def test_settings_that_are_not_given_are_those_of_the_run(run: Any, loaded: Loaded) -> None:
    found = json.loads(run("surprisal", "--prompt", PROMPT, "--json", "--top-k", "1").out)
    assert found["settings"] == f"temperature {loaded.config.sample.temperature:g}, top-k 1"
    assert [len(alternatives) for alternatives in found["after"]] == [0, 1, 1, 1, 1, 1]


def test_the_table_has_a_row_for_every_token(run: Any, loaded: Loaded) -> None:
    result = run("surprisal", "--prompt", PROMPT)
    assert result.code == 0
    computed = surprisal(loaded.model, ids_of(loaded))
    assert f"{computed.mean_bits:.4f} bits per token on average" in result.out.splitlines()[0]
    assert "without the edit" not in result.out
    rows = [line.split() for line in result.out.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert rows[0] == ["0", "I", "-"]
    for number, (row, bits, label) in enumerate(zip(rows[1:], computed.bits.tolist(), "t␣was", strict=True), 1):
        assert row[:4] == [str(number), label, f"{bits:.2f}", "█" * min(10, round(bits))]


def test_an_edit_is_told_with_the_plain_number(run: Any, loaded: Loaded) -> None:
    first = run("surprisal", "--prompt", PROMPT, "--edit", "blocks.0.hook_mlp_out=-9").out.splitlines()[0]
    edited = surprisal(loaded.model, ids_of(loaded), edits={"blocks.0.hook_mlp_out": scale(-9.0)}).mean_bits
    plain = surprisal(loaded.model, ids_of(loaded)).mean_bits
    assert first.endswith(f"{edited:.4f} bits per token on average; {plain:.4f} without the edit")
    assert f"{edited:.4f}" != f"{plain:.4f}"


def test_markdown_is_a_table(run: Any) -> None:
    lines = run("surprisal", "--prompt", PROMPT, "--markdown").out.splitlines()
    assert lines[0].startswith("## ")
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 6
    assert {line.count("|") for line in table} == {7}


def test_the_number_of_alternatives_is_that_of_the_lens(run: Any) -> None:
    """Five."""
    surprisal, lens = (json.loads(run(view, "--prompt", PROMPT, "--json").out) for view in ("surprisal", "lens"))
    assert len(surprisal["before"][1]) == len(lens["top"][0][0]) == 5


def test_the_help_has_a_line_for_every_setting(run: Any) -> None:
    lines = run("surprisal", "--help").out.splitlines()
    for name in SETTINGS:
        option = next(line for line in lines if line.startswith("  --" + name.replace("_", "-")))
        following = lines[lines.index(option) + 1]
        assert len(option.split()) > 2 or following.startswith("      "), name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", "I"], "this view needs at least 2 tokens"),
        (["--temperature", "-1"], "--temperature: got -1.0"),
        (["--temperature", "nan"], "--temperature: got nan"),
        (["--temperature", "hot"], "--temperature"),
        (["--top-k", "-1"], "--top-k: got -1"),
        (["--top-p", "0"], "--top-p: got 0.0"),
        (["--min-p", "2"], "--min-p: got 2.0"),
        (["--repetition-penalty", "0"], "--repetition-penalty: got 0.0"),
        (["--top", "0"], "--top is 0, expected at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gives_one_line(refuse: Callable[..., str], options: list[str], words: str) -> None:
    assert words in refuse("surprisal", "--prompt", PROMPT, *options)
