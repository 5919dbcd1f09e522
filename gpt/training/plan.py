"""Decide all that can refuse a run, once, before its model is built and anything is written."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpt.accounting.disk import require_disk
from gpt.accounting.memory_limits import require_training_memory
from gpt.checkpoint import RunFolder
from gpt.config import Config, LoadedConfig
from gpt.corpora import prepare
from gpt.data import Dataset
from gpt.device import Compute, choose_compute, keep_freed_memory
from gpt.distributed import World
from gpt.environment import Settings, expand_home
from gpt.errors import ConfigError
from gpt.processor import supported_processors
from gpt.progress import Report, announced
from gpt.training.distillation import require_probabilities_memory
from gpt.training.finetuning import resolve_init_from, with_architecture
from gpt.training.parallel import check_parallel
from gpt.training.resume import ResumePoint, check_fits, find_resume_point, warn_of_copy
from gpt.training.schedule import fit_schedule


@dataclass(frozen=True)
class Plan:
    """A run that can begin, or continue.

    Attributes:
        config: resolved: `model.vocab_size` and `run.name` are set, and the schedule fits.
        run: its folder, locked.
        dataset: both splits are long enough.
        point: the checkpoint to resume from, if any; it fits `config` and `dataset`.
        base: the checkpoint of `train.init_from` whose weights a new run begins with, if any.
    """

    config: Config
    run: RunFolder
    compute: Compute
    dataset: Dataset
    point: ResumePoint | None
    base: ResumePoint | None

    def require_disk(self) -> None:
        """Raise CheckpointError unless there is room for the checkpoints that it has at a time."""
        require_disk(self.run.path, self.config, checkpoints=2 if self.point is None else 1)


def plan_run(
    loaded: LoadedConfig,
    settings: Settings,
    report: Report,
    resume: str | None,
    allow_config_change: bool,
    world: World,
    dataset: Dataset | None = None,
    notes: Report | None = None,
) -> Plan:
    """Lock a run folder, and check that its run can begin or continue; nothing is written into it.

    Args:
        resume: see `find_resume_point`.
        allow_config_change: resume even if the configuration differs from the checkpoint's.
        world: the processes that train together; the others take the checkpoint from rank 0.
        dataset: the data; None: prepared here.
        notes: takes the lines that are of interest only when the run begins; None: `report`.

    Raises:
        GPTError: the configuration, the device, the checkpoint, the data, the memory or the disk do not suffice.
    """
    check_parallel(loaded.config, world)
    run = RunFolder(expand_home(loaded.config.run.dir, "run.dir") / loaded.name)
    try:
        world.rank_zero(run.lock)
        return _plan_locked(loaded, run, settings, report, resume, allow_config_change, world, dataset, notes or report)
    except BaseException:
        run.unlock()
        raise


def _plan_locked(
    loaded: LoadedConfig,
    run: RunFolder,
    settings: Settings,
    report: Report,
    resume: str | None,
    allow_config_change: bool,
    world: World,
    dataset: Dataset | None,
    notes: Report,
) -> Plan:
    loaded = replace(loaded, config=fit_schedule(loaded.config, notes))
    with world.together():
        compute = choose_compute(loaded.config.run, notes, supported_processors(settings.processor)[0], world.launch)
    point, base = world.rank_zero(lambda: _find_start(loaded, run, resume, report, notes))
    keep_freed_memory()
    # a resumed run has the architecture and tokenizer too, and what it began with may be gone
    origin = None if loaded.config.train.init_from is None else point or base
    if origin is not None:
        loaded = with_architecture(loaded, origin)
    data = dataset or world.rank_zero_first(_preparation(loaded.config, origin, settings, report))
    with world.together():
        data.check_length(loaded.config.model.block_size)
        config = resolve(loaded, data)
        if config.train.teacher_share is not None:
            require_probabilities_memory(data, config)
        require_training_memory(config, compute, world.size)
        if point is not None:
            check_fits(point, config, data, allow_config_change)
    plan = Plan(config, run, compute, data, point, base)
    world.rank_zero(plan.require_disk)
    return plan


def _find_start(
    loaded: LoadedConfig, run: RunFolder, resume: str | None, report: Report, notes: Report
) -> tuple[ResumePoint | None, ResumePoint | None]:
    """Return the checkpoint to resume from, or else the one to begin with, if any."""
    warn_of_copy(loaded.folder, run, resume, notes)
    with announced(report, "reading the checkpoint"):
        point = find_resume_point(run, resume, loaded.config, report)
        return point, resolve_init_from(loaded.config, run.path.parent) if point is None else None


def _preparation(
    config: Config, origin: ResumePoint | None, settings: Settings, report: Report
) -> Callable[[], Dataset]:
    tokenizer = None if origin is None else origin.checkpoint.tokenizer
    add_characters = config.train.init_new_characters == "add"
    return lambda: prepare(config.data, settings, report, False, tokenizer, add_characters)


def resolve(loaded: LoadedConfig, dataset: Dataset) -> Config:
    """Return the configuration with the vocabulary size and the run's name filled in.

    Raises:
        ConfigError: `model.vocab_size` is too small for the tokenizer.
    """
    config, needed = loaded.config, dataset.tokenizer.vocab_size
    size = config.model.vocab_size or needed
    if size < needed:
        raise ConfigError(f"model.vocab_size is {size}, but the tokenizer has {needed} ids; leave vocab_size out")
    model = config.model.model_copy(update={"vocab_size": size})
    run = config.run.model_copy(update={"name": loaded.name})
    return config.model_copy(update={"model": model, "run": run})
