"""Short runs whose losses and texts are kept; `python -m training.golden_curves` in `tests/` records them anew.

They are recorded with PyTorch's own operators in float32 on one thread, with no faster type for
Muon's matmuls. A change that is meant to compute the same
must not move them by more than rounding does.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

import gpt
from gpt.config.loading import parse_config
from gpt.config.sources import LoadedConfig
from gpt.system.environment import read_settings
from gpt.training.plan import Request
from gpt.training.setup import open_session

RECORDED = Path(__file__).with_name("golden_curves.json")
STEPS = 60
PROMPT = "It was "
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
COMMON = (
    *("run.device=cpu", "run.dtype=float32", "run.compile=false", "run.kernels=torch", "run.threads=1"),
    *("data.source=file", "data.val_fraction=0.1", f"train.max_steps={STEPS}", "train.batch_size=8"),
    *("train.eval_interval=60", "train.log_interval=1", "train.sample_tokens=0"),
    *("model.n_layer=2", "model.n_embd=64", "model.block_size=32", "optim.min_lr=1e-4"),
)
RECIPES = {
    "gpt2": (
        *("model.n_head=4", "model.norm=layernorm", "model.position=learned", "model.mlp=gelu", "model.bias=true"),
        *("model.dropout=0.1", "optim.learning_rate=1e-2", "optim.schedule=cosine", "optim.warmup_steps=10"),
        "train.grad_accum_steps=2",
    ),
    "muon": (
        *("model.n_head=2", "model.norm=rmsnorm", "model.position=rope", "model.mlp=relu2", "model.qk_norm=true"),
        *("model.tie_weights=false", "model.init=zero_projections", "optim.name=muon"),
        "optim.weight_decay=0",
        *("optim.learning_rate=1e-2", "optim.schedule=wsd", "optim.warmup_steps=5", "optim.decay_steps=30"),
    ),
    "llama": (
        *("model.n_head=4", "model.n_kv_head=2", "model.norm=rmsnorm", "model.position=rope", "model.mlp=swiglu"),
        *("model.tie_weights=false", "optim.learning_rate=1e-2", "optim.schedule=cosine", "optim.warmup_steps=5"),
    ),
}


def record(recipe: str, folder: Path, *overrides: str) -> tuple[list[float], str]:
    """Return the training loss in nats of every step of a run, and the greedy text of the trained model."""
    corpus = folder / "corpus.txt"
    corpus.write_text(TEXT * 10, encoding="utf-8")
    places = (f"data.path={json.dumps(str(corpus))}", f"data.dir={json.dumps(str(folder / 'data'))}")
    run = f"run.dir={json.dumps(str(folder / 'runs'))}"
    config = parse_config("", recipe, [*COMMON, *RECIPES[recipe], *places, run, *overrides])
    settings = replace(read_settings(offline=True), data_dir=None, processor="generic")
    trainer = open_session(Request(LoadedConfig(config, recipe), settings, lambda line: None))
    trainer.run()
    lines = (folder / "runs" / recipe / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [value["train/loss"] for value in map(json.loads, lines) if "train/loss" in value]
    model, tokenizer = gpt.load(folder / "runs" / recipe)
    return losses, gpt.generate(model, tokenizer, PROMPT, temperature=0.0, max_new_tokens=40)


def main() -> None:
    torch.set_num_threads(1)
    curves = {}
    for recipe in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            losses, text = record(recipe, Path(folder))
        curves[recipe] = {"losses": losses, "text": text}
    RECORDED.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
