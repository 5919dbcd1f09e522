"""Several processes that do the same thing at once."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drills.forks import Ending, finish, prepare_to_fork, run_forked, start_forked
from drills.frame import Drill, Tally
from drills.killed_commands import COMMANDS, contents, shard, text_server, write_texts
from drills.killed_sweeps import FOLDER, outcomes, sweep_once, wrong_sweep
from drills.killed_sweeps import make_folder as make_sweep
from drills.leftovers import everything
from drills.pairs import free_port, import_distributed, run_rank
from drills.ranks import make_folder, recipe
from drills.tiny_run import hidden_files, train_tiny
from gpt.checkpoint import load_trained
from gpt.cli import prepare_data, train
from gpt.data.dataset import open_dataset
from gpt.kernels.build import load_library
from gpt.processor import GENERIC

BUILD = Path("build")
SAVING = ("train.max_steps=40", "train.eval_interval=1", "train.keep_last=1", "run.name=saving")


def race(calls: list[Callable[[], int]], folder: Path) -> list[Ending]:
    """Run functions in processes of their own, all at once."""
    children = [start_forked(call, folder, name=str(number)) for number, call in enumerate(calls)]
    return [finish(child) for child in children]


def train_twice(folder: Path, number: int) -> str:
    """Start two runs of one name with other seeds; return what is wrong."""
    name = f"twice{number}"

    def start(seed: int) -> int:
        return train.main(["--config", "tiny.yaml", f"run.name={name}", f"run.seed={seed}"])

    endings = race([lambda: start(1), lambda: start(2)], folder)
    codes = [ending.code for ending in endings]
    if sorted(codes) != [0, 2]:
        return f"both ended with {codes}: {endings}"
    run = folder / "runs" / name
    if f"seed: {codes.index(0) + 1}\n" not in (run / "config.yaml").read_text():
        return "config.yaml is that of the run that was refused"
    try:
        everything(run)
    except AssertionError as error:
        return str(error)
    return ", ".join(hidden_files(run))


def shard_at_once(folder: Path) -> str:
    """Prepare one corpus by three processes at once, of which one begins anew; return what is wrong."""
    many = partial(shard, tokens=20)  # it takes a while
    ending = run_forked(many, folder)
    assert ending.code == 0, ending.output
    expected = contents(folder / "sharded")
    shutil.rmtree(folder / "sharded")
    endings = race([many, partial(many, "--force"), many], folder)
    wrong = "" if contents(folder / "sharded") == expected else "other token files were written"
    shutil.rmtree(folder / "sharded")
    return wrong if [ending.code for ending in endings] == [0, 0, 0] else f"{endings}"


def replace_while_reading(folder: Path, rounds: int) -> str:
    """Open a corpus all the time while two processes encode it anew; return what is wrong."""
    encode = partial(prepare_data.main, ["--config", "tiny.yaml", "data.dir=replaced", "--force"])
    ending = run_forked(encode, folder)
    assert ending.code == 0, ending.output
    (tokens,) = (folder / "replaced" / "tokens").iterdir()
    expected, done = contents(tokens), folder / "replaced" / "done"

    def write() -> int:
        try:
            return sum(encode() for _ in range(rounds))
        finally:
            done.touch()

    def read() -> int:
        while not done.exists():
            open_dataset(tokens)
        return 0

    endings = race([write, write, read, read], folder)
    wrong = "" if contents(tokens) == expected and not hidden_files(tokens.parent) else "something else was written"
    shutil.rmtree(folder / "replaced")
    return (
        wrong if [ending.code for ending in endings] == [0] * 4 else str([ending.output[-500:] for ending in endings])
    )


def sweep_twice(folder: Path) -> str:
    """Start one sweep twice; return what is wrong."""
    make_sweep(folder)
    endings = race([sweep_once, sweep_once], folder)
    codes = {ending.code for ending in endings}
    if 0 not in codes or not codes <= {0, 2} or any("Traceback" in ending.output for ending in endings):
        return f"{endings}"
    try:
        found = outcomes(folder / FOLDER)
    except AssertionError as error:
        return str(error)
    return wrong_sweep(folder, endings[0 if endings[0].code == 0 else 1], found)


def train_pairs(folder: Path) -> str:
    """Start two trainings of one name, each by two processes; return what is wrong."""
    import_distributed()
    make_folder(folder)
    ports, arguments = (free_port(), free_port()), recipe("ddp", 6)
    ranks = [(rank, port) for port in ports for rank in (0, 1)]
    calls = [lambda rank=rank, port=port: run_rank(rank, port, arguments) for rank, port in ranks]
    endings = race(calls, folder)
    codes = [ending.code for ending in endings]
    if codes not in ([0, 0, 2, 2], [2, 2, 0, 0], [0, 0, 0, 0]):
        return f"{codes}: {endings}"
    everything(folder / "runs" / "tiny")
    return ", ".join(hidden_files(folder / "runs"))


def build() -> int:
    """Compile a library, load it and call it."""
    library = load_library(str((BUILD / "answer.cpp").resolve()), GENERIC, BUILD / "cache")
    return 0 if library.answer() == 42 else 1


def read_while_saving(folder: Path) -> str:
    """Read a run all the time while it saves after every step; return what is wrong."""
    run = folder / "runs" / "saving"

    def read() -> int:
        reads = 0
        while not (run / "done").exists():
            if not (run / "best.json").exists():
                continue
            for name in ("best", "last"):
                load_trained(run / name, run.parent, torch.device("cpu"))
            EventAccumulator(str(run)).Reload()
            json.loads((run / "last.json").read_text())
            reads += 1
        return 0 if reads else 1

    def save() -> int:
        try:
            return train.main(["--config", "tiny.yaml", *SAVING])
        finally:
            (run / "done").touch()

    endings = race([save, read, read], folder)
    return "" if [ending.code for ending in endings] == [0, 0, 0] else str([ending.output[-900:] for ending in endings])


def run_command_twice(folder: Path, number: int) -> str:
    """Run each command that writes in two processes at once; return what is wrong."""
    for command in COMMANDS:
        ending = run_forked(command.run, folder)
        assert ending.code == 0, ending.output
        expected = contents(folder / command.output)
        (folder / command.output).rename(folder / f"{command.output.replace('/', '-')}-{number}-alone")
        endings = race([command.run, command.run], folder)
        codes = [ending.code for ending in endings]
        if 0 not in codes or not set(codes) <= {0, 2} or any("Traceback" in ending.output for ending in endings):
            return f"{command.name}: {codes}: {endings}"
        if contents(folder / command.output) != expected or list(folder.rglob("*.tmp")):
            return f"{command.name}: {codes}, and something else was written"
    return ""


def run(folder: Path, full: bool) -> Tally:
    """Let processes race, many times."""
    tally = Tally("races", "corrupt")
    prepare_to_fork()
    train_tiny(folder)
    write_texts(folder / "texts")
    (folder / BUILD).mkdir()
    (folder / BUILD / "answer.cpp").write_text('extern "C" int answer() { return 42; }\n')

    def note(wrong: str) -> None:
        tally.count("races")
        tally.count("corrupt", bool(wrong))
        tally.check(not wrong, wrong)

    with text_server(folder):
        for number in range(20 if full else 2):
            note(train_twice(folder, number))
        shutil.rmtree(folder / "data")
        for number in range(3 if full else 0):
            note(run_command_twice(folder, number))
            for written in {command.output for command in COMMANDS}:
                if (folder / written).exists():
                    (folder / written).rename(folder / f"{written.replace('/', '-')}-{number}-race")
        note(read_while_saving(folder))
    for _ in range(5 if full else 1):
        note(shard_at_once(folder))
    note(replace_while_reading(folder, 60 if full else 10))
    for number in range(3 if full else 1):
        note(sweep_twice(folder / f"sweep{number}"))
    for number in range(2 if full else 0):
        note(train_pairs(folder / f"pairs{number}"))
    endings = race([build] * 4, folder)
    note("" if [ending.code for ending in endings] == [0] * 4 else str(endings))
    return tally


DRILL = Drill(
    "Processes that train or sweep one run, write one file, download, shard or compile the same at once, or read a run "
    "while it saves, each end well or are refused in one line, and nothing is corrupt.",
    run,
)
