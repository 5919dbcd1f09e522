"""Whole training runs that are over in half a second."""

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

from gpt.config.loading import parse_config
from gpt.config.sources import LoadedConfig
from gpt.system.distributed import World
from gpt.system.environment import read_settings
from gpt.training.callbacks import Callback
from gpt.training.train import Host, build_trainer
from gpt.training.trainer import Trainer
from tiny import CORPUS

RECIPE = (
    *("run.device=cpu", "run.dtype=float32", "run.snapshots=false", "data.source=file"),
    *("model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.block_size=16"),
    *("optim.learning_rate=1e-2", "optim.min_lr=1e-3", "optim.warmup_steps=2"),
    *("train.batch_size=4", "train.max_steps=6", "train.eval_interval=3", "train.log_interval=1"),
    "train.eval_max_tokens=96",  # six whole windows: batches of four and of two
    *("train.keep_last=99", "train.sample_tokens=8"),
)


def start_session(
    folder: Path,
    *overrides: str,
    resume: str | None = None,
    allow_config_change: bool = False,
    report: Callable[[str], None] = lambda line: None,
    world: World = World(),  # noqa: B008  # without state
    callbacks: Sequence[Callback] = (),
) -> Trainer:
    """Return a trainer of folder/runs/run, ready to run.

    It reads folder/corpus.txt, which is written if there is none.
    """
    world.rank_zero(lambda: _write_missing_corpus(folder))
    places = [
        f"data.path={json.dumps(str(folder / 'corpus.txt'))}",
        f"data.dir={json.dumps(str(folder / 'data'))}",
        f"run.dir={json.dumps(str(folder / 'runs'))}",
    ]
    config = parse_config("", "recipe", [*RECIPE, *places, *overrides])
    settings = replace(read_settings(offline=True), data_dir=None)
    return build_trainer(
        LoadedConfig(config, "run"),
        Host(settings, report, world),
        resume=resume,
        allow_config_change=allow_config_change,
        callbacks=callbacks,
    )


def _write_missing_corpus(folder: Path) -> None:
    corpus = folder / "corpus.txt"
    if not corpus.exists():
        folder.mkdir(exist_ok=True)
        corpus.write_text(CORPUS * 20, encoding="utf-8")


def rows(folder: Path, name: str) -> dict[int, float]:
    """Return a metric of folder/runs/run by step."""
    lines = (folder / "runs" / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["step"]: row[name] for row in map(json.loads, lines) if name in row}


def saved_steps(trainer: Trainer) -> list[int]:
    return [
        int(folder.name.removeprefix("step-"))
        for folder in reversed(trainer.run_folder.checkpoints())
    ]


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the parameters by name."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether tensors of the same names are equal to the last bit."""
    assert one.keys() == other.keys() != set()
    return all(torch.equal(one[name], other[name]) for name in one)


@contextmanager
def stopped_after(step: int) -> Iterator[None]:
    """Send runs a signal once they have made so many steps."""
    train_one_step = Trainer._train_one_step

    def stop(trainer: Trainer) -> None:
        train_one_step(trainer)
        if trainer.state.step == step:
            signal.raise_signal(signal.SIGTERM)

    with patch.object(Trainer, "_train_one_step", stop):
        yield


@contextmanager
def quick_beginnings() -> Iterator[None]:
    """No half second of matmuls at each start, no waiting for the disk or for a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with (
        patch("gpt.training.monitor.measure_matmul_rate", lambda device, dtype: 1e9),
        patch("os.fsync", lambda handle: None),
    ):
        yield
    torch.set_num_threads(threads)
