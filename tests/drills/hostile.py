"""Files made to do harm: nothing in them is run, nothing is written elsewhere, and memory stays bounded."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drills.forks import Death, prepare_to_fork, run_forked
from drills.hostile_files import (
    MARK,
    Allocation,
    Payload,
    Prepare,
    corpora,
    huge_tables,
    json_with,
    linked,
    moved,
    pickled,
    pipe,
    seal,
    tensor_files,
    tokenizer_files,
    with_tensor,
    write,
    yaml_files,
    yaml_with,
    zip_bomb,
)
from drills.leftovers import contents, hidden_files, train_tiny
from gpt.cli import evaluate, export, import_model, prepare_data, sample, train
from gpt.data import corpus_text

QUICK = (
    "checkpoint: optimizer.pt Payload",
    "import: meta.pkl Payload",
    "checkpoint: pipe",
    "recipe: aliases",
    "resume: samples is a link to elsewhere",
    "corpus: Parquet, rows of 32 MB that are one",
    "corpus: file 'a\\nerror: all is well'",
)
MAX_BYTES = 1 << 30
NEWEST = "runs/tiny/checkpoints/step-000006"
SAMPLE = ["--checkpoint", "runs/tiny", "--prompt", "It", "--max-new-tokens", "2"]
RESUME = ["--config", "tiny.yaml", "--resume", "runs/tiny/checkpoints/step-000003"]
IMPORT = ["--from", "hf", "--input", "folder", "--output", "imported"]
NANOGPT = ["--from", "nanogpt", "--input", "folder/ckpt.pt", "--output", "imported"]
ENCODE = ["--config", "tiny.yaml", "data.path=evil"]
EXPORT = ["--to", "hf", "--checkpoint", "runs/tiny", "--output"]


def _encode() -> int:
    corpus_text.MAX_CHARACTERS = 50_000_000  # in a child, which ends
    return prepare_data.main(ENCODE)


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
        return Attack(f"checkpoint: {name}", NEWEST, prepare, partial(sample.main, SAMPLE))

    def imported(name: str, prepare: Prepare, arguments: list[str] = IMPORT) -> Attack:
        return Attack(f"import: {name}", "folder", prepare, partial(import_model.main, arguments))

    def resumed(name: str, prepare: Prepare) -> Attack:
        name = f"resume: {name} is a link to elsewhere"
        return Attack(name, "runs/tiny", prepare, partial(train.main, RESUME), (0, 2))

    resume = partial(train.main, ["--config", "tiny.yaml", "--resume", NEWEST])  # nothing else reads an optimizer
    yield Attack("checkpoint: optimizer.pt expands to 1 GB", NEWEST, zip_bomb("optimizer.pt"), resume)
    for kind in (Payload, Allocation):
        yield Attack(f"checkpoint: optimizer.pt {kind.__name__}", NEWEST, pickled("optimizer.pt", kind, True), resume)
        for by_torch in (True, False):
            yield imported(f"ckpt.pt {kind.__name__} {by_torch}", pickled("ckpt.pt", kind, by_torch), NANOGPT)
        yield imported(f"meta.pkl {kind.__name__}", pickled("meta.pkl", kind, False, beside_checkpoint=True), NANOGPT)
    yield imported("ckpt.pt expands to 1 GB", zip_bomb("ckpt.pt"), NANOGPT)
    for name, prepare in (*tensor_files("model.safetensors"), *tokenizer_files("tokenizer.json")):
        yield sampled(name, prepare)
        yield imported(name, prepare)
    for name in ("h.0.mlp.c_fc.rounded", "h.0.mlp.c_fc.integers"):
        yield sampled(name, with_tensor("model.safetensors", name))
    yield sampled("tables of 10^8 positions", huge_tables)
    corpus = yaml_with("config.yaml", data={"source": "file", "path": "outside/secret", "dir": "outside"})
    evaluation = partial(evaluate.main, ["--checkpoint", "runs/tiny"])
    yield Attack("checkpoint: its corpus is elsewhere", NEWEST, corpus, evaluation)
    for name, content in yaml_files(folder):
        yield sampled(f"config.yaml {name}", write("config.yaml", content))
        yield Attack(f"recipe: {name}", ".", write("tiny.yaml", content), partial(train.main, RESUME))
    yield sampled("manifest of 300 GB", write("manifest.json", sparse=300 << 30))
    yield sampled("manifest names a file outside", json_with("manifest.json", files={"../../../../outside/secret": {}}))
    yield imported("sizes of 10^9", json_with("config.json", n_layer=10**9, num_hidden_layers=10**9, n_embd=10**9))
    yield imported("config.json of 300 GB", write("config.json", sparse=300 << 30))
    yield imported("config.json is a pipe", pipe("config.json"))
    index = json.dumps({"weight_map": {"a": "../outside/secret"}}).encode()
    yield imported("shards outside", write("model.safetensors.index.json", index))
    for name in ("samples", "checkpoints"):
        yield resumed(name, moved(name))
    for name in ("metrics.jsonl", "config.yaml", "last.json", "best.json"):
        yield resumed(name, linked(name, "../../outside/secret"))
    for name in ("../evil", "/tmp/evil", "a/b", "..", ".", "a\0b"):
        run = partial(train.main, ["--config", "tiny.yaml", f"run.name={name!r}"])
        yield Attack(f"run.name={name!r}", ".", lambda folder: None, run)
    for name, prepare, code in corpora():
        yield Attack(f"corpus: {name}", ".", prepare, _encode, (code,))
    run = partial(export.main, [*EXPORT, f"{NEWEST}/folder"])
    yield Attack("export into a checkpoint", ".", lambda folder: None, run)


def run(folder: Path, full: bool) -> Iterator[tuple[str, str, str]]:
    prepare_to_fork()
    origin, place = folder / "origin", folder / "place"
    origin.mkdir()
    train_tiny(origin, "train.keep_last=9")
    (origin / "outside").mkdir()
    (origin / "outside" / "secret").write_text("untouched")
    exported = run_forked(partial(export.main, [*EXPORT, "folder"]), origin)
    assert exported.code == 0, exported.output
    for attack in attacks(place):
        if full or attack.name in QUICK:
            shutil.copytree(origin, place)
            yield "hostile files refused", attack.name, ", ".join(_harm(attack, place))
            shutil.rmtree(place)


def _files(folder: Path) -> tuple[dict[str, str], list[str]]:
    return contents(folder), hidden_files(folder)


def _harm(attack: Attack, place: Path) -> list[str]:
    attack.prepare(place / attack.target)
    if attack.name.startswith("checkpoint") and "manifest" not in attack.name:
        seal(place / NEWEST)
    before, encoded = _files(place / "outside"), _files(place / "data")
    ending = run_forked(attack.run, place, Death(more_memory=4 * MAX_BYTES))
    is_refused = ending.code in attack.codes and "Traceback" not in ending.output
    harm = {
        "code in it was run": bool(list(place.rglob(MARK))),
        "something outside was changed": _files(place / "outside") != before,
        "token files of it are left": ending.code != 0 and _files(place / "data") != encoded,
        f"{ending.memory >> 20} MiB of memory": ending.memory >= MAX_BYTES,
        f"exit code {ending.code}: {ending.output[-300:]}": not is_refused,
    }
    return [what for what, is_done in harm.items() if is_done]
