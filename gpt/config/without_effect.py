"""Options of a configuration that nothing reads, because of other options."""

from gpt.config.sections import Config


def options_without_effect(config: Config) -> list[str]:
    """Return a line for each option that is not at its default and that nothing reads.

    They are told, not refused: an override such as `optim.schedule=constant` leaves those of the recipe behind, and
    run folders hold them. What only the files of a corpus decide, `prepare` tells.
    """
    model, optim, train = config.model, config.optim, config.train
    idle = {
        "model.rope_theta": (model.position == "learned", "model.position is learned"),
        "model.init": (train.init_from is not None, "train.init_from gives the weights"),
        "optim.min_lr": (optim.schedule == "constant", "optim.schedule is constant"),
        "optim.decay_steps": (optim.schedule == "constant", "optim.schedule is constant"),
        "train.teacher_weight": (train.teacher is None, "train.teacher is null"),
    }
    values, defaults = config.leaves(), Config().leaves()
    return [
        f"{key}={values[key]!r} has no effect: {why}"
        for key, (nothing_reads_it, why) in idle.items()
        if nothing_reads_it and values[key] != defaults[key]
    ]
