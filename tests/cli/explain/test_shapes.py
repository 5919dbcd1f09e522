import shlex
from pathlib import Path

import pytest

from cli.conftest import Call
from gpt.accounting.flops import forward_flops
from gpt.config.sources import load_config
from gpt.model import GPT

REFERENCE = Path(__file__).resolve().parents[3] / "configs" / "reference_shapes.yaml"
CONFIG = f"explain shapes --config {shlex.quote(str(REFERENCE))}"
pytestmark = pytest.mark.usefixtures("here")


def test_a_configuration_is_traced_without_weights(run: Call) -> None:
    found = run(f"{CONFIG} --json").json
    assert (found["source"], found["batch"], found["seq"]) == (str(REFERENCE), 1, 7)
    rows = {row["name"]: row for row in found["forward_pass"]}
    assert (next(iter(rows)), list(rows)[-1]) == ("idx", "lm_head.linear")
    for name, *expected in (
        ("h.1.attn.c_q.linear", "B T C", [1, 7, 64], "float32", 1792, 57_344, 1),
        ("h.0.attn.core.softmax", "B H T S", [1, 4, 7, 7], "float32", 784, 0, 0),
        ("idx", "B T", [1, 7], "int64", 56, 0, None),
    ):
        assert [rows[name][key] for key in ("symbols", "shape", "dtype", "nbytes", "flops", "layer")] == expected
    assert rows["h.0.mlp.c_fc.linear"]["parameters"] == [
        {"name": "h.0.mlp.c_fc.weight.T", "symbols": "C F", "shape": [64, 256]},
        {"name": "h.0.mlp.c_fc.bias", "symbols": "F", "shape": [256]},
    ]
    found = run("explain shapes --published gpt2 --seq 3 --json").json
    assert (found["source"], found["seq"]) == ("gpt2, as published", 3)
    assert found["forward_pass"][-1]["shape"] == [1, 3, 50257]


@pytest.mark.parametrize(
    ("options", "size"), [("--batch 3", [3, 7]), ("--seq 2", [1, 2]), ("--batch 2 --seq 16", [2, 16])]
)
@pytest.mark.parametrize("source", ["--config tiny.yaml", "--checkpoint runs/tiny"])
def test_batch_and_length_are_chosen(run: Call, source: str, options: str, size: list[int]) -> None:
    found = run(f"explain shapes {source} {options} --json").json
    assert [found["batch"], found["seq"]] == found["forward_pass"][0]["shape"] == size


def test_the_table_has_the_specification_in_it_and_like_blocks_once(run: Call) -> None:
    out = run(CONFIG).out
    rows = {line.split("  ")[0].strip(): line.split() for line in out.splitlines()}
    for name, cells in {
        "idx": ["1×7", "int64", "56"],
        "wte.embedding": ["1×7×64", "float32", "1,792", "weight", "20000×64"],
        "attn.view": ["1×7×4×16", "float32", "(1,792)"],  # a view of another tensor
        "attn.core.matmul": ["1×4×7×7", "float32", "784", "6,272"],
        "mlp.c_fc.linear": ["1×7×256", "weight.T", "64×256,", "bias", "256"],
        "lm_head.linear": ["1×7×20000", "17,920,000", "weight.T", "64×20000"],
    }.items():
        assert set(cells) <= set(rows[name]), name
    model = load_config(REFERENCE).config.model
    assert f"{forward_flops(model, 1, 7):,} FLOPs in matmuls" in out
    assert f"{sum(parameter.numel() for parameter in GPT(model).parameters()):,} parameters read" in out
    assert out.count("attn.core.softmax") == 1
    assert "Block 1: same as block 0" in out


@pytest.mark.parametrize(
    ("tokenizer", "words"), [("char", "vocabulary of 65, assumed"), ("byte", "vocabulary of 256, of bytes")]
)
def test_a_vocabulary_that_the_corpus_decides_is_told(run: Call, tmp_path: Path, tokenizer: str, words: str) -> None:
    sections = f"data: {{tokenizer: {tokenizer}}}\nmodel: {{n_layer: 1, n_head: 2, n_embd: 8}}\n"
    (tmp_path / "open.yaml").write_text(sections, encoding="utf-8")
    assert words in run(f"explain shapes --config {tmp_path}/open.yaml").out.splitlines()[0]
