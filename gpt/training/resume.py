"""The checkpoint that a run resumes from, or begins with (`train.init_from`), and what may differ from it."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gpt.checkpoint import Checkpoint, RunFolder, find_checkpoint, find_place, load_weights, read_checkpoint
from gpt.config import Config, ModelConfig
from gpt.config.loading import checked
from gpt.config.sources import LoadedConfig
from gpt.data import CharTokenizer, Tokenizer
from gpt.data.dataset import Dataset
from gpt.model import GPT
from gpt.model.quantized import format_of
from gpt.system.environment import expand_home
from gpt.system.errors import CheckpointError, ConfigError, explained
from gpt.system.progress import Report
from gpt.training.trainer import Trainer

AUTO = "auto"

RESUME_SAFE_KEYS = {
    *("run.name", "run.dir", "run.device", "run.compile", "run.kernels", "run.threads", "run.snapshots"),
    *("data.dir", "data.path"),
    *("train.eval_interval", "train.log_interval", "train.keep_last", "train.sample_tokens"),
}
"""Keys that do not affect the result of training and so may change on a resume, like all keys of `sample`."""
FREE = frozenset({"vocab_size", "dropout", "attention_dropout", "attention", "init"})
"""Keys of the model that may differ from the checkpoint's: they change no tensor but the embedding and the head."""


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint to resume from or to begin with, and its folder."""

    folder: Path
    checkpoint: Checkpoint

    def require_float32(self) -> None:
        """Raise CheckpointError if the weights are quantized."""
        weights = format_of(self.checkpoint.model)
        if weights != "float32":
            raise CheckpointError(
                f"{self.folder} has {weights} weights, which cannot be trained; use the float32 checkpoint"
            )


def find_resumed(resume: str | Path | None, runs: Path) -> str | Path | None:
    """Return the checkpoint folder that is meant by a path, or by a name in `runs`; None and `auto` stay as they are.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    return resume if resume in (None, AUTO) else find_checkpoint(Path(resume), runs, prefer="last")


def find_resume_point(run: RunFolder, resume: str | Path | None, report: Report) -> ResumePoint | None:
    """Return the checkpoint to resume from: the newest readable one (`auto`), or the given one; None for a new run.

    Raises:
        CheckpointError: the folder holds a run already and `resume` is None or a checkpoint of another
            run; or the checkpoint is damaged.
    """
    if resume is None:
        _refuse_existing(run)
        return None
    if isinstance(resume, Path):
        if run.path.resolve() not in resume.resolve().parents:
            _refuse_existing(run)
        return ResumePoint(resume, read_checkpoint(resume))
    found = run.newest_valid()
    if found is None:
        if (run.path / "last.json").exists():
            raise CheckpointError(f"{run.path} has lost its checkpoints; delete it, or choose another run.name=NAME")
        return None
    folder, checkpoint, damaged = found
    for line in damaged:
        report(f"warning: {line}; trying the previous one")
    return ResumePoint(folder, checkpoint)


def check_fits(point: ResumePoint, config: Config, dataset: Dataset, allow_config_change: bool) -> None:
    """Raise CheckpointError if a checkpoint is of another configuration or data, unless that is allowed and works."""
    saved = point.checkpoint
    # as gpt.save and import_model.py write it
    if "data" not in saved.state:
        raise CheckpointError(
            f"{point.folder} holds a model, but no state of a training to resume; begin a new run with it: "
            f"train.init_from={point.folder}"
        )
    point.require_float32()
    same_tokenizer = saved.tokenizer.to_dict() == dataset.tokenizer.to_dict()
    changes = differences(saved.config, config, is_resumed=True)
    if not same_tokenizer:
        changes = [change for change in changes if not change.startswith("model.vocab_size:")]  # follows from that
    anew = "leave --resume out to begin a new run beside it"
    if changes and not allow_config_change:
        raise CheckpointError(
            f"{point.folder} was trained with another configuration: {'; '.join(changes)}. "
            f"Change that back, pass --allow-config-change to continue with it, or {anew}"
        )
    if not same_tokenizer:
        raise CheckpointError(
            f"{point.folder} was trained with another tokenizer: its text had other characters; {anew}"
        )
    if saved.state.get("data") != dataset.fingerprint and not allow_config_change:
        raise CheckpointError(
            f"{point.folder} was trained on other data; pass --allow-config-change to continue, or {anew}"
        )


def restore(trainer: Trainer, point: ResumePoint) -> None:
    """Let a trainer continue with the state of a checkpoint; CheckpointError: it is damaged, or of another run."""
    try:
        trainer.restore(point.checkpoint)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        changes = differences(point.checkpoint.config, trainer.config)
        raise CheckpointError(
            f"the checkpoint's training state does not fit: {'; '.join(changes) or explained(error)}; resume by its "
            "own configuration, or from another checkpoint, or begin a new run with its weights, train.init_from=RUN "
            "run.name=NEW"
        ) from None


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
    if free.get("vocab_size") == saved.model.vocab_size:  # as in the configuration of a run, which has every value
        free["vocab_size"] = None  # may grow with the text
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


def differences(old: Config, new: Config, is_resumed: bool = False) -> list[str]:
    """Return `key: old -> new` for each changed key that affects the training result; a resume may make it longer."""
    before, after = old.leaves(), new.leaves()
    harmless = RESUME_SAFE_KEYS
    if is_resumed and new.train.max_steps > old.train.max_steps:
        harmless = harmless | {"train.max_steps", "optim.warmup_steps"}  # which was perhaps cut to fit
    if is_resumed:
        harmless = harmless | moved_runs(old, new).keys()
    return [
        f"{key}: {before[key]} -> {after[key]}"
        for key in before
        if before[key] != after[key] and key not in harmless and not key.startswith("sample.")
    ]


def moved_runs(old: Config, new: Config) -> dict[str, str]:
    """Return a line by key for each run that has another path than before, where nothing is any more.

    It was moved or renamed.
    """
    lines = {}
    for key in ("init_from", "teacher"):
        before, after = getattr(old.train, key), getattr(new.train, key)
        if before is None or after is None or before == after:
            continue
        place = find_place(expand_home(before, f"train.{key}"), expand_home(new.run.dir, "run.dir"))
        if place is None:
            lines[f"train.{key}"] = f"train.{key}: nothing is at {before} any more; {after} is taken for what was there"
    return lines


def differences_of_existing(existing: Config, config: Config, is_resumed: bool = False) -> list[str]:
    """Return the `differences` from the run in a folder to a configuration that is not resolved yet.

    What only the text or the checkpoint of `train.init_from` tells is taken to be as it was.
    """
    model, given = config.model, config.model.model_fields_set
    is_moved = "train.init_from" in moved_runs(existing, config)
    if config.train.init_from is not None and (is_moved or config.train.init_from == existing.train.init_from):
        model = existing.model.model_copy(update={key: getattr(config.model, key) for key in given})
    size = config.model.vocab_size or existing.model.vocab_size
    resolved = config.model_copy(update={"model": model.model_copy(update={"vocab_size": size})})
    return differences(existing, resolved, is_resumed)


def _refuse_existing(run: RunFolder) -> None:
    if (run.path / "config.yaml").is_file():
        raise CheckpointError(
            f"the run folder {run.path} exists already, with this configuration; continue it with --resume auto "
            '(in Python resume="auto"), or choose another name with run.name=NAME, or delete it'
        )
