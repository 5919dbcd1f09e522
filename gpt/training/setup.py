"""Set up a trainer from a configuration, fresh or resumed."""

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from gpt.accounting.disk import require_disk
from gpt.accounting.memory_limits import require_training_memory
from gpt.checkpoint import RunFolder, load_weights
from gpt.config import Config, LoadedConfig
from gpt.corpora import prepare
from gpt.data import Dataset
from gpt.data.batches import BatchSampler
from gpt.device import Compute, choose_compute, keep_freed_memory
from gpt.distributed import World
from gpt.environment import Settings, expand_home
from gpt.errors import ConfigError, DeviceError
from gpt.inspection.rendering.pictures import require_matplotlib
from gpt.kernels.training.block import NativeBlock, use_native_blocks
from gpt.model import GPT
from gpt.processor import Processor, supported_processors
from gpt.progress import Report, announced, in_notebook, silent
from gpt.training.callbacks import Callback
from gpt.training.compiling import compile_blocks, is_compiled, should_compile
from gpt.training.finetuning import base_tokenizer, begin_with, find_base, with_architecture
from gpt.training.incidents import MAX_SKIPPED
from gpt.training.live_curve import LiveCurve
from gpt.training.monitor import (
    Console,
    IncidentsFile,
    MetricsFile,
    Monitor,
    MonitorGroup,
    SampleFiles,
    TensorBoard,
)
from gpt.training.objective import Distillation, cross_entropy
from gpt.training.optimizers import build_optimizer
from gpt.training.parallel import check_parallel, parallelize
from gpt.training.resume import ResumePoint, check_fits, find_resume_point, warn_of_copy
from gpt.training.schedule import fit_schedule
from gpt.training.step import Stepper
from gpt.training.teacher import Teacher, load_teacher
from gpt.training.trainer import Trainer
from gpt.training.training_state import seed_process


def open_session(
    loaded: LoadedConfig,
    settings: Settings,
    report: Report,
    resume: str | None = None,
    allow_config_change: bool = False,
    world: World = World(),  # noqa: B008  # without state
    callbacks: Sequence[Callback] = (),
) -> Trainer:
    """Prepare data, model and run folder; nothing is written into the run folder until everything is checked.

    The run folder stays locked until `Trainer.run` ends.

    Args:
        loaded: the configuration.
        settings: the environment's settings.
        report: takes lines for the user.
        resume: see `find_resume_point`.
        allow_config_change: resume even if the configuration differs from the checkpoint's.
        world: the processes that train together; the others take the checkpoint from rank 0.
        callbacks: see `Trainer`.

    Raises:
        GPTError: the data, device, run folder or checkpoint cannot be used.
    """
    check_parallel(loaded.config, world)
    run = RunFolder(expand_home(loaded.config.run.dir, "run.dir") / loaded.name)
    world.on_main(run.lock)
    try:
        fitted = replace(loaded, config=fit_schedule(loaded.config, report))
        return _build_trainer(fitted, run, settings, report, resume, allow_config_change, world, callbacks)
    except BaseException:
        run.unlock()
        raise


def _build_trainer(
    loaded: LoadedConfig,
    run: RunFolder,
    settings: Settings,
    report: Report,
    resume: str | None,
    allow_config_change: bool,
    world: World,
    callbacks: Sequence[Callback],
) -> Trainer:
    processor = supported_processors(settings.processor)[0]
    compute = world.agreed(lambda: choose_compute(loaded.config.run, report, processor, world.launch))
    point, base = world.on_main(lambda: _find_beginning(loaded, run, resume, report))
    keep_freed_memory()
    config, dataset = world.main_first(lambda: prepare_run(loaded, base, settings, report))
    world.agreed(lambda: require_training_memory(config, compute, world.size))
    if point is not None:
        check_fits(point, config, dataset, allow_config_change)
    teacher = load_teacher(
        loaded, dataset, compute, lambda model: _use_native_blocks(model, config, compute, settings, silent), report
    )
    model = _build_model(config, dataset, point, base)
    world.agreed(lambda: _use_native_blocks(model, config, compute, settings, report))
    parallel = parallelize(model, config.run.parallel, world, compute)
    optimizer = build_optimizer(model, config.optim, compute.device, compute.fast_dtype)
    optimizer.check_restorable()
    skips = MAX_SKIPPED if config.train.on_nonfinite == "skip" else 0
    objective = cross_entropy if teacher is None else Distillation(config.train.teacher_weight)
    stepper = Stepper(model, optimizer, compute, config.optim.grad_clip, skips, parallel, world, objective)
    _compile_blocks(stepper, config, dataset, teacher, processor, report)
    if world.rank > 0:
        seed_process(config.run.seed, world.rank)
    monitor = _build_monitor(run, config, report) if world.is_main else Monitor()
    trainer = Trainer(config, model, dataset, compute, stepper, run, monitor, report, world, teacher, callbacks)
    if point is not None:
        trainer.restore(point.checkpoint)
    world.on_main(lambda: _create_folder(run, config, point))
    report(_summary(trainer, point, base))
    return trainer


def _find_beginning(
    loaded: LoadedConfig, run: RunFolder, resume: str | None, report: Report
) -> tuple[ResumePoint | None, ResumePoint | None]:
    """Return the checkpoint to resume from, and the one to begin with, if any."""
    warn_of_copy(loaded.folder, run, resume, report)
    with announced(report, "reading the checkpoint"):
        point = find_resume_point(run, resume, loaded.config, report)
        if loaded.config.train.attention_interval:
            require_matplotlib()
        return point, find_base(loaded.config, run.path.parent, point)


def _create_folder(run: RunFolder, config: Config, point: ResumePoint | None) -> None:
    require_disk(run.path, config, checkpoints=2 if point is None else 1)
    run.create(config)
    if point is not None:
        run.continue_from(point.folder, point.checkpoint.state)


def prepare_run(
    loaded: LoadedConfig, base: ResumePoint | None, settings: Settings, report: Report
) -> tuple[Config, Dataset]:
    """Return the resolved configuration of a run, and its data.

    Args:
        loaded: the configuration.
        base: the checkpoint that gives architecture and tokenizer, if any.
        settings: the environment's settings.
        report: takes lines for the user.

    Raises:
        GPTError: the data cannot be used, or the configuration contradicts them or the checkpoint.
    """
    if base is not None:
        loaded = with_architecture(loaded, base)
    add_characters = loaded.config.train.init_new_characters == "add"
    dataset = prepare(loaded.config.data, settings, report, False, base_tokenizer(base), add_characters)
    dataset.check_length(loaded.config.model.block_size)
    return resolve(loaded, dataset), dataset


def _build_model(config: Config, dataset: Dataset, point: ResumePoint | None, base: ResumePoint | None) -> GPT:
    """Build the model on the CPU, with the weights of a checkpoint, if any."""
    torch.manual_seed(config.run.seed)
    model = GPT(config.model)
    if point is not None:
        load_weights(model, point.checkpoint.model, point.folder)
    elif base is not None:
        begin_with(model, dataset.tokenizer, base)
    return model


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


def _use_native_blocks(model: GPT, config: Config, compute: Compute, settings: Settings, report: Report) -> None:
    """Use native kernels if they are wanted and available.

    With `run.compile=true`, `run.kernels=auto` means torch's blocks.

    Raises:
        DeviceError: they are asked for by name and not available.
    """
    run = config.run
    if run.kernels == "native" and run.compile is True:
        raise DeviceError("run.compile is true, but torch does not compile native kernels; set run.kernels=torch")
    if run.kernels == "native" or (run.kernels == "auto" and run.compile is not True and compute.device.type == "cpu"):
        try:
            instructions = use_native_blocks(model, compute, settings, report)
            report(f"training blocks by native kernels ({instructions})")
        except DeviceError as error:
            if run.kernels == "native":
                raise DeviceError(f"run.kernels is native, but {error}; set run.kernels=auto or torch") from None
            report(f"training with PyTorch's operators: {error}")


def _compile_blocks(
    stepper: Stepper,
    config: Config,
    dataset: Dataset,
    teacher: Teacher | None,
    processor: Processor,
    report: Report,
) -> None:
    """Compile the blocks if that is wanted and works, unless native kernels compute them.

    Raises:
        DeviceError: it is asked for and does not work.
    """
    model = stepper.model
    if isinstance(model.h[0], NativeBlock):
        return
    if should_compile(config.run.compile, stepper.compute.device, processor, report):
        # from a sampler of its own, so that the run's batches stay the same
        sampler = BatchSampler(dataset.train, config.model.block_size, seed=0)
        batch = sampler.get_batch(config.train.batch_size // stepper.world.size)
        taught = batch if teacher is None else teacher.teach(batch, sampler.starts)
        with announced(report, "still compiling", seconds=10):
            compile_blocks(model, lambda: stepper.gradients([taught]), config.run.compile is True, report)


def _build_monitor(run: RunFolder, config: Config, report: Report) -> Monitor:
    files = [MetricsFile(run.metrics), IncidentsFile(run.incidents), SampleFiles(run.samples)]
    display = [] if report is silent else _build_display(run.path.name, config.train.max_steps)
    return MonitorGroup([*files, TensorBoard(run.path, config), *display], report)


def _build_display(name: str, max_steps: int) -> list[Monitor]:
    """Return what shows the progress: a live curve in a notebook, else a bar or lines, if there is a place for them."""
    if in_notebook():
        return [LiveCurve(name, max_steps)]
    return [] if sys.stderr is None else [Console(max_steps, sys.stderr)]


def _summary(trainer: Trainer, point: ResumePoint | None, base: ResumePoint | None) -> str:
    config, dataset, world = trainer.config, trainer.dataset, trainer.world
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    tokens = config.train.batch_size * config.train.grad_accum_steps * config.model.block_size
    start = f"resuming {point.folder}" if point else f"beginning with {base.folder}" if base else "new run"
    processes = f"{world.size} processes ({config.run.parallel}), each on " if world.size > 1 else ""
    return (
        f"{trainer.run_folder.path}: {start}; {parameters:,} parameters, {len(dataset.train):,} training and "
        f"{len(dataset.val):,} validation tokens, vocabulary of {config.model.vocab_size}; {tokens:,} tokens a step; "
        f"{processes}{trainer.compute}" + (", compiled" if is_compiled(trainer.model) else "")
    )
