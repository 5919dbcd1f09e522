"""The recipes that a training can start from, and how long each would take on this machine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from gpt.accounting.flops import whole_flops
from gpt.accounting.machine import measure_matmul_rate
from gpt.accounting.parameters import count_parameters
from gpt.checkpoint import RunFolder
from gpt.config import Config, ModelConfig, RunConfig
from gpt.config.loading import load_config
from gpt.config.recipes import about
from gpt.device import choose_compute
from gpt.errors import GPTError
from gpt.progress import silent
from gpt.serving.http.playground.curves import last_progress
from gpt.serving.http.playground.runs import Runs, read_config

VOCABULARY = 100
"""Distinct characters that a text is taken to have where it is not read yet; times hardly depend on it."""
UTILIZATION = (0.1, 0.6)
"""Model FLOP/s of training as a share of this machine's matmul rate, at worst and at best: small models are at the low
end, above all where a processor has instructions for bfloat16."""
ASSUMED_RATE = 5e10
"""Matmul FLOP/s of a thread where nothing has been measured yet."""
START_SECONDS = 10
"""To load torch, to encode the corpus, to measure the matmul rate."""
MIN_STEPS = 20
"""Least number of steps from which the pace of a run predicts that of another one."""

Measure = Callable[[RunConfig], float]


@dataclass(frozen=True)
class Recipe:
    """A configuration file that a training can start from.

    Attributes:
        name: file name without its ending.
        about: the comment at its head.
        source: the corpus that it was made for, as `data.source`.
        seconds: least and most expected on this machine; equal where `like` is not None.
        like: the run on whose pace that rests; None: it rests on FLOPs and `UTILIZATION`.
    """

    name: str
    about: str
    source: str
    parameters: int
    n_layer: int
    n_embd: int
    block_size: int
    max_steps: int
    tokens_per_step: int
    seconds: tuple[float, float]
    like: str | None


class Recipes:
    """Reads a folder of configuration files; the methods block, so they are for threads.

    Args:
        folder: may be missing, which is as if it were empty.
        runs: past runs, whose pace predicts that of others.
        measure: returns the matmul rate of a run, in FLOP/s.
    """

    def __init__(self, folder: Path, runs: Runs, measure: Measure | None = None) -> None:
        self._folder, self._runs, self._measure = folder, runs, measure or measure_rate

    def path(self, name: str) -> Path | None:
        """Return the file of a recipe, which is one of this folder's; None: there is no such recipe."""
        return next((path for path, _ in self._configs() if path.stem == name), None)

    def describe(self, characters: int, vocabulary: int | None = None, *, measured: bool = True) -> list[Recipe]:
        """Describe all recipes for a corpus of this many characters, so many of them distinct, the quickest first.

        With `measured` their times rest on this machine's matmul rate, which takes a second at the first call.
        """
        distinct = vocabulary or VOCABULARY
        measure = self._measure if measured else lambda run: ASSUMED_RATE * (run.threads or torch.get_num_threads())
        recipes = [self._recipe(path, config, characters, distinct, measure) for path, config in self._configs()]
        return sorted(recipes, key=lambda recipe: recipe.seconds)

    def _configs(self) -> Iterator[tuple[Path, Config]]:
        """Yield the files that fit any corpus: not those of one vocabulary, and not those that have a mistake."""
        for path in sorted(self._folder.glob("*.yaml")):
            try:
                config = load_config(path).config
            except GPTError:  # a file that somebody is writing
                continue
            if config.model.vocab_size is None:
                yield path, config

    def _recipe(self, path: Path, config: Config, characters: int, vocabulary: int, measure: Measure) -> Recipe:
        model, train, tokenizer = config.model, config.train, config.data.tokenizer
        like, pace = self._pace(config)
        if pace is None:
            sized = config.model_copy(update={"model": model.model_copy(update={"vocab_size": VOCABULARY})})
            flops, rate = whole_flops(sized, characters), measure(config.run)
            low, high = (START_SECONDS + flops / (rate * share) for share in reversed(UTILIZATION))
        else:
            low = high = START_SECONDS + pace * (train.max_steps + train.teacher_steps)
        return Recipe(
            name=path.stem,
            about=about(path),
            source=config.data.source,
            parameters=_parameters(model, {"byte": 256, "bpe": config.data.bpe_vocab_size}.get(tokenizer, vocabulary)),
            n_layer=model.n_layer,
            n_embd=model.n_embd,
            block_size=model.block_size,
            max_steps=train.max_steps,
            tokens_per_step=train.sequences * model.block_size,
            seconds=(low, high),
            like=like,
        )

    def _pace(self, config: Config) -> tuple[str | None, float | None]:
        """Return the newest run that computes the same steps, and its seconds for each, evaluations included."""
        for name in self._runs.names():
            folder = RunFolder(self._runs.folder / name)
            try:
                other, progress = read_config(folder), last_progress(folder.metrics)
            except (GPTError, OSError):
                continue
            if progress is not None and progress[0] >= MIN_STEPS and _work(other) == _work(config):
                return name, progress[1] / progress[0]
        return None, None


@lru_cache
def measure_rate(config: RunConfig) -> float:
    """Measure the matmul rate of a run on this machine, in FLOP/s; a second, once for all runs that compute alike."""
    try:
        compute = choose_compute(config.model_copy(update={"threads": None, "deterministic": False}), silent)
    except GPTError:  # a device that is not here: as on the one that is
        compute = choose_compute(RunConfig(), silent)
    return _rate(compute.device, compute.dtype)


@lru_cache
def _rate(device: torch.device, dtype: torch.dtype) -> float:
    return measure_matmul_rate(device, dtype)


def _work(config: Config) -> tuple[object, ...]:
    """Return what decides how long a step takes."""
    model, train, run = config.model.model_copy(update={"vocab_size": None}), config.train, config.run
    return (
        *(model, config.optim.name, config.optim.ema_decay),
        *(train.batch_size, train.grad_accum_steps, train.activation_checkpointing, train.length_warmup),
        *(run.device, run.dtype, run.kernels, run.compile, run.threads),
    )


@lru_cache
def _parameters(model: ModelConfig, vocabulary: int) -> int:
    return count_parameters(model.model_copy(update={"vocab_size": vocabulary})).total
