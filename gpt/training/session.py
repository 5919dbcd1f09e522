"""From a configuration to a trainer that is ready to run, fresh or resumed."""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from gpt.accounting.limits import require_training_memory
from gpt.allocator import keep_freed_memory
from gpt.checkpoint import RunFolder, load_weights
from gpt.config import Config, LoadedConfig, RunConfig
from gpt.data import BatchSampler, Dataset, prepare
from gpt.device import Compute, choose_compile, choose_compute
from gpt.errors import ConfigError, DeviceError
from gpt.inspection.rendering.pictures import require_matplotlib
from gpt.kernels.training.block import use_native_blocks
from gpt.model import GPT
from gpt.processor import supported_processors
from gpt.report import Report
from gpt.settings import Settings
from gpt.training.compiling import compile_blocks
from gpt.training.monitor import Console, MetricsFile, Monitor, MonitorGroup, SampleFiles, TensorBoard
from gpt.training.optimizers import build_optimizer
from gpt.training.resume import ResumePoint, check_fits, find_resume_point
from gpt.training.step import Stepper
from gpt.training.trainer import Trainer


def open_session(
    loaded: LoadedConfig,
    settings: Settings,
    report: Report,
    resume: str | None = None,
    allow_config_change: bool = False,
) -> Trainer:
    """Prepare data, model and run folder. Nothing is written into the run folder before everything fits.

    Args:
        loaded: the configuration.
        settings: from the environment.
        report: takes lines for the user.
        resume: see `find_resume_point`.
        allow_config_change: go on although the configuration differs from the checkpoint's.

    Raises:
        GPTError: the data, device, run folder or checkpoint cannot be used.
    """
    run = RunFolder(Path(loaded.config.run.dir) / loaded.name)
    compute = choose_compute(
        loaded.config.run.model_copy(update={"compile": False}),  # chosen further down
        report,
        supported_processors(settings.processor)[0],
    )
    point = find_resume_point(run, resume, loaded.config, report)
    if loaded.config.train.attention_interval:
        require_matplotlib()
    keep_freed_memory()
    dataset = prepare(loaded.config.data, settings, report)
    dataset.check_length(loaded.config.model.block_size)
    config = resolve(loaded, dataset)
    require_training_memory(config, compute)
    if point is not None:
        check_fits(point, config, dataset, allow_config_change)
    torch.manual_seed(config.run.seed)
    model = GPT(config.model).to(compute.device)
    if point is not None:
        load_weights(model, point.checkpoint.model, point.folder)
    compute = _choose_blocks(model, config.run, compute, settings, report)
    optimizer = build_optimizer(model, config.optim, compute.device, compute.fast_dtype)
    stepper = Stepper(model, optimizer, compute, config.optim.grad_clip)
    if compute.compile:
        report("compiling: half a minute the first time, seconds when it is cached")
        _compile(model, stepper, config, dataset, report)
    trainer = Trainer(config, model, dataset, compute, stepper, run, Monitor(), report)
    if point is not None:
        trainer.restore(point.checkpoint)
    run.create(config)
    trainer.monitor = _build_monitor(run, config, trainer.state.step, report)
    report(_summary(config, model, dataset, compute, run, point))
    return trainer


def resolve(loaded: LoadedConfig, dataset: Dataset) -> Config:
    """The configuration with the vocabulary size and the run's name filled in.

    Raises:
        ConfigError: `model.vocab_size` is given and too small for the tokenizer.
    """
    config, needed = loaded.config, dataset.tokenizer.vocab_size
    size = config.model.vocab_size or needed
    if size < needed:
        raise ConfigError(f"model.vocab_size is {size}, but the tokenizer has {needed} ids; leave vocab_size out")
    model = config.model.model_copy(update={"vocab_size": size})
    run = config.run.model_copy(update={"name": loaded.name})
    return config.model_copy(update={"model": model, "run": run})


def _choose_blocks(model: GPT, run: RunConfig, compute: Compute, settings: Settings, report: Report) -> Compute:
    """Native kernels where they are wanted and possible, else compiled blocks, else blocks as they are.

    Raises:
        DeviceError: what was asked for by name cannot be had.
    """
    if run.kernels == "native" or (run.kernels == "auto" and compute.device.type == "cpu"):
        try:
            instructions = use_native_blocks(model, compute, settings, report)
            report(f"training blocks by native kernels ({instructions})")
            return compute
        except DeviceError as error:
            if run.kernels == "native":
                raise DeviceError(f"run.kernels is native, but {error}; set run.kernels=auto or torch") from None
            report(f"no native kernels: {error}")
    return replace(
        compute,
        compile=choose_compile(run.compile, compute.device, report, supported_processors(settings.processor)[0]),
    )


def _compile(model: GPT, stepper: Stepper, config: Config, dataset: Dataset, report: Report) -> None:
    """Compile on a batch of the right shape, drawn from a sampler that is thrown away."""
    batch = BatchSampler(dataset.train, config.model.block_size, seed=0).get_batch(config.train.batch_size)
    compile_blocks(model, lambda: stepper.gradients([batch]), config.run.compile is True, report)


def _build_monitor(run: RunFolder, config: Config, step: int, report: Report) -> Monitor:
    return MonitorGroup(
        [
            MetricsFile(run.metrics, step),
            TensorBoard(run.path, config, step),
            SampleFiles(run.samples),
            Console(config.train.max_steps, step, sys.stderr),
        ],
        report,
    )


def _summary(
    config: Config, model: GPT, dataset: Dataset, compute: Compute, run: RunFolder, point: ResumePoint | None
) -> str:
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = config.train.batch_size * config.train.grad_accum_steps * config.model.block_size
    begin = f"resuming {point.folder}" if point else "new run"
    return (
        f"{run.path}: {begin}; {parameters:,} parameters, {len(dataset.train):,} training and {len(dataset.val):,} "
        f"validation tokens, vocabulary {config.model.vocab_size}; {tokens:,} tokens a step; {compute}"
    )
