import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpt.accounting.flops import decode_flops, forward_flops
from gpt.checkpoint import Loaded
from gpt.config import load_config
from gpt.model import GPT

REFERENCE = str(Path(__file__).resolve().parents[3] / "configs" / "reference_shapes.yaml")
PROMPT = "It was"


def shapes(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    return {row["name"]: row["shape"] for row in rows}


def test_a_configuration_is_traced_without_weights(run: Any) -> None:
    found = json.loads(run("shapes", "--config", REFERENCE, "--json").out)
    assert (found["source"], found["batch"], found["seq"]) == (REFERENCE, 1, 7)
    rows = {row["name"]: row for row in found["forward_pass"]}
    assert next(iter(rows)) == "idx"
    assert list(rows)[-1] == "lm_head.linear"
    kept = ("symbols", "shape", "dtype", "nbytes", "flops", "layer")
    assert [rows["h.1.attn.c_q.linear"][key] for key in kept] == ["B T C", [1, 7, 64], "float32", 1792, 57_344, 1]
    assert [rows["h.0.attn.core.softmax"][key] for key in kept] == ["B H T S", [1, 4, 7, 7], "float32", 784, 0, 0]
    assert [rows["idx"][key] for key in kept] == ["B T", [1, 7], "int64", 56, 0, None]
    assert rows["h.0.mlp.c_fc.linear"]["parameters"] == [
        {"name": "h.0.mlp.c_fc.weight.T", "symbols": "C F", "shape": [64, 256]},
        {"name": "h.0.mlp.c_fc.bias", "symbols": "F", "shape": [256]},
    ]


def test_a_published_model_is_traced(run: Any) -> None:
    found = json.loads(run("shapes", "--published", "gpt2", "--seq", "3", "--json").out)
    assert (found["source"], found["seq"]) == ("gpt2, as published", 3)
    assert found["forward_pass"][-1]["shape"] == [1, 3, 50257]


def test_a_prompt_is_traced_through_a_trained_model(run: Any, loaded: Loaded) -> None:
    found = json.loads(run("shapes", "--prompt", PROMPT, "--json").out)
    config, rows = loaded.config.model, shapes(found["forward_pass"])
    assert (found["source"], found["batch"], found["seq"]) == (str(loaded.folder.relative_to(Path.cwd())), 1, 6)
    assert rows["idx"] == [1, 6]
    assert rows["h.0.attn.core.softmax"] == [1, config.n_head, 6, 6]
    assert rows["lm_head.linear"] == [1, 6, config.vocab_size]


def test_a_cached_pass_has_two_parts(run: Any, loaded: Loaded) -> None:
    found = json.loads(run("shapes", "--prompt", PROMPT, "--cached", "--json").out)
    config = loaded.config.model
    for rows, queries, keys in ((found["prefill"], 5, 5), (found["decode_step"], 1, 6)):
        assert shapes(rows)["h.0.attn.core.softmax"] == [1, config.n_head, queries, keys]
        assert shapes(rows)["lm_head.linear"] == [1, queries, config.vocab_size]
    out = run("shapes", "--prompt", PROMPT, "--cached").out
    assert f"; {forward_flops(config, 1, 5):,} FLOPs in matmuls" in out
    assert f"; {decode_flops(config, 1, 6):,} FLOPs in matmuls" in out


@pytest.mark.parametrize(
    ("options", "size"),
    [(["--batch", "3"], (3, 7)), (["--seq", "2"], (1, 2)), (["--batch", "2", "--seq", "16"], (2, 16))],
    ids=lambda value: " ".join(map(str, value)),
)
@pytest.mark.parametrize("source", [["--config", "tiny.yaml"], ["--checkpoint", "runs/tiny"]], ids=["config", "run"])
def test_batch_and_length_are_chosen(run: Any, source: list[str], options: list[str], size: tuple[int, int]) -> None:
    found = json.loads(run("shapes", *source, *options, "--json").out)
    assert (found["batch"], found["seq"]) == size
    assert found["forward_pass"][0]["shape"] == list(size)


def test_the_table_has_the_specification_in_it(run: Any, loaded: Loaded) -> None:
    result = run("shapes", "--config", REFERENCE)
    assert result.code == 0
    rows = {line.split("  ")[0].strip(): line.split() for line in result.out.splitlines()}
    for name, cells in {
        "idx": ["1×7", "int64", "56"],
        "wte.embedding": ["1×7×64", "float32", "1,792", "weight", "20000×64"],
        "attn.view": ["1×7×4×16", "float32", "(1,792)"],  # a view of another tensor
        "attn.core.matmul": ["1×4×7×7", "float32", "784", "6,272"],
        "mlp.c_fc.linear": ["1×7×256", "weight.T", "64×256,", "bias", "256"],
        "lm_head.linear": ["1×7×20000", "17,920,000", "weight.T", "64×20000"],
    }.items():
        assert set(cells) <= set(rows[name]), name
    model = load_config(Path(REFERENCE)).config.model
    parameters = sum(parameter.numel() for parameter in GPT(model).parameters())
    assert f"{forward_flops(model, 1, 7):,} FLOPs in matmuls" in result.out
    assert f"{parameters:,} parameters read" in result.out


def test_parameters_that_are_read_twice_count_once(run: Any, loaded: Loaded) -> None:
    assert loaded.config.model.tie_weights
    total = sum(parameter.numel() for parameter in loaded.model.parameters())
    assert f"; {total:,} parameters read" in run("shapes", "--prompt", PROMPT).out


def test_blocks_like_the_first_are_printed_on_request(run: Any) -> None:
    short = run("shapes", "--config", REFERENCE).out
    whole = run("shapes", "--config", REFERENCE, "--all-layers").out
    assert (short.count("attn.core.softmax"), whole.count("attn.core.softmax")) == (1, 2)
    assert "block 1: same as block 0" in short
    assert "block 1: same as block 0" not in whole


@pytest.mark.parametrize(
    ("tokenizer", "words"), [("char", "vocabulary of 65, assumed"), ("byte", "vocabulary of 256, of bytes")]
)
def test_a_vocabulary_that_the_corpus_decides_is_told(run: Any, tmp_path: Path, tokenizer: str, words: str) -> None:
    config = tmp_path / "open.yaml"
    config.write_text(
        f"data: {{tokenizer: {tokenizer}}}\nmodel: {{n_layer: 1, n_head: 2, n_embd: 8}}\n", encoding="utf-8"
    )
    assert words in run("shapes", "--config", str(config)).out.splitlines()[0]


def test_markdown_is_tables(run: Any) -> None:
    lines = run("shapes", "--config", REFERENCE, "--markdown").out.splitlines()
    assert lines[0].startswith("## ")
    assert {line.count("|") for line in lines if line.startswith("| attn.")} == {9}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--config", "tiny.yaml", "--prompt", "It"], "--prompt needs the tokenizer of a trained model"),
        (["--config", "tiny.yaml", "--checkpoint", "runs/tiny"], "--config and --checkpoint are two models"),
        (["--config", "gone.yaml"], "gone.yaml: no such configuration file"),
        (["--config", "corpus.txt"], "corpus.txt"),
        (["--config", "tiny.yaml", "--seq", "17"], "--seq is 17, expected 1 to 16 (block_size)"),
        (["--seq", "17"], "--seq is 17, expected 1 to 16 (block_size)"),
        (["--seq", "0"], "--seq is 0, expected 1 to 16"),
        (["--batch", "0"], "--batch is 0, expected 1 to 1,000,000"),
        (["--batch", "-2"], "--batch is -2"),
        (["--batch", "10000000000000000000"], "--batch is 10,000,000,000,000,000,000, expected 1 to 1,000,000"),
        (["--batch", "two"], "--batch"),
        (["--prompt", "It", "--seq", "2"], "--prompt determines the tokens; leave out --batch and --seq"),
        (["--prompt", ""], "the prompt has 0 tokens"),
        (["--prompt", "It was the best of rooms"], "more than the window of 16"),
        (["--prompt", "ä"], "'ä' at 0"),
        (["--cached", "--seq", "1"], "need (B, T) ids, T at least 2"),
        (["--published", "gpt2", "--prompt", "It"], "give --checkpoint, or --seq with --published"),
        (["--published", "gpt2", "--config", "tiny.yaml"], "--published and --config are two models"),
        (["--config", "tiny.yaml", "--device", "quantum"], "device quantum: expected auto"),
        (["--runs", "gone"], "no trained run below gone"),
        (["--checkpoint", "gone"], "gone"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gives_one_line(refuse: Callable[..., str], options: list[str], words: str) -> None:
    assert words in refuse("shapes", *options)
