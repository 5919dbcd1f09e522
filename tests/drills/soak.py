"""A long time of the same: memory, file handles and speed at the end are those of the beginning."""

import contextlib
import gc
import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import gpt
from drills.frame import Drill, Tally, repeats
from gpt.training.signals import Interrupted
from server_process import ServerProcess, request, serve_process, vanish
from training.sessions import quick_beginnings, start_session

CONFIG = (
    *("model.n_embd=16", "model.block_size=16", "train.batch_size=2", "train.log_interval=50", "train.keep_last=1"),
    *("train.eval_interval=250", "train.sample_tokens=4"),
)
GROWTH, OF_SERVER = 0.02, 0.2
"""Of the memory, from the second tenth to the last; what a server's allocator keeps differs from run to run."""
SLOWDOWN = 0.05
"""Of processor time beside that of a fixed computation, from the first tenth to the last."""
LEFT = 100
"""Of so many requests, one is left in the middle of its text."""
WRONG = 10
"""Of so many requests, one is refused or left."""


@dataclass(frozen=True)
class Reading:
    """The state of a process after a part: bytes in memory, open files, and what the part cost.

    The cost is that of a step or of a text, in processor time of the fixed computation.
    """

    memory: int
    files: int
    cost: float = 1.0


class Turns:
    """Measures pieces of work in turns with a fixed computation: a process on the same core slows both down.

    Medians, since sums have the moments in them at which the cores are handed over.
    """

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute, self._begin = compute, time.process_time()
        self._work, self._fixed = list[float](), list[float]()

    def take(self) -> None:
        """End a piece of work, and do the fixed computation."""
        end = time.process_time()
        self._compute()
        self._work.append(end - self._begin)
        self._begin = time.process_time()
        self._fixed.append(self._begin - end)

    def cost(self) -> float:
        """Return the time of a piece in that of the fixed computation."""
        return median(self._work) / median(self._fixed)


def fixed_computation() -> Callable[[], None]:
    """Return a training step of torch's own layer: the same kind of work as the package's, by none of its code."""
    layer = nn.TransformerEncoderLayer(16, 2, 64, dropout=0.0, batch_first=True)
    optimizer, x = torch.optim.AdamW(layer.parameters(), foreach=True), torch.ones(2, 16, 16)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    step()  # the first one loads parts of torch
    return step


def observe(parts: int, work: Callable[[int, Turns], Any]) -> list[Reading]:
    """Do the parts one after another, in turns with the fixed computation, and read the state after each."""
    readings, fixed = [], fixed_computation()
    for part in range(parts):
        turns = Turns(fixed)
        work(part, turns)
        gc.collect()
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        readings.append(Reading(memory, sum(1 for _ in Path("/dev/fd").iterdir()), turns.cost()))
    return readings


def compare(tally: Tally, name: str, readings: list[Reading], full: bool, most: float = GROWTH) -> None:
    """Compare the last tenth with the second, or at the small scale with the second part, and report both."""
    tenth = max(1, len(readings) // 10)
    early, late = readings[tenth : 2 * tenth], readings[-tenth:]
    growth = max(r.memory for r in late) / max(r.memory for r in early) - 1
    files = max(r.files for r in late) - max(r.files for r in early)
    slower = median(r.cost for r in late) / median(r.cost for r in readings[:tenth]) - 1
    tally.figures[f"memory in {name}"] = f"{growth:+.1%}"
    tally.figures[f"files in {name}"] = f"{files:+d}"
    tally.check(growth < most, f"{name}: the memory grew by {growth:.1%}")
    tally.check(files <= 0, f"{name}: {files} more files are open")
    if full and most == GROWTH:
        tally.figures[f"processor time in {name}"] = f"{slower:+.1%}"
        tally.check(slower < SLOWDOWN, f"{name}: the last tenth took {slower:.1%} more processor time than the first")


def train(folder: Path, steps: int, every: int, tally: Tally) -> list[Reading]:
    """Train so many steps, with a SIGTERM and a resume after every so many."""

    def go_on(part: int, turns: Turns) -> None:
        trainer = start_session(folder, *CONFIG, f"train.max_steps={steps}", resume="auto")
        stepper, end = trainer.stepper.step, (part + 1) * every - 1

        def step(number: int, *arguments: Any) -> Any:
            turns.take()
            if number == end:
                signal.raise_signal(signal.SIGTERM)
            return stepper(number, *arguments)

        trainer.stepper.step = step
        with contextlib.suppress(Interrupted):
            trainer.run()
        assert trainer.state.step == end + 1
        tally.count("steps", every)
        tally.count("resumes", part > 0)

    return observe(steps // every, go_on)


def generate(run: Path, count: int, parts: int, tally: Tally) -> list[Reading]:
    """Generate so many texts: whole and streamed, greedy and sampled, with stop strings."""
    model, tokenizer = gpt.load(run)

    def go_on(part: int, turns: Turns) -> None:
        for number in range(part * count // parts, (part + 1) * count // parts):
            options: dict[str, Any] = {"max_new_tokens": 8, "seed": number, "temperature": 0.9 * (number % 3 > 0)}
            if number % 5 == 0:
                list(gpt.stream(model, tokenizer, "It was", stop=("e",), **options))
            else:
                gpt.generate(model, tokenizer, "It was the best"[: 1 + number % 15], **options)
            tally.count("generations")
            turns.take()

    return observe(parts, go_on)


def serve(folder: Path, count: int, parts: int, tally: Tally) -> list[Reading]:
    """Ask a server that many clients at a time use, of which some leave and some are wrong.

    Returns:
        A reading after each part; none if blocks stay in use.
    """
    readings: list[Reading] = []
    with serve_process(folder) as server, ThreadPoolExecutor(16) as pool:
        for part in range(parts):
            numbers = range(part * count // parts, (part + 1) * count // parts)
            for wrong in pool.map(lambda number: _ask(server, number), numbers):
                tally.count("requests")
                tally.check(not wrong, wrong)
            if not tally.check(server.comes_to_rest(), "blocks are still in use"):
                return []
            readings.append(Reading(server.memory(), _open_files(server)))
        answered = count - len(range(0, count, WRONG))
        ended = [server.metric(f'gpt_requests_total{{status="{status}"}}') for status in (200, 500)]
        tally.check(
            ended[0] >= answered and not ended[1], f"of {answered} requests {ended[0]} ended, {ended[1]} failed"
        )
    return readings


def _open_files(server: ServerProcess) -> int:
    """Return the least of some counts: a server closes a connection a moment after its client."""
    counts = []
    for _ in range(10):
        time.sleep(0.1)
        counts.append(sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir()))
    return min(counts)


def _ask(server: ServerProcess, number: int) -> str:
    if number % LEFT == LEFT // 2:
        connection = server.connect(request(max_tokens=4000, stream=True))
        connection.recv(1000)  # the text has begun
        vanish(connection)
        return ""
    body = {"prompt": [10_000] if number % WRONG == 0 else "It was", "max_tokens": 1 + number % 60, "seed": number}
    status, answer = server.post(json.dumps({**body, "stream": number % 2 == 0, "overflow": "slide"}).encode())
    right = 400 if number % WRONG == 0 else 200
    return "" if status == right else f"request {number} is answered with {status}: {answer[:300]}"


def run(folder: Path, full: bool) -> Tally:
    steps, every, count = (20_000, 500, 20_000) if full else (60, 15, 60)
    tally = Tally("steps", "resumes", "generations", "requests")
    with quick_beginnings(), Path(os.devnull).open("w") as null, contextlib.redirect_stderr(null):
        compare(tally, "training", train(folder / "soak", steps, every, tally), full)
        run = folder / "soak" / "runs" / "run"
        compare(tally, "generation", generate(run, count, 40 if full else 4, tally), full)
        if readings := serve(folder / "soak", repeats(full, 10_000, 120), 40 if full else 4, tally):
            compare(tally, "a server", readings, full, OF_SERVER)
    return tally


DRILL = Drill(
    "Memory, file handles and speed of a training and of generation do not change over time: within 2%, none and 5%. "
    "A server that many ask at a time, of whom one in a hundred leaves, keeps no block in use and no file open, and "
    "its memory within a fifth.",
    run,
    alone=True,
)
