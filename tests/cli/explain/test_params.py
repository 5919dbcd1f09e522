import json
from pathlib import Path
from typing import Any

import pytest

from gpt.checkpoint import load_trained
from gpt.cli import explain


def summary_of(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert explain.main(["params", *options, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_the_newest_run_is_counted(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import torch

    monkeypatch.chdir(trained)
    model = load_trained(None, Path("runs"), torch.device("cpu")).model
    summary = summary_of(capsys)
    assert summary["total"] == sum(parameter.numel() for parameter in model.parameters())
    assert [tensor["name"] for tensor in summary["tensors"]] == [name for name, _ in model.named_parameters()]
    assert summary_of(capsys, "--checkpoint", "runs/tiny")["total"] == summary["total"]


def test_a_published_model_has_its_published_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert summary_of(capsys, "--published", "llama-3-8b")["total"] == 8_030_261_248


def test_a_configuration_is_counted(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workplace / "byte.yaml").write_text(
        "data: {tokenizer: byte}\nmodel: {n_layer: 1, n_head: 1, n_embd: 8, block_size: 4}\n", encoding="utf-8"
    )
    summary = summary_of(capsys, "--config", "byte.yaml")
    assert summary["total"] == 256 * 8 + 4 * 8 + 4 * 64 + 2 * 8 * 32 + 3 * 8
    assert summary["tied"] is True


def test_the_table_says_what_is_tied_and_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(["params", "--published", "gpt2", "--tensors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gpt2, as published: 124,439,808 parameters"
    assert any(line.split()[:3] == ["head", "0", "(tied)"] for line in lines)
    assert any(line.split() == ["total", "124,439,808", "100.00", "%"] for line in lines)
    assert any(line.split() == ["h.11.mlp.c_fc.weight", "3,072", "x", "768", "2,359,296"] for line in lines)
    assert max(map(len, lines)) <= 100


def test_markdown_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(["params", "--published", "gpt2", "--markdown"]) == 0
    assert "| token embedding |  | 38,597,376 | 31.02 % |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--published", "gpt-2"], "no published configuration 'gpt-2'; did you mean gpt2"),
        (["--published", "gpt2", "--config", "a.yaml"], "--published and --config are two models"),
        (["--published", "gpt2", "--checkpoint", "runs"], "--published and --checkpoint are two models"),
        (["--config", "gone.yaml"], "gone.yaml"),
        (["--published", "gpt2", "--device", "quantum"], "device quantum: expected auto"),
    ],
)
def test_a_mistake_gives_one_line(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert explain.main(["params", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_json_and_markdown_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        explain.main(["params", "--json", "--markdown"])
    assert capsys.readouterr().err.count("\n") == 1
