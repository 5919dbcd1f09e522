"""Begin with the weights, tokenizer and architecture of another run (`train.init_from`)."""

from dataclasses import replace
from pathlib import Path

import torch

from gpt.checkpoint import find_checkpoint, load_weights, read_checkpoint
from gpt.config import Config, ModelConfig
from gpt.config.loading import checked
from gpt.config.sources import LoadedConfig
from gpt.data import CharTokenizer, Tokenizer
from gpt.model import GPT
from gpt.system.environment import expand_home
from gpt.system.errors import ConfigError
from gpt.training.resume import ResumePoint

FREE = frozenset({"vocab_size", "dropout", "attention_dropout", "attention", "init"})
"""Keys of the model that may differ from the checkpoint's: they change no tensor but the embedding and the head."""


def resolve_init_from(config: Config, runs: Path) -> ResumePoint | None:
    """Return the checkpoint that `train.init_from` names, below the folder of runs, if it names one."""
    if config.train.init_from is None:
        return None
    folder = find_checkpoint(expand_home(config.train.init_from, "train.init_from"), runs)
    base = ResumePoint(folder, read_checkpoint(folder, training=False))
    base.require_float32()
    return base


def with_architecture(loaded: LoadedConfig, base: ResumePoint) -> LoadedConfig:
    """Return the configuration with the architecture of a checkpoint; ConfigError: a key contradicts it."""
    config, saved = loaded.config, base.checkpoint.config
    tokenizer = {"tokenizer"} | ({"bpe_vocab_size"} & config.data.model_fields_set)
    for section, keys in (("model", config.model.model_fields_set - FREE), ("data", tokenizer)):
        ours, theirs = getattr(config, section), getattr(saved, section)
        for key in sorted(keys):
            if getattr(ours, key) != getattr(theirs, key):
                raise ConfigError(
                    f"{section}.{key} is {getattr(ours, key)}, but {base.folder}, from which train.init_from begins, "
                    f"has {getattr(theirs, key)}"
                )
    free = {key: getattr(config.model, key) for key in FREE & config.model.model_fields_set}
    model = ModelConfig.model_validate({**saved.model.model_dump(), "vocab_size": None, **free})
    changed = {**config.model_dump(exclude_unset=True), "model": model.model_dump()}
    return replace(loaded, config=checked(changed, loaded.name, [], lambda key: loaded.name))


@torch.no_grad()
def load_pretrained(model: GPT, tokenizer: Tokenizer, base: ResumePoint) -> None:
    """Copy the weights of a checkpoint into a model; embeddings of characters that it lacks stay as they are.

    Args:
        model: with the checkpoint's architecture.
        tokenizer: of the model: the checkpoint's, or that with more characters.
    """
    saved = base.checkpoint
    weights = dict(saved.model)
    if tokenizer.to_dict() != saved.tokenizer.to_dict():
        assert isinstance(tokenizer, CharTokenizer)
        assert isinstance(saved.tokenizer, CharTokenizer)
        rows = torch.tensor([tokenizer.stoi[character] for character in saved.tokenizer.itos])
        for name in {"wte.weight", "lm_head.weight"} & weights.keys():
            grown = model.get_parameter(name).detach().cpu().clone()
            grown[rows] = weights[name][: len(rows)]
            weights[name] = grown
    load_weights(model, weights, base.folder)
