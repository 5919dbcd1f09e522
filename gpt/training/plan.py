"""Decide all that can refuse a run, once, before its model is built and anything is written."""

from dataclasses import dataclass, replace
from pathlib import Path

from gpt.checkpoint import RunFolder
from gpt.config import Config
from gpt.config.sources import LoadedConfig
from gpt.corpora import prepare
from gpt.data.dataset import Dataset
from gpt.device import Compute, choose_compute, keep_freed_memory
from gpt.distributed import World
from gpt.system.environment import Settings
from gpt.system.errors import CheckpointError, ConfigError
from gpt.system.processor import supported_processors
from gpt.system.progress import Report, announced
from gpt.training.distillation import require_probabilities_memory, resolve_teacher
from gpt.training.parallel import check_parallel
from gpt.training.replacing import Replaced, find_replaced
from gpt.training.resume import (
    AUTO,
    ResumePoint,
    check_fits,
    find_resume_point,
    refuse_copy,
    resolve_init_from,
    with_architecture,
)
from gpt.training.schedule import fit_schedule


@dataclass(frozen=True)
class Request:
    """A training that is asked for.

    Attributes:
        resume: see `find_resume_point`.
        allow_config_change: resume even if the configuration differs from the checkpoint's.
        world: the processes that train together; the others take the checkpoint from rank 0.
    """

    loaded: LoadedConfig
    settings: Settings
    report: Report
    resume: str | None = None
    allow_config_change: bool = False
    world: World = World()  # noqa: RUF009  # without state


@dataclass(frozen=True)
class Plan:
    """A run that can begin, or continue.

    Attributes:
        config: resolved: `model.vocab_size` and `run.name` are set, and the schedule fits.
        run: its folder, locked.
        dataset: both splits are long enough.
        point: the checkpoint to resume from, if any; it fits `config` and `dataset`.
        base: the checkpoint of `train.init_from` whose weights a new run begins with, if any.
        teacher: the checkpoint of `train.teacher`, if there is one.
        replaced: the run that is to be kept aside before the run's folder is made, if any.
    """

    config: Config
    run: RunFolder
    compute: Compute
    dataset: Dataset
    point: ResumePoint | None
    base: ResumePoint | None
    teacher: Path | None
    replaced: Replaced | None


def plan_run(request: Request, run: RunFolder) -> Plan:
    """Check that the run of a locked folder can begin or continue; nothing but the corpus is written, nothing moved.

    Raises:
        GPTError: the configuration, the device, the checkpoint, the data or the memory do not suffice.
    """
    world, settings, report = request.world, request.settings, request.report
    check_parallel(request.loaded.config, world)

    def prepare_data(config: Config, origin: ResumePoint | None = None) -> Dataset:
        tokenizer = None if origin is None else origin.checkpoint.tokenizer
        return world.rank_zero_first(lambda: prepare(config.data, settings, report, tokenizer))

    loaded = replace(request.loaded, config=fit_schedule(request.loaded.config, report))
    with world.together():
        compute = choose_compute(loaded.config.run, report, supported_processors(settings.processor)[0], world.launch)
    teacher = world.rank_zero(lambda: resolve_teacher(loaded.config, run.path.parent))
    known: Dataset | None = None
    # a run of another text gives way; a checkpoint that is named is compared with the text when it is known to be there
    if request.resume in (None, AUTO) and loaded.config.train.init_from is None:
        known = prepare_data(loaded.config)
    point, base, replaced = world.rank_zero(lambda: _find_start(loaded, run, request, known, teacher))
    keep_freed_memory()
    # a resumed run has the architecture and tokenizer too, and what it began with may be gone
    origin = None if loaded.config.train.init_from is None else point or base
    if origin is not None:
        loaded = with_architecture(loaded, origin)
    data = known or prepare_data(loaded.config, origin)
    with world.together():
        data.check_length(loaded.config.model.block_size)
        # a padded vocabulary stays as large as it is
        config = resolve(loaded, data, origin.checkpoint.config.model.vocab_size or 0 if origin else 0)
        if teacher is not None:
            require_probabilities_memory(data, config)
        if point is not None:
            check_fits(point, config, data, request.allow_config_change)
            steps, old = config.train.max_steps, point.checkpoint.config.train.max_steps
            if steps > old:
                report(f"{point.folder} goes on to step {steps:,} in place of {old:,}, by the longer schedule's rates")
    return Plan(config, run, compute, data, point, base, teacher, replaced)


def _find_start(
    loaded: LoadedConfig, run: RunFolder, request: Request, data: Dataset | None, teacher: Path | None
) -> tuple[ResumePoint | None, ResumePoint | None, Replaced | None]:
    """Return the checkpoint to resume from, that to begin with, and the run that gives way, if there are any."""
    replaced = None
    if request.resume in (None, AUTO):
        refuse_copy(loaded.folder, run)
    if request.resume is None or not request.allow_config_change:
        replaced = find_replaced(run, request.resume, loaded.config, data)
    with announced(request.report, "reading the checkpoint"):
        if replaced is None:
            point = find_resume_point(run, request.resume, loaded.config, request.report)
            if point is not None:
                return point, None, None
        base = resolve_init_from(loaded.config, run.path.parent)
    begins_with = None if base is None else base.folder
    for key, needed in (("init_from begins with", begins_with), ("teacher is", teacher)):
        if needed is not None and replaced is not None and replaced.holds(needed):
            raise CheckpointError(
                f"train.{key} {needed}, but the new run would take the place of {replaced.folder}; "
                "choose another name with run.name=NAME"
            )
    return None, base, replaced


def resolve(loaded: LoadedConfig, dataset: Dataset, least: int = 0) -> Config:
    """Return the configuration with the run's name and the vocabulary size, at `least` so large, filled in."""
    config, needed = loaded.config, dataset.tokenizer.vocab_size
    size = config.model.vocab_size or max(least, needed)
    if size < needed:
        raise ConfigError(f"model.vocab_size is {size}, but the tokenizer has {needed} ids; leave vocab_size out")
    model = config.model.model_copy(update={"vocab_size": size})
    run = config.run.model_copy(update={"name": loaded.name})
    return config.model_copy(update={"model": model, "run": run})
