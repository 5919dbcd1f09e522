"""The runs of one training: the student alone, or a teacher and then the student."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from gpt.config import LoadedConfig
from gpt.config.without_effect import options_without_effect
from gpt.distributed import World
from gpt.environment import Settings
from gpt.progress import Report, silent
from gpt.training.callbacks import Callback
from gpt.training.distillation import teacher_config
from gpt.training.plan import Plan, plan_run
from gpt.training.resume import AUTO
from gpt.training.schedule import fit_schedule
from gpt.training.setup import Displays, carry_out
from gpt.training.trainer import Trainer


def open_runs(
    loaded: LoadedConfig,
    settings: Settings,
    report: Report,
    resume: str | None,
    allow_config_change: bool,
    world: World,
    callbacks: Sequence[Callback] = (),
    displays: Displays = Displays(),  # noqa: B008  # frozen
) -> Generator[Trainer, None, None]:
    """Yield the trainer of each run; each has to be finished before the next is asked for.

    With `train.teacher_share` the teacher comes first, unless a resumed training has finished it; callbacks
    are not called for it. Both runs are planned before either begins; closing the generator unlocks their folders. See
    `plan_run` for the arguments.
    """
    for line in options_without_effect(loaded.config):
        report(line)
    lines: list[str] = []
    notes = report if loaded.config.train.teacher_share is None else lines.append
    with ExitStack() as locks:
        plan = plan_run(loaded, settings, report, resume, allow_config_change, world, notes=notes)
        locks.callback(plan.run.unlock)
        teacher = _plan_teacher(loaded, plan, settings, report, resume, allow_config_change, world)
        if teacher is not None:
            locks.callback(teacher.run.unlock)
            trainer = carry_out(teacher, settings, report, world, (), displays)
            # a plan holds the checkpoint that its run begins with, which is not to stay in memory
            del teacher
            yield trainer
            del trainer
        for line in lines:
            report(line)
        trainer = carry_out(plan, settings, report, world, callbacks, displays)
        del plan
        yield trainer


def _plan_teacher(
    loaded: LoadedConfig,
    student: Plan,
    settings: Settings,
    report: Report,
    resume: str | None,
    allow_config_change: bool,
    world: World,
) -> Plan | None:
    """Return the plan of the teacher, if there is one and it has to be trained."""
    if loaded.config.train.teacher_share is None:
        return None
    teacher = teacher_config(replace(loaded, config=fit_schedule(loaded.config, silent)))
    start = None if resume is None else AUTO
    lines: list[str] = []
    plan = plan_run(teacher, settings, report, start, allow_config_change, world, student.dataset, lines.append)
    try:
        if _is_finished(plan):
            plan.run.unlock()
            return None
        for line in (f"first its teacher, {plan.config.train.max_steps:,} steps in the run {teacher.name}", *lines):
            report(line)
    except BaseException:
        plan.run.unlock()
        raise
    return plan


def _is_finished(plan: Plan) -> bool:
    if plan.point is None:
        return False
    state, train = plan.point.checkpoint.state, plan.config.train
    has_stopped_early = train.patience is not None and state.get("evaluations_since_best", 0) >= train.patience
    return has_stopped_early or state["step"] >= train.max_steps
