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
"""The value of `--resume` that means the newest readable checkpoint of this run, if it has one."""
RESUME_SAFE_KEYS = frozenset(
    {"run.name", "run.dir", "run.device", "run.compile", "run.kernels", "run.threads"}
    | {"run.snapshots", "data.dir", "data.path", "data.val_path", "data.test_path"}
    | {"train.eval_interval", "train.log_interval", "train.keep_last", "train.sample_tokens"}
)
"""Keys that do not affect the result of training and so may change on a resume.

All keys of `sample` may change too. Other text at a new `data.path` is noticed by its fingerprint.
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
    """Return the folder in which runs are looked for by their names."""
    return expand_home(config.run.dir, "run.dir")


def find_resumed(resume: str | Path | None, runs: Path) -> str | Path | None:
    """Return the folder of the checkpoint that `--resume` names by a path, or by a name in `runs`.

    None and `auto` are returned as they are. For `auto`, `find_start` looks for the newest
    checkpoint once the folder of the run is known.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    if resume is None or resume == AUTO:
        return resume
    # A resumed run goes on where it stopped, which is the last checkpoint, not the best one.
    return find_checkpoint(Path(resume), runs, prefer="last")


def find_start(config: Config, run: RunFolder, resume: str | Path | None, report: Report) -> Start:
    """Return what a run begins with, and read the checkpoint if there is one.

    Args:
        resume: the folder of a checkpoint; `auto` for the newest readable checkpoint of `run`, or
            for a new run if there is none; or None for a new run.

    Raises:
        CheckpointError: the folder holds a run that would be overwritten, or the checkpoint is
            damaged.
    """
    with announce_if_slow(report, "reading the checkpoint"):
        if isinstance(resume, Path):
            # If the checkpoint belongs to another run, it is continued in the folder `run`, which
            # must be new, so that no run is overwritten.
            if not _contains(run, resume):
                _refuse_existing(run)
            return Resume(resume, read_checkpoint(resume))
        if resume == AUTO:
            newest = _newest_checkpoint(run, report)
            if newest is not None:
                return newest
        else:
            _refuse_existing(run)  # `resume` is None, which asks for a new run
        # The checkpoint that `train.init_from` names is read only for a new run: a resumed run no
        # longer needs it, and the user may have deleted it.
        if config.train.init_from is None:
            return New()
        return _find_init_from(config)


def _contains(run: RunFolder, checkpoint: Path) -> bool:
    return run.path.resolve() in checkpoint.resolve().parents


def _newest_checkpoint(run: RunFolder, report: Report) -> Resume | None:
    """Return the newest readable checkpoint of a run, or None if the run has not saved any."""
    found = run.newest_valid()
    if found is None:
        # A run writes last.json after it has saved its first checkpoint. So a run with this file
        # and without checkpoints has lost what it had saved, and must not silently begin anew.
        if (run.path / "last.json").exists():
            raise CheckpointError(
                f"{run.path} has lost its checkpoints; delete it, or choose another run.name=NAME"
            )
        return None
    folder, checkpoint, failures = found
    for failure in failures:
        report(f"warning: {failure}; trying the previous one")
    return Resume(folder, checkpoint)


def _refuse_existing(run: RunFolder) -> None:
    """Raise CheckpointError if the folder has a run already, which a new run would overwrite."""
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
        # The message has only the path. The user also has to know which key names that path.
        raise CheckpointError(f"train.init_from: {error}") from None
    # Only the weights are used, so that the training state need not be read.
    start = InitFrom(folder, read_checkpoint(folder, training=False))
    start.require_float32()
    return start


def check_fits(start: Resume, config: Config, dataset: Dataset, allow_config_change: bool) -> None:
    """Raise CheckpointError unless a run can continue from a checkpoint.

    Args:
        allow_config_change: accept another configuration and other data. A checkpoint with only
            weights, with quantized weights or with another tokenizer is still refused, since no
            training can continue from it.
    """
    saved = start.checkpoint
    # `gpt.save` and `gpt import-model` write checkpoints with only weights. The state of a training
    # also has the fingerprint of its data.
    if "data" not in saved.state:
        raise CheckpointError(
            f"{start.folder} holds a model, but no state of a training to resume; begin a new run "
            f"with it: train.init_from={start.folder}"
        )
    # Quantized weights have no gradients, so that no optimizer could change them.
    start.require_float32()
    changes = differences(saved.config, config, is_resumed=True)
    advice = "leave --resume out to begin a new run beside it"
    # The tokenizer is compared first: the message about a changed configuration recommends
    # --allow-config-change, which would not help a user whose tokenizer differs too.
    if saved.tokenizer.to_dict() != dataset.tokenizer.to_dict():
        listed = f" ({'; '.join(changes)})" if changes else ""
        raise CheckpointError(
            f"{start.folder} was trained with another tokenizer{listed}, in which the same ids "
            f"mean other characters; {advice}"
        )
    if changes and not allow_config_change:
        raise CheckpointError(
            f"{start.folder} was trained with another configuration: {'; '.join(changes)}. Change "
            f"that back, pass --allow-config-change to continue with it, or {advice}"
        )
    has_same_data = saved.state.get("data") == dataset.fingerprint
    if not has_same_data and not allow_config_change:
        raise CheckpointError(
            f"{start.folder} was trained on other data; pass --allow-config-change to continue, or "
            f"{advice}"
        )


def restore(trainer: Trainer, start: Resume) -> None:
    """Let a trainer continue with the state of a checkpoint.

    Raises:
        CheckpointError: the state is damaged, or belongs to another run.
    """
    try:
        trainer.restore(start.checkpoint)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        # A part of the state that is missing or has another type raises one of these errors when it
        # is loaded. The likeliest cause is that --allow-config-change let another configuration
        # pass. Its changed keys then tell the user more than the error does.
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
        ConfigError: a key that the user has given contradicts the checkpoint.
    """
    saved = start.checkpoint.config
    # pydantic keeps in `model_fields_set` the names of the keys that the user has given. Of these,
    # `FREE_MODEL_KEYS`, such as dropout, may differ from the checkpoint.
    model_keys = config.model.model_fields_set - FREE_MODEL_KEYS
    _refuse_contradiction("model", model_keys, config, start)
    # The run takes the tokenizer of the checkpoint. The kind of tokenizer is compared even if the
    # user has not given it, since the run would otherwise train on other tokens than the
    # configuration says. The size of a vocabulary is compared only if the user has given it, since
    # the size in the checkpoint depends on the checkpoint's own text.
    sizes = {"bpe_vocab_size", "word_vocab_size"}
    tokenizer_keys = {"tokenizer"} | (sizes & config.data.model_fields_set)
    _refuse_contradiction("data", tokenizer_keys, config, start)

    free_keys = FREE_MODEL_KEYS & config.model.model_fields_set
    free_values = {key: getattr(config.model, key) for key in free_keys}
    if free_values.get("vocab_size") == saved.model.vocab_size:
        # A configuration from a run's folder has every key, so that the user may not have chosen
        # this size. It is ignored, so that the vocabulary can grow with the characters of the text.
        free_values["vocab_size"] = None
    # The architecture is that of the checkpoint, with the free values that the user has given. If
    # no vocab_size was given, None lets `fill_in` take it from the tokenizer.
    model_values = {**saved.model.model_dump(), "vocab_size": None, **free_values}
    model = ModelConfig.model_validate(model_values)
    # The whole configuration is checked again, since the architecture of the checkpoint may not fit
    # the other sections: for example, `train.length_warmup` may not divide its `block_size`.
    sections = {**config.model_dump(exclude_unset=True), "model": model.model_dump()}
    return build_config(sections, origin=config.run.name or "config")


def _refuse_contradiction(section: str, keys: Set[str], config: Config, start: SavedStart) -> None:
    """Raise ConfigError if the checkpoint has another value for one of the keys of a section."""
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
        model: a model with the checkpoint's architecture.
        tokenizer: the checkpoint's tokenizer, or the same one with more characters.
    """
    saved = start.checkpoint
    weights = dict(saved.model)
    if tokenizer.to_dict() != saved.tokenizer.to_dict():
        # Only a character tokenizer gets more characters, see `extend_tokenizer`.
        assert isinstance(tokenizer, CharTokenizer)
        assert isinstance(saved.tokenizer, CharTokenizer)
        # Characters have ids in their sorted order, so that new characters shift the ids of the old
        # ones. The embedding in row i of the checkpoint moves to row `rows[i]` of the model.
        rows = torch.tensor([tokenizer.stoi[char] for char in saved.tokenizer.itos])
        for name in {"wte.weight", "lm_head.weight"} & weights.keys():
            extended = model.get_parameter(name).detach().cpu().clone()  # (V, C)
            # The embedding of the checkpoint may be padded with rows that belong to no character.
            extended[rows] = weights[name][: len(rows)]
            weights[name] = extended
    load_weights(model, weights, start.folder)


def differences(old: Config, new: Config, is_resumed: bool = False) -> list[str]:
    """Return `key: old -> new` for each changed key that affects the training result.

    Args:
        is_resumed: whether a run with `old` is resumed with `new`. Then the run may also get
            longer, and its teacher and the checkpoint that it began with may have moved.
    """
    old_values = old.leaves()
    new_values = new.leaves()
    harmless_keys = set(RESUME_SAFE_KEYS)
    if is_resumed:
        harmless_keys |= moved_runs(old, new).keys()
        if new.train.max_steps > old.train.max_steps:
            # The warmup of a run may be cut to fit into the run, so that a longer run may have a
            # longer warmup though the user has not changed it.
            harmless_keys |= {"train.max_steps", "optim.warmup_steps"}
    changes = []
    for key, old_value in old_values.items():
        is_harmless = key in harmless_keys or key.startswith("sample.")
        if old_value != new_values[key] and not is_harmless:
            changes.append(f"{key}: {old_value} -> {new_values[key]}")
    return changes


def moved_runs(old: Config, new: Config) -> dict[str, str]:
    """Return the keys that name a run that seems to have moved, each with a line for the user.

    A run seems to have moved if its key has another path than before, and nothing exists at the old
    path any more. A run at another path while the old one still exists would be another run.
    """
    lines = {}
    for key in ("init_from", "teacher"):
        old_path = getattr(old.train, key)
        new_path = getattr(new.train, key)
        is_given = old_path is not None and new_path is not None
        if not is_given or old_path == new_path:
            continue
        old_place = find_place(expand_home(old_path, f"train.{key}"), runs_of(new))
        if old_place is None:
            lines[f"train.{key}"] = (
                f"train.{key}: nothing is at {old_path} any more; {new_path} is taken for what was "
                "there"
            )
    return lines


def differences_of_existing(
    existing: Config, config: Config, is_resumed: bool = False
) -> list[str]:
    """Return the `differences` between an existing run and a configuration that is not filled in.

    Keys that are filled in later, from the text or from the checkpoint of `train.init_from`, are
    assumed to have the values of the existing run.
    """
    model = config.model
    init_from = config.train.init_from
    has_moved = "train.init_from" in moved_runs(existing, config)
    has_same_start = has_moved or init_from == existing.train.init_from
    if init_from is not None and has_same_start:
        # Both runs take the keys of the model that were not given from the same checkpoint, so that
        # only the given ones can differ.
        given = {key: getattr(config.model, key) for key in config.model.model_fields_set}
        model = existing.model.model_copy(update=given)
    size = config.model.vocab_size or existing.model.vocab_size
    model = model.model_copy(update={"vocab_size": size})
    return differences(existing, config.model_copy(update={"model": model}), is_resumed)
