"""Carry out a plan: device, model, optimizer and run folder, to a trainer that is ready to run."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

import torch

from gpt.accounting.flops import training_flops
from gpt.accounting.machine import measure_matmul_rate, peak_memory_bytes
from gpt.checkpoint import RunFolder, load_weights
from gpt.config import Config
from gpt.data.batches import MicroBatches, build_sampler
from gpt.device import Compute
from gpt.distributed import World
from gpt.evaluation.loss import evaluate
from gpt.generation import TextBatch
from gpt.generation.runtime import DecodeOptions, build_runtime
from gpt.kernels.training.block import NativeBlock, use_native_blocks
from gpt.model import GPT
from gpt.system.environment import Settings, expand_home
from gpt.system.errors import DeviceError
from gpt.system.processor import supported_processors
from gpt.system.progress import Report, announced, silent
from gpt.training.callbacks import Callback, CallbackGroup
from gpt.training.compiling import compile_blocks, is_compiled, should_compile
from gpt.training.distillation import load_teacher
from gpt.training.monitor import Console, Monitor, MonitorGroup, RunFiles, SpeedMeter, TensorBoard
from gpt.training.objective import build_objective
from gpt.training.optimizers import build_optimizer
from gpt.training.parallel import evaluate_together, parallelize, rows_of_process
from gpt.training.plan import Plan, Request, plan_run
from gpt.training.replacing import keep_aside
from gpt.training.resume import load_pretrained, restore
from gpt.training.signals import SignalWatch
from gpt.training.snapshots import Snapshots
from gpt.training.step import Stepper
from gpt.training.trainer import Trainer
from gpt.training.training_state import seed_process
from gpt.training.validation import Validation


def open_session(request: Request, callbacks: Sequence[Callback] = (), display: Monitor | None = None) -> Trainer:
    """Plan a run and build its trainer; its folder stays locked until `Trainer.run` ends.

    A `display` replaces the console.

    Raises:
        GPTError: the run can neither begin nor continue; its folder is as it was.
    """
    run = RunFolder(expand_home(request.loaded.config.run.dir, "run.dir") / request.loaded.name)
    try:
        request.world.rank_zero(run.lock)
        return _build_trainer(plan_run(request, run), request, callbacks, display)
    except BaseException:
        run.unlock()
        raise


def _build_trainer(plan: Plan, request: Request, callbacks: Sequence[Callback], display: Monitor | None) -> Trainer:
    config, dataset, compute = plan.config, plan.dataset, plan.compute
    report, world, train = request.report, request.world, plan.config.train
    use_native = partial(_use_native_blocks, config=config, compute=compute, settings=request.settings)
    with world.together():
        teacher = None
        if plan.teacher is not None:
            teacher = load_teacher(plan.teacher, config, dataset, compute, partial(use_native, report=silent), report)
        model = _build_model(plan)
        use_native(model, report=report)
    forward, no_sync = parallelize(model, config.run.parallel, world, compute)
    optimizer = build_optimizer(model, config.optim, compute.device, compute.fast_dtype)
    objective = build_objective(train)
    stepper = Stepper(model, optimizer, compute, config.optim.grad_clip, objective, world, forward, no_sync)
    _compile_blocks(stepper, config, request)
    if world.rank > 0:
        seed_process(config.run.seed, world.rank)
    sampler = build_sampler(config.data.order, dataset.train, config.model.block_size, config.run.seed)
    rows, size = rows_of_process(train, world), train.batch_size // world.size
    batches = MicroBatches(sampler, train.sequences, size, rows)
    if teacher is not None:
        batches = replace(batches, complete=teacher.with_soft_targets)
    signals = SignalWatch(report, world)
    trainer = Trainer(
        config=config,
        model=model,
        dataset=dataset,
        compute=compute,
        stepper=stepper,
        batches=batches,
        validation=_build_validation(plan, model, signals, world),
        run_folder=plan.run,
        monitor=_build_monitor(plan, model, request, display) if world.is_main else Monitor(),
        meter=_build_meter(config, compute, world),
        signals=signals,
        report=report,
        world=world,
        callbacks=CallbackGroup(callbacks, world),
    )
    if plan.point is not None:
        restore(trainer, plan.point)
    world.rank_zero(lambda: _create_folder(plan, report))
    report(_summary(trainer, plan))
    return trainer


def _build_model(plan: Plan) -> GPT:
    torch.manual_seed(plan.config.run.seed)
    model = GPT(plan.config.model)
    if plan.point is not None:
        load_weights(model, plan.point.checkpoint.model, plan.point.folder)
    elif plan.base is not None:
        load_pretrained(model, plan.dataset.tokenizer, plan.base)
    return model


def _use_native_blocks(model: GPT, config: Config, compute: Compute, settings: Settings, report: Report) -> None:
    """Use native kernels if they are wanted and available; with `run.compile=true` only by their name."""
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


def _compile_blocks(stepper: Stepper, config: Config, request: Request) -> None:
    """Compile the blocks if that is wanted and works, unless native kernels compute them."""
    model, report = stepper.model, request.report
    if isinstance(model.h[0], NativeBlock):
        return
    processor = supported_processors(request.settings.processor)[0]
    if should_compile(config.run.compile, stepper.compute.device, processor, report):
        size = config.train.batch_size // request.world.size, config.model.block_size
        tokens = torch.zeros(size, dtype=torch.int64)
        with announced(report, "still compiling", seconds=10):
            compile_blocks(model, lambda: stepper.gradients([(tokens, tokens)]), config.run.compile is True, report)


def _build_validation(plan: Plan, model: GPT, signals: SignalWatch, world: World) -> Validation:
    config, dataset = plan.config, plan.dataset
    params = config.sample.params(max_new_tokens=config.train.sample_tokens)

    def write() -> Iterator[str]:
        runtime = build_runtime(model, DecodeOptions("eager"))
        return (chunk.text for chunk in TextBatch(runtime, dataset.tokenizer, [""], params))

    compute_loss = evaluate if world.size == 1 else partial(evaluate_together, world)
    return Validation(config, model, dataset, plan.compute, signals.check, compute_loss, write)


def _build_monitor(plan: Plan, model: GPT, request: Request, display: Monitor | None) -> Monitor:
    run, config, report = plan.run, plan.config, request.report
    monitors: list[Monitor] = [RunFiles(run), TensorBoard(run.path, config)]
    if display is not None:
        monitors.append(display)
    elif report is not silent and sys.stderr is not None:
        monitors.append(Console(config.train.max_steps, sys.stderr))
    is_sharded = request.world.size > 1 and config.run.parallel == "fsdp"  # no process has the whole model
    if config.run.snapshots and not is_sharded:
        monitors.append(Snapshots(run, config, model, plan.dataset, report))
    return MonitorGroup(monitors, report)


def _build_meter(config: Config, compute: Compute, world: World) -> SpeedMeter:
    tokens = config.train.sequences * config.model.block_size
    return SpeedMeter(
        tokens,
        cache(lambda length: training_flops(config.model, tokens // length, length)),
        lambda: world.size * measure_matmul_rate(compute.device, compute.dtype),
        lambda: peak_memory_bytes(compute.device),
    )


def _create_folder(plan: Plan, report: Report) -> None:
    # only now that nothing else refuses the run
    if plan.replaced is not None:
        keep_aside(plan.replaced, report)
    plan.run.create(plan.config)
    if plan.point is not None:
        plan.run.continue_from(plan.point.folder, plan.point.checkpoint.state)


def _summary(trainer: Trainer, plan: Plan) -> str:
    dataset, world, start = trainer.dataset, trainer.world, "new run"
    if plan.point is not None:
        start = f"resuming {plan.point.folder}"
    elif plan.base is not None:
        start = f"beginning with {plan.base.folder}"
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    processes = f"{world.size} processes ({trainer.config.run.parallel}), each on " if world.size > 1 else ""
    return (
        f"{trainer.run_folder.path}: {start}; {parameters:,} parameters, {len(dataset.train):,} training and "
        f"{len(dataset.val):,} validation tokens; {processes}{trainer.compute}"
        + (", compiled" if is_compiled(trainer.model) else "")
    )
