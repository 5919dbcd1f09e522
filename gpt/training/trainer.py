"""The training loop: update, evaluate, save, until the last step or a signal."""

from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gpt.checkpoint import Checkpoint, RunFolder, weights_of
from gpt.config import Config
from gpt.config.plugins import used_plugins
from gpt.data.batches import MicroBatches
from gpt.data.dataset import Dataset
from gpt.model import GPT
from gpt.system.device import Compute
from gpt.system.distributed import World
from gpt.system.errors import CheckpointError, NonFiniteError
from gpt.system.progress import Report, announce_if_slow
from gpt.training.callbacks import (
    CallbackGroup,
    CheckpointEvent,
    CloseEvent,
    EndEvent,
    EvaluationEvent,
    GradientEvent,
    StartEvent,
    StepEvent,
)
from gpt.training.monitor import MonitorGroup, SpeedMeter
from gpt.training.schedule import learning_rate, sequence_length
from gpt.training.signals import Interrupted, SignalWatch
from gpt.training.step import Stepper, StepResult
from gpt.training.training_state import Generators, TrainingState, mix_seeds, seed_process
from gpt.training.validation import Poll, Validation


class Stateful(Protocol):
    """A part of a training whose state a checkpoint has."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> object: ...


@dataclass(eq=False, repr=False)  # otherwise a printed event would print the whole trainer
class Trainer:
    """Trains one model in one run folder; `gpt.training.train.build_trainer` builds a trainer.

    Attributes:
        config: the configuration, with the run's name and the vocabulary size filled in.
        model: the model in training mode, on the device.
        world: the processes that train together.
        report: takes lines for the user.
        run_folder: the locked folder of the run; `run` unlocks it at its end.
    """

    config: Config
    model: GPT
    dataset: Dataset
    compute: Compute
    world: World
    report: Report
    stepper: Stepper
    batches: MicroBatches
    validation: Validation
    run_folder: RunFolder
    monitor: MonitorGroup
    meter: SpeedMeter
    callbacks: CallbackGroup
    state: TrainingState = field(default_factory=TrainingState)

    @property
    def stateful(self) -> dict[str, Stateful]:
        """The parts whose states a checkpoint has besides weights and counters, by name."""
        return {
            "optimizer": self.stepper.optimizer,
            "scaler": self.stepper.scaler,
            "sampler": self.batches.sampler,
            "generators": Generators(self.world, self.compute.device, self._reseed),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the training state of a checkpoint, whose weights the model already has.

        A damaged state may raise errors of many types, which `gpt.training.resume.restore` turns
        into a CheckpointError.
        """
        self.state = TrainingState.from_dict(checkpoint.state)
        for name, part in self.stateful.items():
            part.load_state_dict(checkpoint.training[name])
        # An optimizer loads an empty state without an error. Its moments would then begin at 0, as
        # in a new run, and the steps would differ from those of an uninterrupted run.
        if self.state.step > 0 and not self.stepper.optimizer.has_moments:
            raise ValueError("the optimizer state is empty")

    def _reseed(self) -> None:
        """Seed torch's generators anew if their saved states do not fit; see `Generators`.

        The seed depends on the step, so that dropout does not repeat the masks of the first steps.
        """
        seed_process(self.config.run.seed, self.world.rank, self.state.step)
        if self.config.model.has_dropout:
            self.report(
                "another number of processes, or a run on another kind of device, saved the "
                "checkpoint: the random numbers of dropout were re-seeded"
            )

    @torch.inference_mode(False)  # the caller may be in inference mode, which has no gradients
    def run(self) -> TrainingState:
        """Train until the last step or a signal; return the final state.

        Raises:
            Interrupted: a signal arrived; a checkpoint was saved.
            NonFiniteError: the loss or a gradient is not finite; no new checkpoint was saved.
            CheckpointError: the last checkpoint could not be written.
            Exception: a callback raised this error; a checkpoint was saved.
        """
        try:
            # Training allows TF32 for matmuls. Their rate is measured in the same way, since the
            # meter compares the FLOP/s of training with it.
            with (
                announce_if_slow(self.report, "measuring the rate of matmuls"),
                self.compute.allow_tf32(),
            ):
                self.meter.start(self.state.seconds)
            is_evaluated = self.state.evaluated_step == self.state.step
            self.monitor.start(self.state.step, is_evaluated)
            # Signals are still watched while an interrupted run is saved: a launcher may pass on
            # the same Ctrl-C a second time, which must not interrupt the saving.
            with SignalWatch(self.report, self.world) as signals, closing(self.monitor):
                try:
                    self._loop(signals.check)
                except BaseException as error:
                    # For a signal or an error of a callback, the loop ends between two steps, when
                    # the weights are good. After other errors they may be wrong, and are not saved.
                    if isinstance(error, Interrupted) or self.callbacks.failed:
                        self._save(best=False, required=True)
                    raise
                finally:
                    self.callbacks.close(CloseEvent(self, self.state.step))
        finally:
            self.run_folder.unlock()
        return self.state

    def _loop(self, poll: Poll) -> None:
        """Make and evaluate steps until the last one; `poll` raises Interrupted after a signal."""
        self.callbacks.call(StartEvent(self, self.state.step))
        self.callbacks.sync_across_ranks()
        while True:
            if self._evaluation_is_due():
                if self._is_finished():
                    # An evaluation saves a checkpoint at its end, but may fail before, for example
                    # if there is too little memory. The weights of the last step are saved first,
                    # so that they are not lost.
                    self._save(best=False, required=True, is_final=False)
                with announce_if_slow(self.report, f"step {self.state.step}: evaluating"):
                    self._evaluate(poll)
            if self._is_finished():
                self.callbacks.call(EndEvent(self, self.state.step))
                self.callbacks.sync_across_ranks()
                return
            self._train_one_step()
            # Between two steps the state is consistent, so that the run can be saved and stopped.
            poll()
            # A callback may have failed in the step, or asked for the end of the training.
            self.callbacks.sync_across_ranks()

    def _evaluation_is_due(self) -> bool:
        """Return whether the present step has to be evaluated, and has not been yet."""
        step = self.state.step
        if step == self.state.evaluated_step:
            return False
        is_end_of_interval = step > 0 and step % self.config.train.eval_interval == 0
        return is_end_of_interval or self._is_finished()

    def _is_finished(self) -> bool:
        return self.callbacks.stopped or self.state.has_made_last_step(self.config.train)

    def _train_one_step(self) -> None:
        """Make and report one optimizer step.

        The loss is read from the device only at every `train.log_interval`-th step and at the last
        one, since reading waits for a GPU.
        """
        train = self.config.train
        rate = learning_rate(self.state.step, self.config.optim, train.max_steps)
        length = sequence_length(self.state.step, self.config)
        micro_batches = self.batches.next(length)
        # None tells the stepper that no callback changes gradients. Only then may a CUDA graph
        # replay the step, since a graph cannot call Python.
        change_gradients = self._change_gradients if self.callbacks.gradient_callbacks else None
        result = self.stepper.step(self.state.step, rate, micro_batches, change_gradients)
        self.state.step += 1
        self.meter.count_step(length)
        is_last = self.state.step == train.max_steps
        is_logged = is_last or self.state.step % train.log_interval == 0
        loss = self._log(result, rate) if is_logged else None
        self.monitor.progress(self.state.step, loss)
        self.callbacks.call(StepEvent(self, self.state.step, rate, is_logged, result))

    def _change_gradients(self) -> None:
        """Let callbacks change the gradients.

        Callbacks get the same random numbers in all processes, which have to make the same update.
        """
        seed = mix_seeds(self.config.run.seed, self.state.step)
        generator = torch.Generator().manual_seed(seed)
        self.callbacks.call(GradientEvent(self, self.state.step, generator))

    def _log(self, result: StepResult, rate: float) -> float:
        """Read the result of a step from the device, and record it.

        Return the loss in nats per token.
        """
        # The check raises NonFiniteError if this step or an earlier one was not finite, so that no
        # such loss is recorded. It waits for the device, as reading the loss below does anyway.
        self.stepper.check()
        loss = float(result.loss)
        values = {
            "train/loss": loss,
            "train/learning_rate": rate,
            "train/grad_norm": float(result.gradient_norm),
        }
        values |= {f"train/{name}": float(mean) for name, mean in result.terms.items()}
        self.monitor.scalars(self.state.step, {**values, **self.meter.read()})
        return loss

    def _evaluate(self, poll: Poll) -> None:
        """Evaluate, sample and save; if a signal interrupts this, nothing is recorded."""
        # The check raises NonFiniteError if a step was not finite, so that a training that has
        # diverged ends here, and its weights are neither evaluated nor saved.
        self.stepper.check()
        step = self.state.step
        validation = self.validation
        # `poll` raises Interrupted in these two calls if a signal arrives. The state is changed
        # only after both, so that a resumed run repeats an evaluation that was interrupted.
        result = validation.loss(step, poll)
        sample = validation.sample(poll)
        is_best = self.state.record_evaluation(result.loss)
        chars_per_token = self.dataset.chars_per_token(validation.tokens)
        bits_per_char = result.bits_per_char(chars_per_token)
        values = {
            "val/loss": result.loss,
            "val/bits_per_char": bits_per_char,
            "speed/seconds": self.meter.total_seconds,
        }
        self.monitor.scalars(step, values)
        if sample:
            self.monitor.sample(step, sample)
        self.callbacks.call(EvaluationEvent(self, step, result.loss, bits_per_char, sample))
        # If a callback fails, its error is raised after the checkpoint of this step is written.
        self.callbacks.sync_across_ranks(then_raise=False)
        # If this checkpoint cannot be written, for example on a full disk, the run continues, since
        # the next one may succeed. After the last step there is no next one.
        self._save(best=is_best, required=self._is_finished())
        self.callbacks.sync_across_ranks()
        # The speed of the next steps is measured without the time of this evaluation.
        self.meter.restart()

    def _save(self, best: bool, required: bool, is_final: bool = True) -> None:
        """Write a checkpoint.

        Args:
            best: whether this is the best checkpoint so far.
            required: whether a failure raises an error; otherwise it is only reported, and the run
                continues.
            is_final: False if the checkpoint of this step is going to be replaced after the
                evaluation; callbacks are told of the final one only.

        Raises:
            NonFiniteError: a step since the last check was not finite.
        """
        self.stepper.check()
        self.state.seconds = self.meter.total_seconds
        # `self.state` must not name the new checkpoint as the best one unless it has been written.
        saved = self.state.as_best() if best else self.state
        weights = weights_of(self.model)
        # Every process calls this, since the random generators of all of them are saved.
        training = {name: part.state_dict() for name, part in self.stateful.items()}
        folder = self.world.rank_zero(lambda: self._write(weights, training, saved, best, required))
        if folder is None:
            return  # nothing was written, so the state still names the former best checkpoint
        self.state = saved
        if is_final:
            self.callbacks.call(CheckpointEvent(self, saved.step, folder, best))

    def _write(
        self,
        weights: dict[str, Tensor],
        training: dict[str, Any],
        state: TrainingState,
        best: bool,
        required: bool,
    ) -> Path | None:
        """Write a checkpoint and return its folder, or None after a failure that was reported.

        Only rank 0 calls this method. The arguments `best` and `required` are those of `_save`.
        """
        for name, weight in weights.items():
            # The loss may be finite even if a weight is not, for example in the embedding of a
            # character that no batch contains.
            if not bool(torch.isfinite(weight).all()):
                raise NonFiniteError(
                    f"the weights {name} are not finite at step {state.step}; nothing was saved"
                )
        values = {**asdict(state), "data": self.dataset.fingerprint}
        plugins = used_plugins(self.config)
        if plugins:
            values["plugins"] = plugins
        checkpoint = Checkpoint(weights, training, values, self.config, self.dataset.tokenizer)
        try:
            return self.run_folder.save(checkpoint, best, self.config.train.keep_last)
        except CheckpointError as error:
            if required:
                raise
            self.report(f"warning: {error}; training continues, and the last checkpoint is kept")
            return None
