"""What a run begins with: nothing, a checkpoint to resume, or that of `train.init_from`."""

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import torch

from gpt.checkpoint import (
    Checkpoint,
    RunFolder,
    find_checkpoint,
    find_place,
    load_weights,
    read_checkpoint,
)
from gpt.config import Config, ModelConfig
from gpt.config.loading import build_config
from gpt.data import CharTokenizer, Tokenizer
from gpt.data.dataset import Dataset
from gpt.model import GPT
from gpt.model.quantized import format_of
from gpt.system.environment import expand_home
from gpt.system.errors import CheckpointError, ConfigError, explained
from gpt.system.progress import Report, announce_if_slow
from gpt.training.trainer import Trainer

AUTO = "auto"
"""What `--resume` means without a run: the newest readable checkpoint of this run, if it has one.
"""
RESUME_SAFE_KEYS = {
    *("run.name", "run.dir", "run.device", "run.compile", "run.kernels", "run.threads"),
    *("run.snapshots", "data.dir", "data.path", "data.val_path", "data.test_path"),
    *("train.eval_interval", "train.log_interval", "train.keep_last", "train.sample_tokens"),
}
"""Keys that do not affect the result of training and so may change on a resume.

All keys of `sample` may change too.
"""
FREE_MODEL_KEYS = frozenset({"vocab_size", "dropout", "attention_dropout", "attention", "init"})
"""Keys of the model that may differ from those of the checkpoint in `train.init_from`.

They change the shape of no tensor but the embedding and the head, which `load_pretrained` extends.
"""


@dataclass(frozen=True)
class New:
    """The run begins with random weights."""


@dataclass(frozen=True)
class SavedStart:
    """The run begins with a checkpoint, which lies in a folder."""

    folder: Path
    checkpoint: Checkpoint

    def require_float32(self) -> None:
        """Raise CheckpointError if the weights are quantized."""
        weights = format_of(self.checkpoint.model)
        if weights != "float32":
            raise CheckpointError(
                f"{self.folder} has {weights} weights, which cannot be trained; "
                "use the float32 checkpoint"
            )


@dataclass(frozen=True)
class Resume(SavedStart):
    """The run continues: weights, optimizer, batches and random numbers go on where they were."""


@dataclass(frozen=True)
class InitFrom(SavedStart):
    """A new run begins with the weights of `train.init_from`, and with nothing else of that run."""


Start = New | Resume | InitFrom
"""What a run begins with."""


def runs_of(config: Config) -> Path:
    """Return the folder in which runs that are named are looked for."""
    return expand_home(config.run.dir, "run.dir")


def find_resumed(resume: str | Path | None, runs: Path) -> str | Path | None:
    """Return the checkpoint folder that a path means, or a name in `runs`.

    None and `auto` name no checkpoint, and are returned as they are: `find_start` looks for the
    newest checkpoint of `auto`, once the folder of the run is known.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    if resume is None or resume == AUTO:
        return resume
    # The last checkpoint, not the best one: a resumed run goes on where it stopped.
    return find_checkpoint(Path(resume), runs, prefer="last")


def find_start(config: Config, run: RunFolder, resume: str | Path | None, report: Report) -> Start:
    """Return what a run begins with, and read the checkpoint if there is one.

    Args:
        resume: the folder of a checkpoint; `auto` for the newest readable checkpoint of `run`, or a
            new run where it has none; or None for a new run.

    Raises:
        CheckpointError: the folder holds a run that would be overwritten, or the checkpoint is
            damaged.
    """
    with announce_if_slow(report, "reading the checkpoint"):
        if isinstance(resume, Path):
            # A checkpoint of another run is continued in a new folder, and overwrites no run.
            if not _contains(run, resume):
                _refuse_existing(run)
            return Resume(resume, read_checkpoint(resume))
        if resume == AUTO:
            newest = _newest_checkpoint(run, report)
            if newest is not None:
                return newest
        else:
            _refuse_existing(run)
        # `train.init_from` is read last: a run that is resumed needs it no more, and it may be
        # gone by then.
        return New() if config.train.init_from is None else _find_init_from(config)


def _contains(run: RunFolder, checkpoint: Path) -> bool:
    return run.path.resolve() in checkpoint.resolve().parents


def _newest_checkpoint(run: RunFolder, report: Report) -> Resume | None:
    """Return the newest readable checkpoint of a run; None if it has not saved any."""
    found = run.newest_valid()
    if found is None:
        # The pointer `last` is written after the first checkpoint, so a run that has the pointer
        # and no checkpoint has lost it.
        if (run.path / "last.json").exists():
            raise CheckpointError(
                f"{run.path} has lost its checkpoints; delete it, or choose another run.name=NAME"
            )
        return None
    folder, checkpoint, damaged = found
    for line in damaged:
        report(f"warning: {line}; trying the previous one")
    return Resume(folder, checkpoint)


def _refuse_existing(run: RunFolder) -> None:
    if (run.path / "config.yaml").is_file():
        raise CheckpointError(
            f"the run folder {run.path} exists already, with this configuration; continue it with "
            '--resume auto (in Python resume="auto"), or choose another name with run.name=NAME, '
            "or delete it"
        )


def _find_init_from(config: Config) -> InitFrom:
    """Read the checkpoint that `train.init_from` names.

    Raises:
        CheckpointError: there is no such checkpoint, or its weights cannot be trained.
    """
    assert config.train.init_from is not None
    path = expand_home(config.train.init_from, "train.init_from")
    try:
        folder = find_checkpoint(path, runs_of(config))
    except CheckpointError as error:
        # The message names the path only, which may stand far away in a configuration file.
        raise CheckpointError(f"train.init_from: {error}") from None
    start = InitFrom(folder, read_checkpoint(folder, training=False))
    start.require_float32()
    return start


def check_fits(start: Resume, config: Config, dataset: Dataset, allow_config_change: bool) -> None:
    """Raise CheckpointError unless a run can continue from a checkpoint.

    Args:
        allow_config_change: accept another configuration and other data. Weights alone, quantized
            weights and another tokenizer are refused all the same, since no training can go on
            from them.
    """
    saved = start.checkpoint
    # `gpt.save` and `gpt import-model` write a checkpoint of weights alone.
    if "data" not in saved.state:
        raise CheckpointError(
            f"{start.folder} holds a model, but no state of a training to resume; begin a new run "
            f"with it: train.init_from={start.folder}"
        )
    # Quantized weights have no gradient, so that no optimizer could change them.
    start.require_float32()
    changes = differences(saved.config, config, is_resumed=True)
    new_run = "leave --resume out to begin a new run beside it"
    # The tokenizer is compared first, since the message about the configuration offers
    # --allow-config-change, by which another tokenizer is not accepted.
    if saved.tokenizer.to_dict() != dataset.tokenizer.to_dict():
        listed = f" ({'; '.join(changes)})" if changes else ""
        raise CheckpointError(
            f"{start.folder} was trained with another tokenizer{listed}, in which the same ids "
            f"mean other characters; {new_run}"
        )
    if changes and not allow_config_change:
        raise CheckpointError(
            f"{start.folder} was trained with another configuration: {'; '.join(changes)}. Change "
            f"that back, pass --allow-config-change to continue with it, or {new_run}"
        )
    if saved.state.get("data") != dataset.fingerprint and not allow_config_change:
        raise CheckpointError(
            f"{start.folder} was trained on other data; pass --allow-config-change to continue, or "
            f"{new_run}"
        )


def restore(trainer: Trainer, start: Resume) -> None:
    """Let a trainer continue with the state of a checkpoint.

    Raises:
        CheckpointError: the state is damaged, or of another run.
    """
    try:
        trainer.restore(start.checkpoint)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        # The state is what the optimizers of several libraries have saved: any part of it can be
        # missing or of another type. A changed configuration is the likeliest cause.
        changes = differences(start.checkpoint.config, trainer.config)
        cause = "; ".join(changes) or explained(error)
        raise CheckpointError(
            f"the checkpoint's training state does not fit: {cause}; resume by its own "
            "configuration, or from another checkpoint, or begin a new run with its weights, "
            "train.init_from=RUN run.name=NEW"
        ) from None


def with_architecture(config: Config, start: SavedStart) -> Config:
    """Return the configuration with the architecture of the checkpoint that a run begins with.

    Raises:
        ConfigError: a key that was given contradicts the checkpoint.
    """
    saved = start.checkpoint.config
    model_keys = config.model.model_fields_set - FREE_MODEL_KEYS
    _refuse_contradiction("model", model_keys, config, start)
    # The checkpoint brings its tokenizer. Its kind is compared even if it was not given: to keep
    # silent would train on other tokens than the configuration says. The size of a vocabulary is
    # compared only if it was given, since that of the checkpoint follows from its own text.
    sizes = {"bpe_vocab_size", "word_vocab_size"}
    tokenizer_keys = {"tokenizer"} | (sizes & config.data.model_fields_set)
    _refuse_contradiction("data", tokenizer_keys, config, start)

    free_keys = FREE_MODEL_KEYS & config.model.model_fields_set
    free = {key: getattr(config.model, key) for key in free_keys}
    if free.get("vocab_size") == saved.model.vocab_size:
        # The configuration in a run's folder has every value, so that an equal size cannot be told
        # from one that was not given. It is taken for the latter: the vocabulary may grow.
        free["vocab_size"] = None
    # None lets `fill_in` take the size from the tokenizer, unless `free` has one.
    model = ModelConfig.model_validate({**saved.model.model_dump(), "vocab_size": None, **free})
    # The sections are checked together once more: the new model may not fit `train`.
    sections = {**config.model_dump(exclude_unset=True), "model": model.model_dump()}
    return build_config(sections, config.run.name or "config")


def _refuse_contradiction(section: str, keys: Set[str], config: Config, start: SavedStart) -> None:
    """Raise ConfigError if one of some keys of a section differs from the checkpoint's."""
    given = getattr(config, section)
    saved = getattr(start.checkpoint.config, section)
    for key in sorted(keys):
        if getattr(given, key) != getattr(saved, key):
            raise ConfigError(
                f"{section}.{key} is {getattr(given, key)}, but {start.folder}, from which "
                f"the run begins (train.init_from), has {getattr(saved, key)}"
            )


@torch.no_grad()
def load_pretrained(model: GPT, tokenizer: Tokenizer, start: InitFrom) -> None:
    """Copy the weights of a checkpoint into a model.

    The embeddings of characters that the checkpoint lacks stay as they are.

    Args:
        model: with the checkpoint's architecture.
        tokenizer: the checkpoint's, or that with more characters.
    """
    saved = start.checkpoint
    weights = dict(saved.model)
    if tokenizer.to_dict() != saved.tokenizer.to_dict():
        # only a character tokenizer grows, see `extend_tokenizer`
        assert isinstance(tokenizer, CharTokenizer)
        assert isinstance(saved.tokenizer, CharTokenizer)
        # Characters are sorted, so that new ones give the old ones other ids: row i of the
        # checkpoint becomes row `rows[i]` of the model.
        rows = torch.tensor([tokenizer.stoi[char] for char in saved.tokenizer.itos])
        for name in {"wte.weight", "lm_head.weight"} & weights.keys():
            extended = model.get_parameter(name).detach().cpu().clone()  # (V, C)
            # A padded embedding has more rows than there are characters.
            extended[rows] = weights[name][: len(rows)]
            weights[name] = extended
    load_weights(model, weights, start.folder)


def differences(old: Config, new: Config, is_resumed: bool = False) -> list[str]:
    """Return `key: old -> new` for each changed key that affects the training result.

    Args:
        is_resumed: whether a run goes on from `old` to `new`. It may also get longer, and find
            its teacher and the checkpoint it began with at another path.
    """
    old_values = old.leaves()
    new_values = new.leaves()
    harmless = set(RESUME_SAFE_KEYS)
    if is_resumed:
        harmless |= moved_runs(old, new).keys()
        if new.train.max_steps > old.train.max_steps:
            # The warmup may differ too: one that did not fit the shorter run was cut, see
            # `fit_schedule`.
            harmless |= {"train.max_steps", "optim.warmup_steps"}
    changes = []
    for key, old_value in old_values.items():
        is_harmless = key in harmless or key.startswith("sample.")
        if old_value != new_values[key] and not is_harmless:
            changes.append(f"{key}: {old_value} -> {new_values[key]}")
    return changes


def moved_runs(old: Config, new: Config) -> dict[str, str]:
    """Return the keys that name a run which seems to have moved, each with a line for the user.

    A run seems to have moved if its key has another path than before, and nothing is at the old
    path any more.
    """
    lines = {}
    for key in ("init_from", "teacher"):
        old_path = getattr(old.train, key)
        new_path = getattr(new.train, key)
        is_changed = old_path != new_path
        if old_path is None or new_path is None or not is_changed:
            continue
        if find_place(expand_home(old_path, f"train.{key}"), runs_of(new)) is None:
            lines[f"train.{key}"] = (
                f"train.{key}: nothing is at {old_path} any more; {new_path} is taken for what was "
                "there"
            )
    return lines


def differences_of_existing(
    existing: Config, config: Config, is_resumed: bool = False
) -> list[str]:
    """Return the `differences` from the run in a folder to a configuration not filled in yet.

    The keys that are filled in later, from the text or from the checkpoint of `train.init_from`,
    are assumed to have the values that they have in the run.
    """
    model = config.model
    init_from = config.train.init_from
    has_moved = "train.init_from" in moved_runs(existing, config)
    has_same_start = has_moved or init_from == existing.train.init_from
    if init_from is not None and has_same_start:
        given = {key: getattr(config.model, key) for key in config.model.model_fields_set}
        model = existing.model.model_copy(update=given)
    size = config.model.vocab_size or existing.model.vocab_size
    model = model.model_copy(update={"vocab_size": size})
    return differences(existing, config.model_copy(update={"model": model}), is_resumed)
