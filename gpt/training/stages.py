"""The runs of one training: the student alone, or a teacher and then the student."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpt.checkpoint import RunFolder
from gpt.config import LoadedConfig
from gpt.config.without_effect import options_without_effect
from gpt.distributed import World
from gpt.environment import Settings, expand_home
from gpt.progress import Report, silent
from gpt.training.callbacks import Callback
from gpt.training.finetuning import find_base
from gpt.training.resume import AUTO, ResumePoint, check_fits, find_resume_point
from gpt.training.schedule import fit_schedule
from gpt.training.setup import open_session, prepare_run
from gpt.training.teacher import require_probabilities_memory, teacher_config
from gpt.training.trainer import Trainer


def open_stages(
    loaded: LoadedConfig,
    settings: Settings,
    report: Report,
    resume: str | None,
    allow_config_change: bool,
    world: World,
    callbacks: Sequence[Callback] = (),
) -> Iterator[Trainer]:
    """Yield the trainer of each run; each has to be finished before the next is asked for.

    With `train.teacher_share` the teacher comes first, unless a resumed training has finished it; callbacks
    are not called for it. Arguments and exceptions are those of `open_session`.
    """
    for line in options_without_effect(loaded.config):
        report(line)
    teacher = world.on_main(lambda: _find_unfinished_teacher(loaded, settings, report, resume, allow_config_change))
    if teacher is not None:
        report(f"first its teacher, {teacher.config.train.max_steps:,} steps in the run {teacher.name}")
        resume_teacher = None if resume is None else AUTO
        yield open_session(teacher, settings, report, resume_teacher, allow_config_change, world)
    yield open_session(loaded, settings, report, resume, allow_config_change, world, callbacks)


def _find_unfinished_teacher(
    loaded: LoadedConfig, settings: Settings, report: Report, resume: str | None, allow_config_change: bool
) -> LoadedConfig | None:
    """Return the configuration of the teacher if it has to be trained, after checking that the student's run can begin.

    Raises:
        CheckpointError: the student's run cannot begin or continue, or the teacher is not one for it.
        DeviceError: there is no memory for the teacher's probabilities.
    """
    if loaded.config.train.teacher_share is None:
        return None
    loaded = replace(loaded, config=fit_schedule(loaded.config, silent))  # as its run folder will have it
    runs = expand_home(loaded.config.run.dir, "run.dir")
    point = find_resume_point(RunFolder(runs / loaded.name), resume, loaded.config, report)
    config, dataset = prepare_run(loaded, find_base(loaded.config, runs, point), settings, report)
    if point is not None:
        check_fits(point, config, dataset, allow_config_change)
    require_probabilities_memory(dataset, config)
    found = None if resume is None else RunFolder(runs / loaded.teacher_name).newest_valid()
    if found is None or found[1].state["step"] < loaded.config.train.teacher_steps:
        return teacher_config(loaded)
    taught = fit_schedule(teacher_config(replace(loaded, config=config)).config, silent)
    check_fits(ResumePoint(*found[:2]), taught, dataset, allow_config_change)
    return None
