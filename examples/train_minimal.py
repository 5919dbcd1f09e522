"""Train a character-level GPT on a text file: all of it in one file, to be read top to bottom.

    python examples/train_minimal.py my.txt

This is the recipe of `configs/shakespeare.yaml` without what the package adds: no YAML, no
resuming, no native kernels, no GPU. Its losses are those of `scripts/train.py` with
`run.kernels=torch run.dtype=float32`, bit for bit. `sample_minimal.py` writes text with the model
that it saves.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.config import ModelConfig
from gpt.data import CharTokenizer
from gpt.model import GPT


@dataclass
class Recipe:
    """The numbers of a training; a token is a character."""

    n_layer: int = 4
    n_head: int = 3
    n_embd: int = 96
    block_size: int = 128  # the most tokens that the model sees at once
    batch_size: int = 32  # windows in one step
    max_steps: int = 2530
    warmup_steps: int = 100
    learning_rate: float = 6e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.3
    grad_clip: float = 1.0
    eval_interval: int = 1265
    seed: int = 1337


def get_batch(tokens: Tensor, recipe: Recipe, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random windows of the text, and the same windows one token later, each (B, T)."""
    last_start = len(tokens) - recipe.block_size
    starts = torch.randint(last_start, (recipe.batch_size,), generator=generator)
    inputs = torch.stack([tokens[start : start + recipe.block_size] for start in starts])
    targets = torch.stack([tokens[start + 1 : start + 1 + recipe.block_size] for start in starts])
    return inputs, targets


def cross_entropy(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of -log p(target) over all positions, in nats."""
    logits = model(inputs)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate: a linear warmup, then half a period of a cosine down to 0."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / (recipe.max_steps - recipe.warmup_steps)
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def build_optimizer(model: GPT, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW, with weight decay for matrices and embeddings and none for gains of norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=recipe.betas, fused=True)


@torch.no_grad()
def validation_loss(model: GPT, tokens: Tensor, block_size: int) -> float:
    """Return the mean loss over a text, read once in adjacent windows, in nats per token."""
    model.eval()
    total = 0.0
    num_targets = len(tokens) - 1
    for start in range(0, num_targets, block_size):
        end = min(start + block_size, num_targets)
        inputs = tokens[start:end].unsqueeze(0)  # (1, T)
        targets = tokens[start + 1 : end + 1].unsqueeze(0)  # (1, T)
        total += cross_entropy(model, inputs, targets).item()
    model.train()
    return total / num_targets


def train(text: str, recipe: Recipe, output: Path) -> list[float]:
    """Train on a text, save the model, and return the loss of each step, in nats per token."""
    tokenizer = CharTokenizer(text)
    tokens = torch.from_numpy(tokenizer.encode(text))
    num_train_tokens = int(len(tokens) * 0.9)
    train_tokens = tokens[:num_train_tokens]
    val_tokens = tokens[num_train_tokens:]

    torch.manual_seed(recipe.seed)
    config = ModelConfig(
        n_layer=recipe.n_layer,
        n_head=recipe.n_head,
        n_embd=recipe.n_embd,
        block_size=recipe.block_size,
        vocab_size=tokenizer.vocab_size,
    )
    model = GPT(config)
    optimizer = build_optimizer(model, recipe)
    # Batches have a generator of their own, so that dropout does not change what they are.
    generator = torch.Generator().manual_seed(recipe.seed)

    losses = []
    for step in range(recipe.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)

        inputs, targets = get_batch(train_tokens, recipe, generator)
        loss = cross_entropy(model, inputs, targets) / targets.numel()

        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.grad_clip)
        optimizer.step()
        losses.append(loss.item())

        if (step + 1) % recipe.eval_interval == 0 or step + 1 == recipe.max_steps:
            val_loss = validation_loss(model, val_tokens, recipe.block_size)
            print(
                f"step {step + 1}: training loss {loss.item():.4f}, validation loss {val_loss:.4f}"
            )

    saved = {
        "config": config.model_dump(),
        "characters": "".join(tokenizer.itos),
        "weights": model.state_dict(),
    }
    torch.save(saved, output)
    return losses


if __name__ == "__main__":
    train(Path(sys.argv[1]).read_text(encoding="utf-8"), Recipe(), Path("model.pt"))
