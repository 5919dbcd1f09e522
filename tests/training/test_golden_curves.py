"""Losses and texts of short runs stay what they were; `python -m training.test_golden_curves` in
`tests/` records them.

They are recorded with PyTorch's own operators in float32 on one thread, with no faster type for
Muon's matmuls. A change that is meant to compute the same must not move them by more than rounding
does.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from native_support import needs_compiler

import gpt
from gpt.config.loading import parse_config
from gpt.config.sources import LoadedConfig
from gpt.system.environment import read_settings
from gpt.training.train import Host, build_trainer
from training.sessions import rows

RECORDED = Path(__file__).with_name("golden_curves.json")
RELATIVE = 1e-3
"""Of a loss: rounding in another order, as other processors do, moved one by 3e-4 at most."""
TEXT = """When forty winters shall besiege thy brow,
And dig deep trenches in thy beauty's field,
Thy youth's proud livery so gazed on now,
Will be a totter'd weed of small worth held:
Then being asked, where all thy beauty lies,
Where all the treasure of thy lusty days;
To say, within thine own deep sunken eyes,
Were an all-eating shame, and thriftless praise.
It was the lark, the herald of the morn,
It was the nightingale, and not the lark.
"""
COMMON = """
    run.device=cpu run.dtype=float32 run.kernels=torch run.threads=1
    data.source=file data.val_fraction=0.1
    model.n_layer=2 model.n_embd=64 model.block_size=32
    optim.min_lr=1e-4
    train.batch_size=8 train.max_steps=60 train.eval_interval=60 train.log_interval=1
    train.sample_tokens=0
"""
RECIPES = {
    "gpt2": """
        model.n_head=4 model.norm=layernorm model.position=learned model.mlp=gelu
        model.bias=true model.dropout=0.1
        optim.learning_rate=1e-2 optim.schedule=cosine optim.warmup_steps=10
        train.grad_accum_steps=2
    """,
    "muon": """
        model.n_head=2 model.norm=rmsnorm model.position=rope model.mlp=relu2
        model.qk_norm=true model.tie_weights=false model.init=zero_projections
        optim.name=muon optim.weight_decay=0
        optim.learning_rate=1e-2 optim.schedule=wsd optim.warmup_steps=5 optim.decay_steps=30
    """,
    "llama": """
        model.n_head=4 model.n_kv_head=2 model.norm=rmsnorm model.position=rope
        model.mlp=swiglu model.tie_weights=false
        optim.learning_rate=1e-2 optim.schedule=cosine optim.warmup_steps=5
    """,
    # What shakespeare_modern.yaml uses, and what the command finds for a text of the user.
    "modern": """
        data.order=shuffled
        model.n_head=2 model.norm=rmsnorm model.position=rope model.mlp=swiglu
        model.mlp_width=176 model.qk_norm=true model.tie_weights=false
        model.init=zero_projections
        optim.name=muon optim.learning_rate=1e-2 optim.muon_rate=0.015 optim.betas=[0.9,0.99]
        optim.weight_decay=0.1 optim.schedule=wsd optim.warmup_steps=5 optim.decay_steps=34
        train.length_warmup=[0.4,0.4] train.mtp_weights=[0.5,0.25] train.logit_temperature=0.9
    """,
    "own_text": """
        data.order=shuffled
        model.n_head=2 model.norm=rmsnorm model.position=rope model.mlp=swiglu
        model.mlp_width=176 model.qk_norm=true model.tie_weights=false
        model.init=zero_projections model.dropout=0.2 model.attention_dropout=0.0
        optim.name=muon optim.learning_rate=1.5e-2 optim.muon_rate=0.02 optim.betas=[0.9,0.99]
        optim.weight_decay=0.3 optim.schedule=wsd optim.warmup_steps=5 optim.decay_steps=34
        train.length_warmup=[0.4,0.4] train.mtp_weights=[0.5,0.25] train.logit_temperature=0.8
    """,
}
"""Keys of a configuration, as a command takes them; none has a space in its value."""
# Recipes without dropout, of which kernels draw other masks than PyTorch.
NATIVE = [
    pytest.param(recipe, ["run.kernels=native"], marks=(pytest.mark.compiler, needs_compiler))
    for recipe in ("muon", "modern")
]


def record(recipe: str, folder: Path, overrides: list[str]) -> tuple[list[float], str]:
    """Return the training loss in nats of every step of a run, and the greedy text of the trained
    model.
    """
    (folder / "corpus.txt").write_text(TEXT * 10, encoding="utf-8")
    places = {"data.path": "corpus.txt", "data.dir": "data", "run.dir": "runs"}
    placed = [f"{key}={json.dumps(str(folder / name))}" for key, name in places.items()]
    config = parse_config(
        "", recipe, [*COMMON.split(), *RECIPES[recipe].split(), *placed, *overrides]
    )
    settings = replace(read_settings(offline=True), data_dir=None, processor="generic")
    trainer = build_trainer(LoadedConfig(config, "run"), Host(settings, lambda line: None))
    trainer.run()
    model, tokenizer = gpt.load(trainer.run_folder.path)
    text = gpt.generate(model, tokenizer, "It was ", temperature=0.0, max_new_tokens=40)
    return list(rows(folder, "train/loss").values()), text


@pytest.mark.parametrize(("recipe", "overrides"), [*((name, []) for name in RECIPES), *NATIVE])
def test_losses_and_text_stay_as_recorded(
    recipe: str, overrides: list[str], tmp_path: Path
) -> None:
    golden = json.loads(RECORDED.read_text(encoding="utf-8"))[recipe]
    losses, text = record(recipe, tmp_path, overrides)
    assert losses == pytest.approx(golden["losses"], rel=RELATIVE)
    assert text == golden["text"]


def main() -> None:
    torch.set_num_threads(1)
    curves = {}
    for recipe in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            losses, text = record(recipe, Path(folder), [])
        curves[recipe] = {"losses": losses, "text": text}
    RECORDED.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
