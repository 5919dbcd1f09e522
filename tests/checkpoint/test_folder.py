"""One checkpoint folder: exact when whole, and refused by name when not."""

import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gpt.checkpoint.folder as folder_module
from gpt.checkpoint import Checkpoint, read_checkpoint, verify_checkpoint, write_checkpoint
from gpt.checkpoint.folder import FORMAT, MANIFEST
from gpt.system.errors import CheckpointError

NAMES = sorted([MANIFEST, "config.yaml", "model.safetensors", "optimizer.pt", "state.json", "tokenizer.json"])


def assert_equal_trees(actual: Any, expected: Any) -> None:
    """Nested dicts and lists of tensors and values, the tensors bit by bit."""
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_equal_trees(actual[key], expected[key])
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            assert_equal_trees(left, right)
    else:
        assert actual == expected


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
    folder_module._write_files(folder, files)


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


# --- whole ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tie_weights", [True, False])
def test_what_was_written_is_read_back_bit_by_bit(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], tie_weights: bool
) -> None:
    written = make_checkpoint(tie_weights=tie_weights)
    write_checkpoint(tmp_path / "c", written)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == NAMES
    read = read_checkpoint(tmp_path / "c")
    assert_equal_trees(dict(sorted(read.model.items())), dict(sorted(written.model.items())))
    assert_equal_trees(read.training, written.training)
    assert (read.state, read.config) == (written.state, written.config)
    assert read.tokenizer.to_dict() == written.tokenizer.to_dict()
    assert ("lm_head.weight" in read.model) is not tie_weights


def test_every_file_is_flushed_before_the_folder_gets_its_name_and_then_the_name_is(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renaming first would, after a power cut, leave a checkpoint of empty files."""
    events: list[str] = []
    rename = Path.rename
    monkeypatch.setattr(folder_module, "sync_file", lambda path: events.append(path.name))
    monkeypatch.setattr(folder_module, "sync_folder", lambda path: events.append(f"{path.name[:3]}/"))
    monkeypatch.setattr(Path, "rename", lambda self, target: (events.append("rename"), rename(self, target))[1])
    write_checkpoint(tmp_path / "c", checkpoint)
    assert sorted(events[: len(NAMES)]) == NAMES
    assert events[len(NAMES) - 1 :] == [MANIFEST, ".c./", "rename", f"{tmp_path.name[:3]}/"]


def test_an_existing_checkpoint_is_replaced_as_a_whole(
    folder: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    (folder / "notes.txt").write_text("of the old one", encoding="utf-8")
    write_checkpoint(folder, make_checkpoint(step=7))
    assert read_checkpoint(folder).state["step"] == 7
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    assert list(folder.parent.iterdir()) == [folder]


# --- damaged -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_was_cut_or_is_missing_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for eighths in range(8):
        (folder / name).write_bytes(content[: len(content) * eighths // 8])
        assert_refused(folder, name)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(folder)


def test_one_flipped_bit_anywhere_is_noticed(folder: Path) -> None:
    contents, draw = {name: (folder / name).read_bytes() for name in NAMES}, random.Random(0)
    places = [(name, draw.randrange(len(contents[name])), draw.randrange(8)) for name in NAMES * 8]
    version = contents[MANIFEST].index(str(FORMAT).encode())
    for name, place, bit in [*places, *((MANIFEST, version, bit) for bit in range(8))]:
        damaged = bytearray(contents[name])
        damaged[place] ^= 1 << bit
        (folder / name).write_bytes(damaged)
        assert_refused(folder, "" if name == MANIFEST else name)  # a wrong manifest may accuse another file
        (folder / name).write_bytes(contents[name])
    read_checkpoint(folder)


@pytest.mark.parametrize("name", [name for name in NAMES if name != MANIFEST])
def test_a_file_that_the_manifest_leaves_out_is_named(folder: Path, name: str) -> None:
    edit_manifest(folder, lambda manifest: manifest["files"].pop(name))
    with pytest.raises(CheckpointError, match=f"does not list {name}"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000),
        *(b'{"format": 1}', b'{"format": 1, "files": 3}', b'{"format": Infinity, "files": {}}'),
    ],
)
def test_a_manifest_of_another_kind_is_damaged_and_one_of_a_newer_format_asks_for_an_update(
    folder: Path, content: bytes
) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(format=FORMAT + 1))
    with pytest.raises(CheckpointError, match=f"has format {FORMAT + 1}.*update gpt"):
        read_checkpoint(folder)
    (folder / MANIFEST).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        read_checkpoint(folder)


def test_something_else_is_not_a_checkpoint(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nothing")
    assert_refused(tmp_path)
    (tmp_path / "file").write_bytes(b"text")
    assert_refused(tmp_path / "file")


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "x" * 300])
def test_a_manifest_may_list_names_that_no_file_can_have(folder: Path, name: str) -> None:
    edit_manifest(folder, lambda manifest: manifest["files"].update({name: {"size": 1, "sha256": ""}}))
    assert_refused(folder)


def test_a_manifest_cannot_point_outside_its_folder(folder: Path) -> None:
    secret = folder.parent / "secret.json"
    secret.write_bytes((folder / "state.json").read_bytes())
    edit_manifest(folder, lambda m: m["files"].update({"../secret.json": m["files"].pop("state.json")}))
    with pytest.raises(CheckpointError, match=r"step-000005.secret\.json"):
        read_checkpoint(folder)


# --- hostile -------------------------------------------------------------------------------------


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


class Payload:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.marker,)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("pickled", [saved, pickle.dumps, lambda payload: pickle.dumps(payload, protocol=2)])
@pytest.mark.parametrize("name", ["optimizer_pt", "model_safetensors"])
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(
    tmp_path: Path, folder: Path, pickled: Callable[[Payload], bytes], name: str
) -> None:
    marker = tmp_path / "marker"
    rewrite(folder, **{name: pickled(Payload(marker))})
    verify_checkpoint(folder)  # the hashes agree
    with pytest.raises(CheckpointError, match=name.replace("_", r"\.")):
        read_checkpoint(folder)
    assert not marker.exists()


def with_broken_pickle(content: bytes, draw: random.Random) -> bytes:
    """optimizer.pt with bytes of its pickle changed, in an archive that is otherwise whole."""
    source, result = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    with zipfile.ZipFile(result, "w") as target:
        for name in source.namelist():
            data = bytearray(source.read(name))
            if name.endswith("data.pkl"):
                for _ in range(3):
                    data[draw.randrange(2, len(data))] = draw.randrange(256)
            target.writestr(name, bytes(data))
    return result.getvalue()


class Allocation:
    """A few bytes of pickle that torch lets take as many as they say."""

    def __reduce__(self) -> tuple[Callable[[int], bytearray], tuple[int]]:
        return bytearray, (1_000_000,)


def deflated(content: bytes) -> bytes:
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    return result.getvalue()


@pytest.mark.parametrize(
    "content", [deflated(saved({"moments": torch.zeros(100_000)})), saved({"moments": Allocation()})]
)
def test_an_archive_that_takes_more_than_its_bytes_is_refused_and_no_reader_of_weights_opens_it(
    folder: Path, content: bytes
) -> None:
    rewrite(folder, optimizer_pt=content)
    with pytest.raises(CheckpointError, match=r"optimizer\.pt cannot be read: it is damaged"):
        read_checkpoint(folder)
    assert read_checkpoint(folder, training=False).training == {}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_whatever_an_unpickler_throws_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "sync_file", lambda path: None)
    content, draw = (folder / "optimizer.pt").read_bytes(), random.Random(0)
    messages = []
    for _ in range(150):
        rewrite(folder, optimizer_pt=with_broken_pickle(content, draw))
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
def test_a_file_of_another_kind_is_named(folder: Path, name: str, content: bytes) -> None:
    rewrite(folder, **{name: content})
    with pytest.raises(CheckpointError, match=name.replace("_", r"\.") + " cannot be read"):
        read_checkpoint(folder)


def test_a_checkpoint_larger_than_the_memory_is_refused_before_it_is_read(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest["files"]["model.safetensors"].update(size=1 << 50))
    os.truncate(folder / "model.safetensors", 1 << 40)  # a hole, without disk
    with pytest.raises(CheckpointError, match="bytes of memory are available"):
        read_checkpoint(folder)
