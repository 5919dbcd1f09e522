"""From a request to a trainer that is ready to run: validate what can reject the run, then build it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from gpt.checkpoint import RunFolder, load_weights
from gpt.config import Config
from gpt.config.sources import LoadedConfig
from gpt.data.batches import MicroBatches, build_sampler
from gpt.data.dataset import Dataset
from gpt.data.preparation import prepare
from gpt.model import GPT
from gpt.system.device import Compute, choose_compute, keep_freed_memory, use_threads
from gpt.system.distributed import World
from gpt.system.environment import Settings
from gpt.system.errors import CheckpointError, ConfigError
from gpt.system.processor import supported_processors
from gpt.system.progress import Report, announced, silent
from gpt.training.acceleration import compile_blocks, use_native_kernels
from gpt.training.callbacks import Callback, CallbackGroup
from gpt.training.distillation import add_targets_of
from gpt.training.graphed_step import GraphedStepper, can_capture
from gpt.training.loss import evaluate
from gpt.training.monitor import Console, Monitor, MonitorGroup, RunFiles, SpeedMeter, TensorBoard
from gpt.training.naming import Choice, Wanted, choose_folder, runs_of
from gpt.training.objective import build_objective, check_terms
from gpt.training.optimizers import build_optimizer
from gpt.training.parallel import check_parallel, evaluate_together, parallelize, rows_of_process
from gpt.training.resume import (
    AUTO,
    ResumePoint,
    check_fits,
    find_resume_point,
    find_resumed,
    load_pretrained,
    moved_runs,
    resolve_init_from,
    restore,
    with_architecture,
)
from gpt.training.schedule import fit_schedule
from gpt.training.step import Stepper
from gpt.training.trainer import Trainer
from gpt.training.training_state import seed_process
from gpt.training.validation import Validation


@dataclass(frozen=True)
class TrainRequest:
    """A training that is asked for.

    Attributes:
        resume: None: a new run; `auto`; or a run or checkpoint to continue from, see `find_checkpoint`.
        allow_config_change: resume even if the configuration differs from the checkpoint's.
        world: the processes that train together; the others take the checkpoint from rank 0.
        display: shows progress in the place of the console.
    """

    loaded: LoadedConfig
    settings: Settings
    report: Report
    resume: str | None = None
    allow_config_change: bool = False
    world: World = World()  # noqa: RUF009  # without state
    callbacks: Sequence[Callback] = ()
    display: Monitor | None = None


@dataclass(frozen=True)
class Prepared:
    """What is known of a training before its folder is.

    Attributes:
        loaded: its schedule fits.
        data: None where the run's checkpoint may bring the tokenizer.
        resume: as in the request, but the folder of the checkpoint in the place of its path or name.
    """

    loaded: LoadedConfig
    compute: Compute
    data: Dataset | None
    resume: str | Path | None


@dataclass(frozen=True)
class Plan:
    """A run that can begin, or continue.

    Attributes:
        config: resolved: `model.vocab_size` and `run.name` are set, and the schedule fits.
        run: its folder, locked.
        dataset: both splits are long enough.
        resume_from: the checkpoint to resume from, if any; it fits `config` and `dataset`.
        init_from: the checkpoint of `train.init_from` whose weights a new run begins with, if any.
        line: says why the run has another name than its configuration gives it; empty if it has that.
    """

    config: Config
    run: RunFolder
    compute: Compute
    dataset: Dataset
    resume_from: ResumePoint | None
    init_from: ResumePoint | None
    line: str


def build_trainer(request: TrainRequest) -> Trainer:
    """Validate a request, then build its trainer; the run's folder stays locked until `Trainer.run` ends.

    Raises:
        GPTError: the run can neither begin nor continue; its folder is as it was.
    """
    prepared = _prepare(request)
    choice = request.world.rank_zero(lambda: _choose(prepared, request))
    run = RunFolder(choice.folder)
    try:
        request.world.rank_zero(lambda: _lock(run, prepared, request))
        return _build(validate(prepared, request, run, choice.line), request)
    except BaseException:
        run.unlock()
        raise


def _prepare(request: TrainRequest) -> Prepared:
    """Find out what does not depend on the folder of the run; nothing but the corpus is written."""
    world, report = request.world, request.report
    check_parallel(request.loaded.config, world)
    for key, message in request.loaded.config.without_effect():
        report(f"{key}: {message}")
    loaded = replace(request.loaded, config=fit_schedule(request.loaded.config, report))
    with world.together():
        run_config, processor = loaded.config.run, supported_processors(request.settings.processor)[0]
        use_threads(run_config.threads, world.launch)
        compute = choose_compute(run_config.device, run_config.dtype, report, processor, world.launch)
    runs = runs_of(loaded.config)
    resume = world.rank_zero(lambda: find_resumed(request.resume, runs))
    data: Dataset | None = None
    # a run of another text is another run; a checkpoint that is named is compared with the text when it was found
    if request.resume in (None, AUTO) and loaded.config.train.init_from is None:
        data = _prepare_data(request, loaded.config)
    return Prepared(loaded, compute, data, resume)


def _prepare_data(request: TrainRequest, config: Config, origin: ResumePoint | None = None) -> Dataset:
    tokenizer = None if origin is None else origin.checkpoint.tokenizer
    return request.world.rank_zero_first(lambda: prepare(config.data, request.settings, request.report, tokenizer))


def _choose(prepared: Prepared, request: TrainRequest) -> Choice:
    wanted = Wanted(prepared.loaded.config, prepared.data, prepared.resume, request.allow_config_change)
    return choose_folder(prepared.loaded, wanted)


def _lock(run: RunFolder, prepared: Prepared, request: TrainRequest) -> None:
    """Lock the folder that was chosen; CheckpointError: another process has taken it meanwhile."""
    run.lock()
    if _choose(prepared, request).folder != run.path:
        raise CheckpointError(f"another process has just trained {run.path}; give the command again")


def validate(prepared: Prepared, request: TrainRequest, run: RunFolder, line: str) -> Plan:
    """Check that the run of a locked folder can begin or continue; nothing but the corpus is written.

    Raises:
        GPTError: the configuration, the device, the checkpoint, the data or the memory do not suffice.
    """
    world, report, loaded = request.world, request.report, prepared.loaded
    point, base = world.rank_zero(lambda: _find_start(loaded.config, run, prepared.resume, report))
    keep_freed_memory()
    # a resumed run has the architecture and tokenizer too, and what it began with may be gone
    origin = None if loaded.config.train.init_from is None else point or base
    if origin is not None:
        loaded = with_architecture(loaded, origin)
    data = prepared.data or _prepare_data(request, loaded.config, origin)
    with world.together():
        data.check_length(loaded.config.model.block_size)
        # a padded vocabulary stays as large as it is
        config = resolve(loaded, data, origin.checkpoint.config.model.vocab_size or 0 if origin else 0)
        check_terms(config, prepared.compute.device)
        if point is not None:
            check_fits(point, config, data, request.allow_config_change)
            for notice in moved_runs(point.checkpoint.config, config).values():
                report(notice)
            steps, old = config.train.max_steps, point.checkpoint.config.train.max_steps
            if steps > old:
                report(f"{point.folder} continues to step {steps:,}, not {old:,}, at the rates of the longer schedule")
    return Plan(config, run, prepared.compute, data, point, base, line)


def _find_start(
    config: Config, run: RunFolder, resume: str | Path | None, report: Report
) -> tuple[ResumePoint | None, ResumePoint | None]:
    """Return the checkpoint to resume from, or else that to begin with, if there is one."""
    with announced(report, "reading the checkpoint"):
        point = find_resume_point(run, resume, report)
        return point, None if point is not None else resolve_init_from(config, runs_of(config))


def resolve(loaded: LoadedConfig, dataset: Dataset, least: int = 0) -> Config:
    """Return the configuration with the run's name and the vocabulary size, at `least` so large, filled in."""
    config, needed = loaded.config, dataset.tokenizer.vocab_size
    size = config.model.vocab_size or max(least, needed)
    if size < needed:
        raise ConfigError(f"model.vocab_size is {size}, but the tokenizer has {needed} ids; leave vocab_size out")
    model = config.model.model_copy(update={"vocab_size": size})
    run = config.run.model_copy(update={"name": loaded.name})
    return config.model_copy(update={"model": model, "run": run})


def _build(plan: Plan, request: TrainRequest) -> Trainer:
    """Build the trainer of a validated run, and create its folder last, when nothing else can reject the run.

    The order matters: native kernels replace blocks before DDP wraps the model; blocks are compiled for the device they
    are on; the training state is restored last, since building draws from the generators that it restores.
    """
    config, compute, world = plan.config, plan.compute, request.world
    run, train = config.run, config.train
    add_targets = add_targets_of(config, plan.dataset, compute, request.settings, world, request.report)
    with world.together():
        model = _build_model(plan)
        use_native_kernels(model, run, compute, request.settings, request.report)
    parallelism = parallelize(model, world, compute)
    optimizer = build_optimizer(model, config.optim, compute.device, compute.fast_dtype)
    kind = GraphedStepper if can_capture(config, compute, world, request.callbacks) else Stepper
    stepper = kind(model, optimizer, compute, config.optim.grad_clip, build_objective(train), parallelism)
    if run.compile:
        tokens = torch.zeros(train.batch_size // world.size, config.model.block_size, dtype=torch.int64)
        compile_blocks(model, lambda: stepper.gradients([(tokens, tokens)]), request.report)
    if world.rank > 0:
        seed_process(run.seed, world.rank)
    data = plan.dataset
    sampler = build_sampler(config.data.order, data.train, config.model.block_size, run.seed, data.text_ranges)
    rows, size = rows_of_process(train, world), train.batch_size // world.size
    batches = MicroBatches(sampler, train.sequences, size, rows, add_targets)
    compute_loss = evaluate if world.size == 1 else partial(evaluate_together, world)
    validation = Validation(config, model, plan.dataset, compute, compute_loss)
    trainer = Trainer(
        stepper=stepper,
        batches=batches,
        validation=validation,
        run_folder=plan.run,
        monitor=_build_monitor(plan, request),
        meter=SpeedMeter(config, compute, world.size),
        callbacks=CallbackGroup(request.callbacks, world),
    )
    if plan.resume_from is not None:
        restore(trainer, plan.resume_from)
    has_best = world.rank_zero(lambda: _create_folder(plan, trainer.state.best_step, request.report))
    if not has_best:
        trainer.state = trainer.state.without_best()
    request.report(_summary(trainer, plan))
    return trainer


def _build_model(plan: Plan) -> GPT:
    torch.manual_seed(plan.config.run.seed)
    model = GPT(plan.config.model)
    if plan.resume_from is not None:
        load_weights(model, plan.resume_from.checkpoint.model, plan.resume_from.folder)
    elif plan.init_from is not None:
        load_pretrained(model, plan.dataset.tokenizer, plan.init_from)
    return model


def _build_monitor(plan: Plan, request: TrainRequest) -> MonitorGroup:
    run, config, report, world = plan.run, plan.config, request.report, request.world
    if not world.is_main:
        return MonitorGroup([], report)
    monitors: list[Monitor] = [RunFiles(run), TensorBoard(run.path, config)]
    if request.display is not None:
        monitors.append(request.display)
    elif report is not silent and sys.stderr is not None:
        monitors.append(Console(config.train.max_steps, sys.stderr))
    return MonitorGroup(monitors, report)


def _create_folder(plan: Plan, best_step: int, report: Report) -> bool:
    """Create the folder, or prepare it for what is to come; return whether it has the best checkpoint so far."""
    if plan.line:
        report(plan.line)
    plan.run.create(plan.config)
    if plan.resume_from is None:
        return False
    plan.run.continue_from(plan.resume_from.folder, plan.resume_from.checkpoint.state)
    has_best = plan.run.restore_best(best_step)
    # a run that begins with the checkpoint of another one has none yet
    if not has_best and best_step >= 0 and plan.run.has(plan.resume_from.folder):
        report(
            f"warning: {plan.run.path} has lost its best checkpoint, that of step {best_step}; "
            "the next evaluation is the best one so far"
        )
    return has_best


def _summary(trainer: Trainer, plan: Plan) -> str:
    dataset, world, start = plan.dataset, trainer.world, "new run"
    if plan.resume_from is not None:
        start = f"resuming {plan.resume_from.folder}"
    elif plan.init_from is not None:
        start = f"beginning with {plan.init_from.folder}"
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    processes = f"{world.size} processes, each on " if world.size > 1 else ""
    return (
        f"{trainer.run_folder.path}: {start}; {parameters:,} parameters, {len(dataset.train):,} training and "
        f"{len(dataset.val):,} validation tokens; {processes}{plan.compute}"
        + (", compiled" if trainer.config.run.compile else "")
    )
