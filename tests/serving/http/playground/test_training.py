"""/api/training: a training from a text that was pasted to a finished run, stopped and gone on with on the way."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpt.accounting.parameters import count_parameters
from gpt.checkpoint import RunFolder
from gpt.config.loading import load_config
from gpt.corpora.locating import pydocs_text
from gpt.errors import GPTError
from gpt.serving.http.playground import corpora, launcher
from gpt.serving.http.playground.launcher import BusyError, Launcher, launched_process
from gpt.serving.http.playground.recipes import VOCABULARY
from http_server import assert_is_error
from patience import PATIENCE
from serving.http.playground.training import TEXT, Site

WAITS = "import signal, sys; signal.signal(15, lambda *a: sys.exit(143)); print('ready', flush=True); signal.pause()"
"""A command that trains nothing, and ends at SIGTERM."""


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The train command only waits to be stopped."""
    monkeypatch.setattr(launcher, "COMMAND", (sys.executable, "-c", WAITS))


@pytest.mark.usefixtures("waiting")
def test_while_a_teacher_is_trained_its_run_is_shown(site: Site) -> None:
    shown = site.post("/start", {"recipe": "endless", "text": TEXT, "name": "mine"}).json()["training"]["run"]["name"]
    RunFolder(site.place / "runs" / "mine-teacher").create(load_config(site.place / "configs" / "endless.yaml").config)
    taught = site.wait_for(lambda training: training["run"]["name"] != "mine")["run"]["name"]
    site.post("/stop", {"name": "mine"})
    site.wait_until_ended()
    assert (shown, taught) == ("mine", "mine-teacher")


def test_a_pasted_text_is_trained_on_stopped_and_gone_on_with(site: Site) -> None:
    started = site.post("/start", {"recipe": "endless", "text": TEXT, "name": "mine"})
    assert started.status_code == 200
    assert started.json()["training"]["run"]["name"] == "mine"
    training = site.wait_for(lambda training: training["run"]["step"] >= 3)
    assert training["state"] == "training"
    assert training["run"]["seconds_left"] > 0
    assert any("step " in line for line in training["lines"])
    assert "run.name=" in training["command"]
    assert site.post("/start", {"recipe": "tiny", "text": TEXT}).status_code == 409
    assert site.post("/stop", {"name": "mine"}).json()["training"]["state"] in ("stopping", "ended")
    ended = site.wait_until_ended()
    assert ended["exit_code"] == 143
    assert "saved in" in ended["lines"][-1]
    run = RunFolder(site.place / "runs" / "mine")
    found = run.newest_valid()
    assert found is not None
    step = int(found[1].state["step"])
    assert step >= 3
    assert site.post("/resume", {"name": "mine"}).status_code == 200
    site.wait_for(lambda training: training["run"]["step"] > step + 3)
    site.post("/stop", {"name": "mine"})
    assert site.wait_until_ended()["exit_code"] == 143
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    steps = [row["step"] for row in rows if "train/loss" in row]
    assert steps == list(range(1, len(steps) + 1))  # of both processes, without a gap


def test_a_training_to_its_end_is_an_ordinary_run(site: Site) -> None:
    site.post("/start", {"recipe": "tiny", "corpus": "books/keys.txt"})
    assert site.wait_until_ended()["exit_code"] == 0
    run = RunFolder(site.place / "runs" / "tiny-1")
    assert run.newest_valid() is not None
    config = run.config()
    assert config is not None
    assert config.data.path == str(site.place / "data" / "books" / "keys.txt")
    assert_is_error(site.post("/resume", {"name": "tiny-1"}), 409, None, "all its 6 steps")


def test_a_training_that_cannot_begin_says_why_and_leaves_nothing(site: Site) -> None:
    (site.place / "data" / "one.txt").write_text("a" * 1000)
    site.post("/start", {"recipe": "tiny", "corpus": "one.txt"})
    assert site.wait_until_ended()["exit_code"] == 2
    assert not (site.place / "runs" / "tiny-1").exists()
    assert "1 distinct characters" in site.get().json()["training"]["lines"][-1]


@pytest.mark.parametrize(("code", "free", "says"), [(2, 4096, True), (2, 10**9, False), (0, 4096, False)])
def test_a_training_whose_console_found_no_room_says_why_it_ended(
    place: Path, monkeypatch: pytest.MonkeyPatch, code: int, free: int, says: bool
) -> None:
    ends = f"import pathlib, sys; pathlib.Path('{place}/runs/a/config.yaml').touch(); sys.exit({code})"
    monkeypatch.setattr(launcher, "COMMAND", (sys.executable, "-c", ends))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 0, free))  # type: ignore[attr-defined]
    started = Launcher(place / "runs")
    started.start("a", [], is_new=True)
    assert started._process is not None
    assert started._process.wait(PATIENCE) == code
    lines = started.lines("a")
    monkeypatch.undo()
    assert started.lines("a") == lines  # also once there is room again
    assert [f"the disk of {place / 'runs'} is full" in line for line in lines] == [True] * says


def test_what_can_be_chosen(site: Site) -> None:
    choices = site.get("/choices", params={"characters": 10_000}).json()
    assert [recipe["name"] for recipe in choices["recipes"]] == ["tiny", "endless"]
    recipe = choices["recipes"][0]
    assert (recipe["about"], recipe["max_steps"], recipe["tokens_per_step"]) == ("The tiny one.", 6, 64)
    texts = [(corpus["source"], corpus["file"]) for corpus in choices["corpora"]]
    assert texts == [("shakespeare", None), ("pydocs", None), ("file", "books/keys.txt")]
    assert choices["corpora"][2]["characters"] == len(TEXT)


@pytest.mark.parametrize(
    ("text", "vocabulary"),
    [
        ({"corpus": "books/keys.txt"}, len(set(TEXT))),
        ({"vocabulary": 31}, 31),
        ({"corpus": "shakespeare"}, 65),
        ({"corpus": "pydocs"}, len(set(pydocs_text()))),
        ({"corpus": "../configs/tiny.yaml"}, VOCABULARY),
        ({}, VOCABULARY),
    ],
)
def test_the_parameters_are_those_of_a_model_of_the_text(
    site: Site, place: Path, text: dict[str, object], vocabulary: int
) -> None:
    model = load_config(place / "configs" / "tiny.yaml").config.model.model_copy(update={"vocab_size": vocabulary})
    recipe = site.get("/choices", params=text).json()["recipes"][0]
    assert recipe["parameters"] == count_parameters(model).total


@pytest.mark.usefixtures("waiting")
def test_only_one_trains_at_a_time_wherever_it_was_started(site: Site, place: Path) -> None:
    other = RunFolder(place / "runs" / "elsewhere")
    other.lock()
    other.create(load_config(place / "configs" / "tiny.yaml").config)
    assert_is_error(site.post("/start", {"recipe": "tiny", "text": TEXT}), 409, None, "elsewhere is being trained")
    training = site.get().json()["training"]
    assert (training["run"]["name"], training["state"], training["can_stop"]) == ("elsewhere", "training", False)
    assert_is_error(site.post("/stop", {"name": "elsewhere"}), 409, None, "Ctrl-C where it was")
    other.unlock()
    assert site.post("/start", {"recipe": "tiny", "text": TEXT}).status_code == 200
    site.wait_for(lambda training: "ready" in training["lines"])  # before, the signal itself would end it
    assert site.post("/stop", {"name": "tiny-1"}).status_code == 200
    assert site.wait_until_ended()["exit_code"] == 143


WRONG: dict[str, list[dict[str, Any]]] = {
    "either corpus or text": [{}, {"text": TEXT, "corpus": "pydocs"}],
    "no recipe": [{"recipe": recipe, "text": TEXT} for recipe in ("none", "../configs/tiny")],
    "no corpus": [{"corpus": corpus} for corpus in ("../configs/tiny.yaml", "/etc/passwd", "books", "outside.txt")],
    "this recipe needs 170": [{"text": "short"}],
    "empty": [{"text": " " * 1000}],
    "NUL": [{"text": "\0" * 1000}],
    "surrogate": [{"text": "\ud800" * 1000}],
    "name": [{"text": TEXT, "name": name} for name in ("../out", "-x", ".x", "a\nb", "a" * 65)],
    "max_steps": [{"text": TEXT, "max_steps": 3}],
    "overrides": [{"text": TEXT, "overrides": ["run.dir=/"]}],
    "recipe": [{"recipe": ["tiny"], "text": TEXT}],
}
BODIES = [({"recipe": "tiny", **body}, message) for message, bodies in WRONG.items() for body in bodies]


@pytest.mark.parametrize(("body", "message"), [*BODIES, ([], "object"), (None, "object")])
def test_what_cannot_be_trained_is_refused_and_nothing_is_written(
    site: Site, body: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_launch", lambda *arguments: pytest.fail("something was started"))
    (site.place / "outside.txt").write_text(TEXT)
    (site.place / "data" / "outside.txt").symlink_to(site.place / "outside.txt")
    before = sorted(site.place.rglob("*"))
    answer = site.post("/start", body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert sorted(site.place.rglob("*")) == before


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("name", ["123", "1e3", "true", "null", "a.b-c_d", "x" * 64])
def test_a_name_stays_the_text_that_it_is(site: Site, name: str) -> None:
    body = {"recipe": "tiny", "text": TEXT, "name": name}
    assert site.post("/start", body).status_code == 200
    site.wait_for(lambda training: "ready" in training["lines"])
    (site.place / "runs" / name / "config.yaml").touch()  # it has begun, so that its folder stays
    command = json.loads((site.place / "runs" / name / "launched.json").read_text())["command"]
    overrides = [part for part in command if "=" in part and part.partition("=")[0].count(".") == 1]
    config = load_config(site.place / "configs" / "tiny.yaml", overrides).config
    assert (config.run.name, config.run.dir) == (name, str(site.place / "runs"))
    site.post("/stop", {"name": name})
    site.wait_until_ended()
    assert_is_error(site.post("/start", body), 409, None, "choose another name")


@pytest.mark.usefixtures("waiting")
def test_a_folder_that_holds_no_run_is_not_written_into(site: Site) -> None:
    (site.place / "runs" / "mine").mkdir(parents=True)
    refused = site.post("/start", {"recipe": "tiny", "text": TEXT, "name": "mine"})
    assert_is_error(refused, 409, None, "choose another name")


@pytest.mark.parametrize("path", ["/stop", "/resume"])
@pytest.mark.parametrize("name", ["none", "..", "../runs", "/", ""])
def test_only_a_run_can_be_stopped_or_gone_on_with(site: Site, path: str, name: str) -> None:
    assert site.post(path, {"name": name}).status_code in (404, 409)


def test_a_pasted_text_is_one_file_by_its_hash(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = corpora.Corpora(place / "data")
    name = texts.paste("\ufeffone\r\ntwo")
    assert name == f"pasted-{hashlib.sha256(b'one' + bytes([10]) + b'two').hexdigest()[:16]}.txt"
    assert texts.paste("one\ntwo") == name
    assert (place / "data" / name).read_bytes() == b"one\ntwo"
    assert texts.available()[-1].begins == "one two"
    monkeypatch.setattr(corpora, "MAX_PASTED_BYTES", 20)
    with pytest.raises(corpora.DataError, match="delete some"):
        texts.paste("x" * 14)
    assert texts.paste("x" * 13)
    monkeypatch.setattr(corpora, "TEXT_BYTES", 5)
    with pytest.raises(corpora.DataError, match="limit of 5"):
        texts.paste("ééé")


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("writes", [0, 1])
def test_a_training_that_is_refused_for_a_full_disk_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    launch, write, written = launcher._launch, launcher.write_atomic, iter(range(2))

    def note(command: Any, console: int) -> Any:
        started.append(launch(command, console))
        return started[-1]

    def fill(path: Path, content: bytes) -> None:
        if next(written) == writes:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(launcher, "_launch", note)
    monkeypatch.setattr(launcher, "write_atomic", fill)
    with pytest.raises(GPTError, match="No space left"):
        Launcher(tmp_path).start("a", [], is_new=True)
    assert len(started) == writes
    assert all(process.poll() is not None for process in started)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("waiting")
def test_a_second_stop_does_not_interrupt_the_saving(tmp_path: Path) -> None:
    started = Launcher(tmp_path)
    started.start("a", [], is_new=True)
    with pytest.raises(BusyError):
        started.start("b", [], is_new=True)
    while "ready" not in started.lines("a"):
        time.sleep(0.01)
    sent: list[int] = []
    process = started._process
    assert process is not None
    process.send_signal, real = sent.append, process.send_signal  # type: ignore[method-assign, assignment]
    started.stop()
    started.stop()
    assert sent == [15]
    real(15)
    assert process.wait(PATIENCE) == 143
    assert not started.running


def test_a_number_of_a_process_that_is_not_the_command_is_nobody(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "a")
    run.path.mkdir()
    other = subprocess.Popen([sys.executable, "-c", WAITS])
    run.lock()
    try:
        for pid, command in ((other.pid, ["another"]), (os.getpid(), []), (10**8, ["x"]), ("x", 3)):
            (run.path / "launched.json").write_text(json.dumps({"pid": pid, "command": command}))
            assert launched_process(run.path) is None
        (run.path / "launched.json").write_text(json.dumps({"pid": other.pid, "command": other.args}))
        assert launched_process(run.path) == other.pid
        run.unlock()
        assert launched_process(run.path) is None
    finally:
        other.kill()
        other.wait()
