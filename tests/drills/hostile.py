"""Files made to do harm: nothing in them is run, nothing is written elsewhere, and memory stays bounded."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from drills.forks import Death, prepare_to_fork, run_forked
from drills.frame import Drill, Tally
from drills.hostile_corpora import MAX_TEXT, corpora
from drills.hostile_files import (
    MARK,
    Evaluated,
    Payload,
    Prepare,
    bombs,
    json_with,
    linked,
    pickled,
    pipe,
    seal,
    tokenizers,
    write,
    yaml_bombs,
    zip_bomb,
)
from drills.tiny_run import train_tiny
from gpt.cli import export, import_model, prepare_data, sample, train

QUICK = (
    "checkpoint: optimizer.pt Payload",
    "import: meta.pkl Evaluated",
    "checkpoint: pipe",
    "recipe: aliases",
    "resume: samples is a link to elsewhere",
    "corpus: zip, bzip2 to 1.4 GB",
    "corpus: JSON, 20 million lists in a line",
    "corpus: Parquet, rows of 32 MB that are one",
    "corpus: file 'a\\nerror: all is well'",
)
MAX_BYTES = 1 << 30
MAX_SECONDS = 30.0
NEWEST = "runs/tiny/checkpoints/step-000006"
SAMPLE = ["--checkpoint", "runs/tiny", "--prompt", "It", "--max-new-tokens", "2"]
RESUME = ["--config", "tiny.yaml", "--resume", "runs/tiny/checkpoints/step-000003"]
IMPORT = ["--from", "hf", "--input", "folder", "--output", "imported"]
ENCODE = ["--config", "tiny.yaml", "data.path=evil", f"data.max_bytes={MAX_TEXT}", "data.workers=1"]
NANOGPT = ["--from", "nanogpt", "--input", "folder/ckpt.pt", "--output", "imported"]


@dataclass(frozen=True)
class Attack:
    """A hostile file, and what reads it.

    Attributes:
        name: shown in failures.
        target: folder that the file is put into.
        prepare: puts it there.
        run: reads it, and has to return one of `codes`, without a traceback.
        codes: 2, or 0 where the file does no harm or is replaced by one that does not.
    """

    name: str
    target: str
    prepare: Prepare
    run: Callable[[], int]
    codes: tuple[int, ...] = (2,)


def attacks(folder: Path) -> Iterator[Attack]:
    """Yield all attacks on a folder with the run `runs/tiny` and its export `folder`."""

    def sampled(name: str, prepare: Prepare) -> Attack:
        return Attack(f"checkpoint: {name}", NEWEST, prepare, lambda: sample.main(SAMPLE))

    def imported(name: str, prepare: Prepare, arguments: list[str] = IMPORT) -> Attack:
        return Attack(f"import: {name}", "folder", prepare, lambda: import_model.main(arguments))

    def resumed(name: str, prepare: Prepare) -> Attack:
        return Attack(f"resume: {name}", "runs/tiny", prepare, lambda: train.main(RESUME), (0, 2))

    for kind in (Payload, Evaluated):
        yield sampled(f"optimizer.pt {kind.__name__}", pickled("optimizer.pt", kind, True))
        for by_torch in (True, False):
            yield imported(f"ckpt.pt {kind.__name__} {by_torch}", pickled("ckpt.pt", kind, by_torch), NANOGPT)
        yield imported(f"meta.pkl {kind.__name__}", _with_checkpoint(pickled("meta.pkl", kind, False)), NANOGPT)
    yield imported("ckpt.pt expands to 1 GB", zip_bomb("ckpt.pt"), NANOGPT)
    for name, prepare in (*bombs("model.safetensors"), *tokenizers("tokenizer.json")):
        yield sampled(name, prepare)
        yield imported(name, prepare)
    for name, content in yaml_bombs(folder):
        yield sampled(f"config.yaml {name}", write("config.yaml", content))
        yield Attack(f"recipe: {name}", ".", write("tiny.yaml", content), lambda: train.main(RESUME))
    yield sampled("manifest of 300 GB", write("manifest.json", sparse=300 << 30))
    yield sampled("manifest names a file outside", json_with("manifest.json", files={"../../../../outside/secret": {}}))
    yield imported("sizes of 10^9", json_with("config.json", n_layer=10**9, num_hidden_layers=10**9, n_embd=10**9))
    yield imported("config.json of 300 GB", write("config.json", sparse=300 << 30))
    yield imported("config.json is a pipe", pipe("config.json"))
    index = json.dumps({"weight_map": {"a": "../outside/secret"}}).encode()
    yield imported("shards outside", write("model.safetensors.index.json", index))
    for name in ("samples", "checkpoints"):
        yield resumed(f"{name} is a link to elsewhere", _moved(name))
    for name in ("metrics.jsonl", "config.yaml", "last.json", "best.json"):
        yield resumed(f"{name} is a link to elsewhere", linked(name, "../../outside/secret"))
    for name in ("../evil", "/tmp/evil", "a/b", "..", ".", "a\0b"):
        arguments = ["--config", "tiny.yaml", f"run.name={name!r}"]
        yield Attack(f"run.name={name!r}", ".", _nothing, lambda arguments=arguments: train.main(arguments))
    for name, prepare, code in corpora():
        yield Attack(f"corpus: {name}", ".", prepare, lambda: prepare_data.main(ENCODE), (code,))
    into = ["--to", "hf", "--checkpoint", "runs/tiny", "--output", f"{NEWEST}/folder"]
    yield Attack("export into a checkpoint", ".", _nothing, lambda: export.main(into))


def _nothing(folder: Path) -> None:
    pass


def _both(*prepares: Prepare) -> Prepare:
    return lambda folder: [prepare(folder) for prepare in prepares] and None


def _with_checkpoint(prepare: Prepare) -> Prepare:
    content = io.BytesIO()
    torch.save({"model_args": {}, "model": {}}, content)
    return _both(write("ckpt.pt", content.getvalue()), prepare)


def _moved(name: str) -> Prepare:
    """Return a function that puts a folder elsewhere, and a link in its place."""

    def prepare(folder: Path) -> None:
        outside = folder.parents[1] / "outside" / name
        shutil.copytree(folder / name, outside, ignore=shutil.ignore_patterns("step-000006*"))
        shutil.rmtree(folder / name)
        (folder / name).symlink_to(outside)

    return prepare


def contents(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run(folder: Path, full: bool) -> Tally:
    """Read each hostile file in a process of its own."""
    tally = Tally("hostile files", "refused", "did harm")
    prepare_to_fork()
    origin = folder / "origin"
    origin.mkdir()
    train_tiny(origin, "train.keep_last=9")
    (origin / "outside").mkdir()
    (origin / "outside" / "secret").write_text("untouched")
    exported = run_forked(
        lambda: export.main(["--to", "hf", "--checkpoint", "runs/tiny", "--output", "folder"]), origin
    )
    assert exported.code == 0, exported.output
    place = folder / "place"
    for attack in attacks(place):
        if full or attack.name in QUICK:
            shutil.copytree(origin, place)
            _attack(attack, place, tally)
            shutil.rmtree(place)
    return tally


def _attack(attack: Attack, place: Path, tally: Tally) -> None:
    attack.prepare(place / attack.target)
    if attack.name.startswith("checkpoint") and "manifest" not in attack.name:
        seal(place / NEWEST)
    before, encoded = contents(place / "outside"), contents(place / "data")
    ending = run_forked(attack.run, place, Death(seconds=MAX_SECONDS, more_memory=4 * MAX_BYTES))
    tally.count("hostile files")
    said = ending.output[-300:]
    good = tally.check(not list(place.rglob(MARK)), f"{attack.name}: code in it was run")
    good &= tally.check(contents(place / "outside") == before, f"{attack.name}: something outside was changed")
    if ending.code != 0:
        good &= tally.check(contents(place / "data") == encoded, f"{attack.name}: token files of it are left")
    good &= tally.check(ending.memory < MAX_BYTES, f"{attack.name}: {ending.memory >> 20} MiB of memory")
    good &= tally.check(
        ending.code in attack.codes and "Traceback" not in ending.output, f"{attack.name}: {ending.code}: {said}"
    )
    tally.count("refused", good)
    tally.count("did harm", not good)


DRILL = Drill(
    "Of a hostile file nothing is run, nothing is written outside the folder, and it is refused in one line with less "
    "than 1 GiB of memory: pickles with payloads, YAML tags and aliases, headers and tokenizers of absurd sizes, "
    "expanding archives, tables and corpora, pipes, links and names that lead elsewhere.",
    run,
)
