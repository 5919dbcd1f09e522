"""The runs of one training: the student alone, or a teacher and then the student."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from gpt.config.without_effect import options_without_effect
from gpt.progress import silent
from gpt.training.callbacks import Callback
from gpt.training.distillation import teacher_config
from gpt.training.plan import Request, plan_run
from gpt.training.resume import AUTO
from gpt.training.schedule import fit_schedule
from gpt.training.setup import Displays, carry_out
from gpt.training.trainer import Trainer
from gpt.training.training_state import TrainingState


def open_runs(
    request: Request,
    callbacks: Sequence[Callback] = (),
    displays: Displays = Displays(),  # noqa: B008  # frozen
) -> Generator[Trainer, None, None]:
    """Yield the trainer of each run; each has to be finished before the next is asked for.

    With `train.teacher_share` the teacher comes first, unless a resumed training has finished it; callbacks
    are not called for it. Both runs are planned before either begins; only then are runs of another configuration
    kept aside. Closing the generator unlocks the folders.
    """
    for line in options_without_effect(request.loaded.config):
        request.report(line)
    lines: list[str] = []
    has_teacher = request.loaded.config.train.teacher_share is not None
    with ExitStack() as locks:
        plan = plan_run(request, lines.append if has_teacher else request.report)
        locks.callback(plan.run.unlock)
        if has_teacher:
            began = yield from _open_teacher(
                replace(request, dataset=plan.dataset, replaced=plan.replaced), locks, displays
            )
            plan = replace(plan, replaced=() if began else plan.replaced)
        for line in lines:
            request.report(line)
        trainer = carry_out(plan, request, callbacks, displays)
        # it holds the checkpoint that its run begins with, which is not to stay in memory
        del plan
        yield trainer


def _open_teacher(student: Request, locks: ExitStack, displays: Displays) -> Generator[Trainer, None, bool]:
    """Yield the trainer of the teacher; return whether there is one, which also keeps aside what gives way."""
    loaded = teacher_config(replace(student.loaded, config=fit_schedule(student.loaded.config, silent)))
    request = replace(student, loaded=loaded, resume=None if student.resume is None else AUTO)
    lines: list[str] = []
    plan = plan_run(request, lines.append)
    locks.callback(plan.run.unlock)
    train = plan.config.train
    if plan.point is not None and TrainingState.from_dict(plan.point.checkpoint.state).is_over(train):
        plan.run.unlock()
        return False
    for line in (f"first its teacher, {train.max_steps:,} steps in the run {loaded.name}", *lines):
        request.report(line)
    trainer = carry_out(plan, request, (), displays)
    del plan
    yield trainer
    return True
