"""Every recipe that ships loads, and trains."""

import json
import math
import re
from pathlib import Path

import pytest

import gpt
from gpt.cli import train
from gpt.config import Config
from gpt.config.sources import load_config
from gpt.model.flops import run_flops

CONFIGS = sorted((Path(__file__).resolve().parents[1] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_recipe_names_the_schema_and_itself_and_trains(
    path: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert path.read_text(encoding="utf-8").startswith(
        "# yaml-language-server: $schema=schema.json\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = load_config(path).config
    smaller = ["train.max_steps=2", "train.batch_size=2", "train.teacher=null", "model.n_layer=1"]
    cheaper = ["train.eval_max_tokens=100", "train.sample_tokens=2"]
    text = ["data.source=file", f"data.path={corpus}"]
    options = [*smaller, *cheaper, *text, "train.log_interval=1"]
    assert train.main(["--config", str(path), *options]) == 0
    folder = tmp_path / "runs" / path.stem
    assert (folder / "checkpoints" / "step-000002").is_dir()
    run = gpt.Run(folder, device="cpu")
    # Of the recipe, only what is given here may change, and what must fit two steps and the text.
    allowed = {option.partition("=")[0] for option in options}
    allowed |= {"optim.warmup_steps", "optim.decay_steps", "model.vocab_size"}
    trained = run.config.leaves()
    expected = recipe.leaves()
    assert {key for key in expected if trained[key] != expected[key]} <= allowed
    # The first loss is that of a guess among all characters, and two steps lower it.
    first = run.metrics[0]["train/loss"]
    assert first == pytest.approx(math.log(run.model.config.vocab_size), rel=0.1)
    assert run.metrics[-1]["val/loss"] < first


def test_shakespeare_is_a_textbook_gpt() -> None:
    """It trains as GPT-2 and nanoGPT do, and has no key that they would not have."""
    config = load_config(CONFIGS[0].parent / "shakespeare.yaml").config
    model = config.model
    optim = config.optim
    train = config.train
    assert (model.norm, model.position, model.mlp, model.mlp_width) == (
        "layernorm",
        "learned",
        "gelu",
        None,
    )
    assert (model.tie_weights, model.init, model.qk_norm) == (True, "gpt2", False)
    assert (optim.name, optim.schedule, optim.grad_clip) == ("adamw", "cosine", 1.0)
    assert (config.data.order, train.length_warmup, train.mtp_weights) == ("random", (), ())
    assert (train.logit_temperature, train.teacher) == (1.0, None)


def test_ladder_leads_to_the_modern_recipe_in_equal_arithmetic() -> None:
    """Its steps are the rows of a table of docs/training.md."""
    configs = CONFIGS[0].parent
    page = (configs.parent / "docs" / "training.md").read_text(encoding="utf-8")
    section = page.partition("### From the textbook to today")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| `([^`|]+=[^`|]+)` \|", section, flags=re.MULTILINE)
    assert len(rows) == 12
    modern = load_config(configs / "shakespeare_modern.yaml").config
    overrides: list[str] = ["model.vocab_size=65"]
    for row in rows:
        overrides += row.split()
        config = load_config(configs / "shakespeare.yaml", overrides).config
        assert run_flops(config) == pytest.approx(34.0e12, rel=0.005)
    expected = modern.leaves() | {"model.vocab_size": 65}
    named_otherwise = {"run.name", "train.eval_interval", "sample.temperature"}
    differing = {key for key, value in config.leaves().items() if value != expected[key]}
    assert differing == named_otherwise


def test_the_schema_in_the_repository_is_the_present_one() -> None:
    """`make schema` writes it anew."""
    assert (
        json.loads((CONFIGS[0].parent / "schema.json").read_text(encoding="utf-8"))
        == Config.model_json_schema()
    )


def test_the_shakespeare_recipes_are_nanogpts() -> None:
    """Option for option, as nanoGPT's README and config/train_shakespeare_char.py give them."""
    for name, shape, batch, steps, dropout in (
        ("shakespeare_nanogpt_cpu", (4, 4, 128, 64), 12, 2000, 0.0),
        ("shakespeare_baby_gpt", (6, 6, 384, 256), 64, 5000, 0.2),
    ):
        config = load_config(CONFIGS[0].parent / f"{name}.yaml").config
        model = config.model
        optim = config.optim
        assert (model.n_layer, model.n_head, model.n_embd, model.block_size) == shape
        assert (config.train.batch_size, config.train.max_steps, model.dropout) == (
            batch,
            steps,
            dropout,
        )
        assert (model.norm, model.position, model.mlp) == ("layernorm", "learned", "gelu")
        assert (model.bias, model.tie_weights) == (False, True)
        assert (optim.learning_rate, optim.min_lr, optim.warmup_steps, optim.betas) == (
            1e-3,
            1e-4,
            100,
            (0.9, 0.99),
        )
        assert (optim.schedule, optim.weight_decay, optim.grad_clip) == ("cosine", 0.1, 1.0)
