"""The recipe for a CPU that nanoGPT's README gives, for nanoGPT and as a configuration of this package."""

from gpt.config import Config, DataConfig
from gpt.config.sections import ModelConfig, OptimConfig, RunConfig, TrainConfig

CONFIG_FILE = "config/train_shakespeare_char.py"

NANOGPT_FILES = ("model.py", "train.py", CONFIG_FILE, "data/shakespeare_char/prepare.py")
"""What a race needs of a checkout."""

README_OPTIONS = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 "
    "--n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)
"""Word for word what the README gives."""

BLOCK_SIZE = 64


def readme_options(steps: int) -> list[str]:
    """Its options, with another number of steps."""
    changed = {"--max_iters": steps, "--lr_decay_iters": steps}
    names = [(option, option.partition("=")[0]) for option in README_OPTIONS.split()]
    return [f"{name}={changed[name]}" if name in changed else option for option, name in names]


def same_budget(data: DataConfig, steps: int, threads: int | None) -> Config:
    """Shape, batches, steps and optimizer of the recipe, what comes from its configuration file included."""
    return Config(
        run=RunConfig(device="cpu", dtype="float32", compile=False, threads=threads),
        data=data,
        model=ModelConfig(n_layer=4, n_head=4, n_embd=128, block_size=BLOCK_SIZE, dropout=0.0),
        optim=OptimConfig(
            learning_rate=1e-3,
            min_lr=1e-4,
            schedule="cosine",
            warmup_steps=min(100, steps - 1),
            betas=(0.9, 0.99),
            weight_decay=0.1,
            grad_clip=1.0,
        ),
        train=TrainConfig(batch_size=12, max_steps=steps),
    )
