"""One checkpoint folder: exact when whole, refused by name when not; and the model that is built
from it.
"""

import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import gpt.checkpoint.folder as folder_module
from gpt.checkpoint import (
    Checkpoint,
    build_model,
    load_weights,
    read_checkpoint,
    read_description,
    read_state,
    verify_checkpoint,
    weights_of,
    write_checkpoint,
)
from gpt.checkpoint.manifest import FORMAT, MANIFEST
from gpt.checkpoint.pickles import load_pickle
from gpt.data.tokenizers import ByteTokenizer
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import CheckpointError

NAMES = sorted(
    [MANIFEST, "config.yaml", "model.safetensors", "optimizer.pt", "state.json", "tokenizer.json"]
)


def assert_refused(folder: Path, name: str = "") -> None:
    """Reading and verifying both fail with a sentence about something in `folder`."""
    for function in (read_checkpoint, verify_checkpoint):
        with pytest.raises(CheckpointError) as error:
            function(folder)
        assert str(folder / name if name else folder) in str(error.value)


def rewrite(folder: Path, **contents: bytes) -> None:
    """Replace files, under a manifest that agrees: `optimizer_pt=...` is optimizer.pt."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST}
    files |= {name.replace("_", "."): data for name, data in contents.items()}
    folder_module.write_files(folder, files)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_read_gives_back_what_was_written_bit_by_bit(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], tie_weights: bool
) -> None:
    written = make_checkpoint(tie_weights=tie_weights)
    write_checkpoint(tmp_path / "c", written)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == NAMES
    read = read_checkpoint(tmp_path / "c")
    torch.testing.assert_close(
        (read.model, read.training), (written.model, written.training), rtol=0, atol=0
    )
    assert (read.state, read.config) == (written.state, written.config)
    assert read.tokenizer.to_dict() == written.tokenizer.to_dict()
    assert ("lm_head.weight" in read.model) is not tie_weights


def test_files_are_flushed_before_the_folder_is_renamed(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renaming first would, after a power cut, leave a checkpoint of empty files."""
    flushed: list[int] = []  # inodes, which a rename does not change, in order
    flushed_before_rename: list[int] = []
    rename = Path.rename

    def noting_rename(self: Path, target: Path) -> Path:
        flushed_before_rename.extend(flushed)
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(Path, "rename", noting_rename)
    folder = tmp_path / "c"
    write_checkpoint(folder, checkpoint)
    inodes = {path.name: path.stat().st_ino for path in [*folder.iterdir(), folder, tmp_path]}
    # The manifest comes last, so that it is whole only where the others are.
    assert set(flushed_before_rename) == {inodes[name] for name in [*NAMES, folder.name]}
    assert flushed_before_rename[-2:] == [inodes[MANIFEST], inodes[folder.name]]
    assert flushed == [*flushed_before_rename, inodes[tmp_path.name]]


def test_existing_checkpoint_is_replaced_as_a_whole(
    folder: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    (folder / "notes.txt").write_text("of the old one", encoding="utf-8")
    write_checkpoint(folder, make_checkpoint(step=7))
    assert read_checkpoint(folder).state["step"] == 7
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("name", NAMES)
def test_cut_or_missing_file_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for eighths in range(8):
        (folder / name).write_bytes(content[: len(content) * eighths // 8])
        assert_refused(folder, name)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(folder)


def test_one_flipped_bit_anywhere_is_noticed(folder: Path) -> None:
    contents = {name: (folder / name).read_bytes() for name in NAMES}
    draw = random.Random(0)
    places = [(name, draw.randrange(len(contents[name])), draw.randrange(8)) for name in NAMES * 8]
    version = contents[MANIFEST].index(str(FORMAT).encode())
    for name, place, bit in [*places, *((MANIFEST, version, bit) for bit in range(8))]:
        damaged = bytearray(contents[name])
        damaged[place] ^= 1 << bit
        (folder / name).write_bytes(damaged)
        # A manifest that is wrong may accuse another file.
        assert_refused(folder, "" if name == MANIFEST else name)
        (folder / name).write_bytes(contents[name])
    read_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        *((name, lambda entry: {}, f"does not list {name}") for name in NAMES if name != MANIFEST),
        *(
            ("state.json", lambda entry, name=name: {name: entry}, "step-000005")
            for name in ("", ".", "..", "a\0b")
        ),
        ("state.json", lambda entry: {"x" * 300: entry}, "File name too long"),
        # A name that leads out of the folder, to a file beside it.
        (
            "state.json",
            lambda entry: {"../secret.json": entry},
            r"step-000005.secret\.json",
        ),
        (
            "state.json",
            lambda entry: {"state.json": {**entry, "size": 1 << 50}},
            "bytes of memory are available",
        ),
    ],
    ids=range(12),
)
def test_manifest_that_lists_other_files_is_refused(
    folder: Path, name: str, change: Callable[[Any], dict[str, Any]], message: str
) -> None:
    (folder.parent / "secret.json").write_bytes((folder / "state.json").read_bytes())
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"] |= change(manifest["files"].pop(name))
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(folder)


def test_newer_format_asks_for_an_update(folder: Path) -> None:
    content = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(
        content.replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}')
    )
    with pytest.raises(CheckpointError, match=f"has format {FORMAT + 1}.*update gpt"):
        read_checkpoint(folder)


def test_something_else_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    for name in ("nothing", "", "file"):
        assert_refused(tmp_path / name)


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


class Payload:
    """Unpickling it calls a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call[0], self.call[1:]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("pickled", [saved, pickle.dumps, partial(pickle.dumps, protocol=2)])
@pytest.mark.parametrize("name", ["optimizer_pt", "model_safetensors"])
def test_pickle_that_would_run_code_is_refused_and_does_not_run(
    tmp_path: Path, folder: Path, pickled: Callable[[Payload], bytes], name: str
) -> None:
    rewrite(folder, **{name: pickled(Payload(Path.touch, tmp_path / "marker"))})
    verify_checkpoint(folder)  # the hashes agree
    with pytest.raises(CheckpointError, match=name.replace("_", r"\.")):
        read_checkpoint(folder)
    assert not (tmp_path / "marker").exists()


NESTED = b"\x80\x02})" + b"\x85" * 300_000 + b"K\x01s."
"""A dict whose key is a tuple in a tuple in a tuple."""
NESTED_IN_PAIRS = b"\x80\x02})" + b"N\x86" * 150_000 + b"K\x01s."
NESTED_BY_MEMO = b"\x80\x02})" + b"q\x01h\x01\x85" * 150_000 + b"K\x01s."


def zipped_anew(
    content: bytes,
    draw: random.Random | None = None,
    compression: int = zipfile.ZIP_STORED,
    pickled: bytes | None = None,
) -> bytes:
    """optimizer.pt with bytes of its pickle changed, if anything draws them, in an archive that is
    otherwise whole.
    """
    result = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as source,
        zipfile.ZipFile(result, "w", compression) as target,
    ):
        for name in source.namelist():
            data = bytearray(source.read(name))
            if pickled and name.endswith("data.pkl"):
                data = bytearray(pickled)
            if draw and name.endswith("data.pkl"):
                for _ in range(3):
                    data[draw.randrange(2, len(data))] = draw.randrange(256)
            target.writestr(name, bytes(data))
    return result.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        zipped_anew(saved({"moments": torch.zeros(100_000)}), None, zipfile.ZIP_DEFLATED),
        # A type that torch allows, and that takes as much memory as its argument says.
        saved({"moments": Payload(bytearray, 1_000_000)}),
        # Values nested so deeply that their hash would overflow the stack and end the process.
        *(
            zipped_anew(saved({}), pickled=nested)
            for nested in (NESTED, NESTED_IN_PAIRS, NESTED_BY_MEMO)
        ),
    ],
    ids=["compressed", "bytearray", "nested", "nested in pairs", "nested by memo"],
)
def test_archive_that_expands_beyond_its_bytes_is_refused(folder: Path, content: bytes) -> None:
    rewrite(folder, optimizer_pt=content)
    with pytest.raises(CheckpointError, match=r"optimizer\.pt cannot be read: it is damaged"):
        read_checkpoint(folder)
    assert read_checkpoint(folder, training=False).training == {}


def test_optimizer_of_thousands_of_tensors_is_read() -> None:
    moments = [torch.full((1,), float(number)) for number in range(12_000)]
    assert load_pickle(io.BytesIO(saved(moments))) == moments


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_whatever_an_unpickler_throws_is_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "sync_file", lambda path: None)
    content = (folder / "optimizer.pt").read_bytes()
    draw = random.Random(0)
    messages = []
    for _ in range(150):
        rewrite(folder, optimizer_pt=zipped_anew(content, draw))
        try:
            read_checkpoint(folder)
        except CheckpointError as error:
            messages.append(str(error))
    assert len(messages) > 75
    assert all("optimizer.pt cannot be read" in message for message in messages)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model_safetensors", b"\xff" * 7 + b"\x7f" + b"{}"),  # a header longer than the file
        ("model_safetensors", b"\x02" + b"\0" * 7 + b"{}"[:1]),
        ("state_json", b"{"),
        ("state_json", b"[" * 100_000),
        ("state_json", b"[]"),
        ("state_json", b"null"),
        ("state_json", b"39.5"),
        ("optimizer_pt", saved([1, 2])),
        ("tokenizer_json", b'{"type": "bpe"}'),
        ("tokenizer_json", b'{"type": "char", "chars": ["ab"]}'),
        ("config_yaml", b"model: {n_layer: 0}"),
        ("config_yaml", b"\xff\xfe"),
        ("config_yaml", b"run: {name: !!python/name:os.system}"),
    ],
)
def test_file_of_another_kind_is_named(folder: Path, name: str, content: bytes) -> None:
    rewrite(folder, **{name: content})
    with pytest.raises(CheckpointError, match=name.replace("_", r"\.") + " cannot be read"):
        read_checkpoint(folder)


def test_training_state_of_an_absurd_size_is_refused_unread(folder: Path) -> None:
    os.truncate(folder / "optimizer.pt", 9 << 30)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"]["optimizer.pt"]["size"] = 9 << 30
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with (
        patch("gpt.checkpoint.manifest.available_bytes", return_value=1 << 40),
        pytest.raises(
            CheckpointError,
            match=r"optimizer\.pt has an unreasonable size: 9,663,676,416 bytes for ",
        ),
    ):
        read_checkpoint(folder)
    assert read_state(folder)["step"] == 5
    assert read_description(folder)[0].model.block_size == 8


def test_only_the_files_that_are_wanted_have_to_be_whole(folder: Path) -> None:
    (folder / "optimizer.pt").write_bytes(bytes((folder / "optimizer.pt").stat().st_size))
    assert read_checkpoint(folder, training=False).training == {}
    with pytest.raises(CheckpointError, match=r"optimizer\.pt is damaged: its sha256"):
        read_checkpoint(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer\.json"):
        read_description(folder)


FOLDER = Path("runs/x/checkpoints/step-000005")


@pytest.mark.parametrize("tie_weights", [True, False])
def test_loaded_model_leaves_the_random_state_of_torch_alone(
    make_checkpoint: Callable[..., Checkpoint], tie_weights: bool
) -> None:
    checkpoint = make_checkpoint(tie_weights=tie_weights)
    before = torch.get_rng_state()
    model = build_model(checkpoint, FOLDER)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    weights = weights_of(model)
    assert weights.keys() == checkpoint.model.keys()
    assert all(torch.equal(weights[name], checkpoint.model[name]) for name in weights)
    assert (model.lm_head.weight is model.wte.weight) is tie_weights
    assert ("lm_head.weight" in weights) is not tie_weights


def test_weights_are_copied_into_the_same_parameters_or_refused(
    checkpoint: Checkpoint, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    model = GPT(checkpoint.config.model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError):
        load_weights(model, make_checkpoint(step=7, n_layer=2).model, FOLDER)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    parameters = {name: id(parameter) for name, parameter in model.named_parameters()}
    load_weights(model, checkpoint.model, FOLDER)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == parameters
    torch.nn.init.zeros_(model.wte.weight)
    assert checkpoint.model["wte.weight"].any()


@pytest.mark.parametrize(
    ("name", "weight", "words"),
    [
        ("ln_f.weight", torch.ones(9), r"is \(9,\) float32, expected \(8,\) float32"),
        (
            "ln_f.weight",
            torch.ones(8, dtype=torch.bfloat16),
            r"is \(8,\) bfloat16, expected \(8,\) float32",
        ),
        ("h.0.ln_3.weight", torch.ones(8), r"is \(8,\) float32, expected none"),
        ("lm_head.weight", torch.ones(8), r"is \(8,\) float32, expected none"),
        ("wte.weight", None, "is missing"),
        ("h.0.mlp.c_fc.weight", None, "is missing"),
    ],
)
def test_weight_that_does_not_fit_is_named(
    checkpoint: Checkpoint, name: str, weight: torch.Tensor | None, words: str
) -> None:
    weights = {
        key: value for key, value in {**checkpoint.model, name: weight}.items() if value is not None
    }
    with pytest.raises(CheckpointError, match=rf"{FOLDER} does not fit the model: {name} {words}"):
        build_model(replace(checkpoint, model=weights), FOLDER)


@pytest.mark.timeout(60)  # milliseconds, while such a model takes minutes and all memory to build
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_layer": 200_000}, "n_layer 200000, model.safetensors 1 blocks"),
        ({"n_embd": 10**6}, "does not fit the model: wte.weight"),
        ({"n_embd": 10**9}, "no tensor can have"),
        ({"mlp_width": 10**9}, "does not fit the model: h.0.mlp.c_fc."),
        ({"block_size": 10**9}, "does not fit the model: wpe.weight"),
        (
            {"vocab_size": 10**9, "block_size": 10**9, "position": "rope"},
            "does not fit the model: wte.weight",
        ),
        (
            {"block_size": 10**8, "position": "rope"},
            "config.yaml has an unreasonably large block_size of 100,000,000",
        ),
        (
            {"block_size": 10**8, "position": "sinusoidal"},
            "config.yaml has an unreasonably large block_size of 100,000,000",
        ),
    ],
)
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_sizes_unlike_the_weights_are_refused_before_allocating(
    make_checkpoint: Callable[..., Checkpoint], changes: dict[str, object], words: str, weights: str
) -> None:
    checkpoint = make_checkpoint(position=changes.get("position", "learned"))
    model = (
        checkpoint.model
        if weights == "float32"
        else weights_of(quantize(build_model(checkpoint, FOLDER), weights))
    )
    section = checkpoint.config.model.model_copy(update=changes)
    config = checkpoint.config.model_copy(update={"model": section})
    with pytest.raises(CheckpointError) as caught:
        build_model(replace(checkpoint, config=config, model=model), FOLDER)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vocabulary_may_be_larger_than_the_tokenizer_not_smaller(
    checkpoint: Checkpoint, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    assert build_model(make_checkpoint(vocab_size=64), FOLDER).vocab_size == 64
    with pytest.raises(CheckpointError, match="the tokenizer has 256 ids, the model 10"):
        build_model(replace(checkpoint, tokenizer=ByteTokenizer()), FOLDER)
