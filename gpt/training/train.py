"""Build a trainer from a configuration: find the run, prepare the data, check, and build."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch

from gpt.checkpoint import RunFolder, load_weights
from gpt.config import Config
from gpt.config.sources import LoadedConfig
from gpt.data.batches import Field, MicroBatches, Sampler, build_sampler
from gpt.data.dataset import Dataset
from gpt.data.item_batches import ItemSampler
from gpt.data.pairs import TURN
from gpt.data.preparation import check_length, prepare
from gpt.data.recognition import is_grouped
from gpt.data.tokenizers import Tokenizer
from gpt.model import GPT
from gpt.system.device import Compute, choose_compute, setup_process
from gpt.system.distributed import World
from gpt.system.environment import Settings
from gpt.system.errors import ConfigError
from gpt.system.processor import supported_processors
from gpt.system.progress import Report
from gpt.training.acceleration import compile_blocks, load_wanted_kernels
from gpt.training.callbacks import Callback, CallbackGroup
from gpt.training.distillation import teacher_fields
from gpt.training.graphed_step import GraphedStepper, can_capture
from gpt.training.loss import evaluate
from gpt.training.monitor import Monitor, MonitorGroup, RunFiles, SpeedMeter, TensorBoard
from gpt.training.naming import WantedRun, claim_folder
from gpt.training.native_step import NativeStepper, uncovered_objective
from gpt.training.objective import build_objective
from gpt.training.optimizers import build_optimizer
from gpt.training.parallel import (
    check_parallel,
    evaluate_together,
    parallelize,
    rows_of_process,
)
from gpt.training.resume import (
    InitFrom,
    New,
    Resume,
    Start,
    check_fits,
    find_resumed,
    find_start,
    load_pretrained,
    moved_runs,
    restore,
    runs_of,
    with_architecture,
)
from gpt.training.schedule import fit_schedule
from gpt.training.step import Stepper
from gpt.training.term_checks import check_terms
from gpt.training.trainer import Trainer
from gpt.training.training_state import seed_process
from gpt.training.validation import Validation


@dataclass(frozen=True)
class Host:
    """Where a training runs, and where its messages go.

    Attributes:
        settings: the settings from environment variables.
        report: takes lines for the user; silent in all processes but rank 0.
        world: the processes that train together.
    """

    settings: Settings
    report: Report
    world: World = World()  # noqa: RUF009  # a World is never changed, so that hosts may share it


def build_trainer(
    loaded: LoadedConfig,
    host: Host,
    *,
    resume: str | None = None,
    allow_config_change: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: Monitor | None = None,
) -> Trainer:
    """Build a trainer that is ready to run; its folder stays locked until `Trainer.run` ends.

    Everything that can reject the run is checked before the folder is written. Until then only the
    encoded corpus is written to disk.

    Args:
        resume: a run or a checkpoint to continue from, see `find_checkpoint`; `auto` for the newest
            checkpoint of the run, if there is one; or None for a new run.
        allow_config_change: whether to resume even if the configuration differs from the
            checkpoint's.
        callbacks: called during the training, see `CallbackGroup`.
        progress: shows the metrics to the user.

    Raises:
        GPTError: the run can neither begin nor continue; its folder is as it was.
    """
    # Several processes run this function. If one of them fails inside `together`, for example
    # because it has no GPU, all of them end. `rank_zero` runs a function in the process of rank 0
    # only, and returns its result in all processes.
    world = host.world
    config = _check_config(loaded, host)
    with world.together():
        compute = _choose_compute(config, host)
    runs = runs_of(config)
    # The folder of a checkpoint; or `auto`, if it is looked for once the run's folder is known; or
    # None for a new run.
    resumed = world.rank_zero(lambda: find_resumed(resume, runs))
    # The text is prepared before the folder is chosen: if the run of that name was trained on
    # another text, this run gets a new folder. With `train.init_from` the text is encoded later,
    # since the tokenizer comes from the checkpoint, which is read after the folder is chosen.
    data = None
    if config.train.init_from is None:
        data = _prepare_data(config, host)
    wanted = WantedRun(loaded, config, data, resumed, allow_config_change)
    # From here on the folder is locked, so that no other process trains this run.
    run, note_on_folder = claim_folder(wanted, world)
    try:
        start = world.rank_zero(lambda: find_start(config, run, resumed, host.report))
        if data is None:
            # `train.init_from` is given, so that the run begins with a checkpoint: the one that
            # this key names, or the last one of this run if the run is resumed.
            assert not isinstance(start, New)
            config = with_architecture(config, start)
            data = _prepare_data(config, host, start.checkpoint.tokenizer)
        with world.together():
            config = fill_in(config, data, _saved_vocab_size(config, start))
            check_length(data, config.data, host.settings, config.model.block_size)
            _check_fit(config, data, start, compute, allow_config_change)
        _report_changes(start, config, host.report)
        _warn_if_sorted_text(config, data, host.report)

        # Most checks are done. So the settings of the process, such as torch's number of threads,
        # may be changed now, and work that takes long may begin.
        setup_process(config.run.threads, compute.device, world.launch)
        # With `train.teacher` each batch also has the teacher's predictions as a field.
        fields = teacher_fields(config, data, compute, host.settings, world, host.report)
        batches = _build_batches(config, data, world, fields)
        with world.together():
            model = _build_model(config, data.tokenizer, start)
        stepper = _build_stepper(model, config, compute, host, callbacks, batches)
        trainer = Trainer(
            config=config,
            model=model,
            dataset=data,
            compute=compute,
            world=world,
            report=host.report,
            stepper=stepper,
            batches=batches,
            validation=_build_validation(config, model, data, compute, world),
            run_folder=run,
            monitor=_build_monitor(config, run, host, progress),
            meter=SpeedMeter(config, compute, world.size),
            callbacks=CallbackGroup(callbacks, world),
        )
        # The state is restored after all parts are built: building the model draws from torch's
        # random generators, and their states are restored too.
        if isinstance(start, Resume):
            restore(trainer, start)
        # All checks have passed, and the folder is written next. So this is the time to tell the
        # user if the run has another folder than the one that was named.
        if note_on_folder:
            host.report(note_on_folder)
        has_best = world.rank_zero(lambda: _write_folder(trainer, start))
        # A new run has no best checkpoint yet, and a resumed one may have lost it. The next
        # evaluation then counts as the best.
        if not has_best:
            trainer.state = trainer.state.without_best()
    except BaseException:
        run.unlock()  # even after Ctrl-C, so that another training may use the run
        raise
    host.report(_summary(trainer, start))
    return trainer


def _check_config(loaded: LoadedConfig, host: Host) -> Config:
    """Make the checks that need no data, and report the keys that have no effect.

    Return the configuration with the run's name, and with a warmup that is shorter than the run.
    """
    config = loaded.named_config
    check_parallel(config, host.world)
    for key, message in config.without_effect():
        host.report(f"{key}: {message}")
    return fit_schedule(config, host.report)


def _choose_compute(config: Config, host: Host) -> Compute:
    processor = supported_processors(host.settings.processor)[0]  # the fastest class
    run = config.run
    return choose_compute(run.device, run.dtype, host.report, processor, host.world.launch)


def _prepare_data(config: Config, host: Host, tokenizer: Tokenizer | None = None) -> Dataset:
    """Return the encoded corpus; rank 0 encodes it, and the others find it on disk."""
    return host.world.rank_zero_first(
        lambda: prepare(config.data, host.settings, host.report, tokenizer)
    )


def _saved_vocab_size(config: Config, start: Start) -> int:
    """Return the vocabulary size of the model that `train.init_from` names, or 0 if there is none.

    The run keeps this size even if it was padded to a round number, since the embedding of the
    pretrained model has as many rows.
    """
    if config.train.init_from is None or isinstance(start, New):
        return 0
    # If the run is resumed, this is a checkpoint of the run itself. Its vocabulary is as large,
    # since the run began with the model of `train.init_from`.
    return start.checkpoint.config.model.vocab_size or 0


def fill_in(config: Config, data: Dataset, min_vocab_size: int = 0) -> Config:
    """Return the configuration with `model.vocab_size` filled in.

    For a corpus of items, the ids at which a sample begins and ends are filled in too.

    Args:
        min_vocab_size: the size of the vocabulary of a pretrained model, or 0. It may be larger
            than that of the tokenizer, since it may be padded.
    """
    num_ids = data.tokenizer.vocab_size
    # A size that is given is kept. If it is larger than needed, the vocabulary is padded.
    size = config.model.vocab_size or max(min_vocab_size, num_ids)
    if size < num_ids:
        raise ConfigError(
            f"model.vocab_size is {size}, but the tokenizer has {num_ids} ids; leave vocab_size out"
        )
    model = config.model.model_copy(update={"vocab_size": size})
    sample = config.sample
    if data.items is not None:
        # The end of one item is also the beginning of the next one.
        sample_values: dict[str, Any] = {"begin_id": data.items.end, "end_id": data.items.end}
        # An answer also ends where the next turn of a conversation would begin. The configuration
        # of a resumed run already has this mark.
        if data.items.turn is not None and TURN not in sample.stop:
            sample_values["stop"] = (*sample.stop, TURN)
        sample = sample.model_copy(update=sample_values)
    return config.model_copy(update={"model": model, "sample": sample})


def _check_fit(
    config: Config, data: Dataset, start: Start, compute: Compute, allow_config_change: bool
) -> None:
    """Raise a GPTError unless the filled-in configuration, the data and the start fit together."""
    check_terms(config, compute.device)
    if isinstance(start, Resume):
        check_fits(start, config, data, allow_config_change)


def _report_changes(start: Start, config: Config, report: Report) -> None:
    """Report the harmless differences between a resumed run and its checkpoint."""
    if not isinstance(start, Resume):
        return
    saved_config = start.checkpoint.config
    # The runs that `train.init_from` and `train.teacher` name may have been moved meanwhile.
    for line in moved_runs(saved_config, config).values():
        report(line)
    new_steps = config.train.max_steps
    old_steps = saved_config.train.max_steps
    if new_steps > old_steps:
        report(
            f"{start.folder} continues to step {new_steps:,}, not {old_steps:,}, at the rates of "
            "the longer schedule"
        )


def _warn_if_sorted_text(config: Config, data: Dataset, report: Report) -> None:
    """Warn if the validation split, which is the end of the text, differs from the rest.

    It does so in a sorted text. The items of a list are shuffled, so that they need no warning.
    """
    if data.items is None and is_grouped(data):
        report(
            "warning: the validation split has other characters than the rest of the corpus, as in "
            "a sorted or grouped text; a list trains better with data.items=lines, and any text "
            "with a validation file of its own"
        )


def _build_model(config: Config, tokenizer: Tokenizer, start: Start) -> GPT:
    """Build the model with random weights or those of a checkpoint.

    The model is built on the CPU, so that a seed gives the same weights for every device.
    """
    torch.manual_seed(config.run.seed)
    model = GPT(config.model)
    if isinstance(start, Resume):
        load_weights(model, start.checkpoint.model, start.folder)
    elif isinstance(start, InitFrom):
        load_pretrained(model, tokenizer, start)
    return model


def _build_stepper(
    model: GPT,
    config: Config,
    compute: Compute,
    host: Host,
    callbacks: Sequence[Callback],
    batches: MicroBatches,
) -> Stepper:
    """Move the model to the device, and build the stepper that updates it.

    The order matters: `parallelize` moves the model to the device, and the blocks must be there
    before they are compiled.
    """
    world = host.world
    objective = build_objective(config.train)
    uncovered = uncovered_objective(objective)  # a loss term that native kernels cannot compute
    with world.together():
        native = load_wanted_kernels(
            model, config.run, compute, host.settings, host.report, uncovered
        )
    parallelism = parallelize(model, world, compute)
    optimizer = build_optimizer(model, config.optim, compute.device, compute.fast_dtype)
    if native is None:
        # The first step of an optimizer of torch imports this module, which takes a second. The
        # import is made here, so that the measured speed of the first steps does not include it.
        # Native kernels make the updates themselves.
        import_module("torch._dynamo")
    grad_clip = config.optim.grad_clip
    stepper: Stepper
    if native is not None:
        stepper = NativeStepper(native, optimizer, compute, grad_clip, objective, parallelism)
    elif can_capture(config, compute, world, callbacks):
        stepper = GraphedStepper(model, optimizer, compute, grad_clip, objective, parallelism)
    else:
        stepper = Stepper(model, optimizer, compute, grad_clip, objective, parallelism)
    if config.run.compile:
        # torch compiles for the shapes of the first batch that it sees. So the example has the
        # shape of the micro-batches of this process.
        compile_blocks(model, lambda: stepper.gradients([batches.example()]), host.report)
    # All processes were seeded alike, to draw the same initial weights. From here on they need
    # seeds of their own, since they read different sequences, whose dropout has to differ.
    if world.rank > 0:
        seed_process(config.run.seed, world.rank)
    return stepper


def _build_batches(
    config: Config, data: Dataset, world: World, fields: Mapping[str, Field]
) -> MicroBatches:
    """Build the reader of batches, which have windows of a text or whole items of a list.

    Args:
        fields: what a batch has besides inputs and targets, such as the predictions of
            `train.teacher`; see `MicroBatches`.
    """
    block_size = config.model.block_size
    seed = config.run.seed
    sampler: Sampler
    if data.items is None:
        sampler = build_sampler(config.data.order, data.train, block_size, seed, data.text_ranges)
    else:
        sampler = ItemSampler(data.train, block_size, seed, data.items)
    train = config.train
    # `train.batch_size` is the number of sequences that all processes together read in a
    # micro-batch; `train.sequences` is their number in a whole step.
    size_per_process = train.batch_size // world.size
    rows = rows_of_process(train, world)
    return MicroBatches(sampler, train.sequences, size_per_process, rows, fields)


def _build_validation(
    config: Config, model: GPT, data: Dataset, compute: Compute, world: World
) -> Validation:
    compute_loss = evaluate if world.size == 1 else partial(evaluate_together, world)
    return Validation(config, model, data, compute, compute_loss)


def _build_monitor(
    config: Config, run: RunFolder, host: Host, progress: Monitor | None
) -> MonitorGroup:
    """Build the monitors, which only rank 0 has; its metrics are those of all processes."""
    monitors: list[Monitor] = []
    if host.world.is_main:
        monitors += [RunFiles(run), TensorBoard(run.path, config)]
        if progress is not None:
            monitors.append(progress)
    return MonitorGroup(monitors, host.report)


def _write_folder(trainer: Trainer, start: Start) -> bool:
    """Write the run's folder, and prepare that of a resumed run for the steps to come.

    Return whether the folder has the checkpoint with the lowest validation loss so far.
    """
    run = trainer.run_folder
    run.create(trainer.config)
    if not isinstance(start, Resume):
        return False  # a new run has saved nothing yet
    # This removes the samples and snapshots of later steps, which the run is going to repeat.
    run.continue_from(start.folder, start.checkpoint.state)
    best_step = trainer.state.best_step
    # A process that was killed while it saved may have left an older step in best.json.
    has_best = run.restore_best(best_step)
    was_evaluated = best_step >= 0  # -1 stands for a run that was not evaluated yet
    # If the run continues a checkpoint of another run in a new folder, that folder never had the
    # best checkpoint, so that nothing is lost.
    is_lost = was_evaluated and not has_best and run.has(start.folder)
    if is_lost:
        trainer.report(
            f"warning: {run.path} has lost its best checkpoint, that of step {best_step}; "
            "the next evaluation is the best one so far"
        )
    return has_best


def _summary(trainer: Trainer, start: Start) -> str:
    """Return the line that tells the user what is trained, on which data, and where."""
    origin = "new run"
    if isinstance(start, Resume):
        origin = f"resuming {start.folder}"
    elif isinstance(start, InitFrom):
        origin = f"beginning with {start.folder}"
    num_parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    data = trainer.dataset
    hardware = str(trainer.compute)  # the device, its number of threads and the dtype
    if trainer.world.size > 1:
        hardware = f"{trainer.world.size} processes, each on {hardware}"
    if trainer.config.run.compile:
        hardware += ", compiled"
    return (
        f"{trainer.run_folder.path}: {origin}; {num_parameters:,} parameters, {len(data.train):,} "
        f"training and {len(data.val):,} validation tokens; {hardware}"
    )
