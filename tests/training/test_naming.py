"""A run of another configuration takes the next free name, and the run that has the name stays as
it is.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

import gpt
from gpt.checkpoint import RunFolder
from gpt.cli import train
from gpt.system.errors import CheckpointError
from gpt.training.signals import Interrupted
from plugin_files import plugin_of, unload
from tiny import CORPUS
from training.sessions import start_session as start
from training.sessions import stopped_after

SHORT = "train.max_steps=3"
LONG = "train.max_steps=6"
COMMAND = ["--config", "tiny.yaml", "train.sample_tokens=0"]


def files(run: Path) -> dict[str, bytes]:
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file()
    }


def all_runs(place: Path) -> dict[str, dict[str, bytes]]:
    # Lock files, which begin with a dot, are left out.
    return {path.name: files(path) for path in sorted((place / "runs").glob("[!.]*"))}


def last_of(run: Path) -> str:
    folder = RunFolder(run).pointed("last")
    assert folder is not None
    assert folder.parents[1] == run
    return folder.name


@pytest.fixture
def finished(tmp_path: Path) -> dict[str, bytes]:
    """The files of a run of three steps in the folder runs/run."""
    start(tmp_path, SHORT).run()
    return files(tmp_path / "runs/run")


def test_configurations_take_the_next_names_and_are_found_again(
    tmp_path: Path, finished: dict[str, bytes]
) -> None:
    runs = tmp_path / "runs"
    lines: list[str] = []
    start(tmp_path, LONG, report=lines.append).run()
    assert (
        f"{runs / 'run'} is a run of another configuration (train.max_steps: 3 -> 6), and stays; "
        f"this run is {runs / 'run-2'}" in lines
    )
    with stopped_after(1), pytest.raises(Interrupted):
        start(tmp_path, "run.seed=5", resume="auto").run()
    assert {name: last_of(runs / name) for name in all_runs(tmp_path)} == {
        "run": "step-000003",
        "run-2": "step-000006",
        "run-3": "step-000001",
    }
    for options in (SHORT, LONG, "run.seed=5"):
        with pytest.raises(CheckpointError, match="exists already, with this configuration"):
            start(tmp_path, options)
    for options, name in ((LONG, "run-2"), (SHORT, "run"), ("run.seed=5", "run-3")):
        trainer = start(tmp_path, options, resume="auto")
        assert (trainer.run_folder.path.name, trainer.config.run.name) == (name, "run")
        trainer.run()
    assert last_of(runs / "run-3") == "step-000006"
    assert files(runs / "run")["metrics.jsonl"] == finished["metrics.jsonl"]
    trainer = start(tmp_path, "run.seed=5", resume=str(runs / "run-3/checkpoints/step-000003"))
    assert (trainer.run_folder.path.name, trainer.state.step) == ("run-3", 3)
    trainer.run()
    start(tmp_path, "run.seed=6", resume="auto", allow_config_change=True).run()
    assert all_runs(tmp_path).keys() == {"run", "run-2", "run-3"}


def test_run_numbered_by_a_person_and_a_saved_model_stay(
    tmp_path: Path, finished: dict[str, bytes]
) -> None:
    runs = tmp_path / "runs"
    with stopped_after(1), pytest.raises(Interrupted):
        start(tmp_path, LONG, "run.name=run-2").run()
    shutil.copytree(runs / "run/checkpoints/step-000003", runs / "run-3")  # as gpt.save writes it
    (runs / "run-4").mkdir()
    others = {name: content for name, content in all_runs(tmp_path).items() if name != "run"}
    start(tmp_path, "run.seed=5", resume="auto", allow_config_change=True).run()
    assert last_of(runs / "run") == "step-000006"
    start(tmp_path, "run.seed=6", resume="auto").run()
    start(tmp_path, LONG).run()  # as run-2, but that is of another name
    assert {name: last_of(runs / name) for name in ("run-5", "run-6")} == {
        "run-5": "step-000006",
        "run-6": "step-000006",
    }
    assert start(tmp_path, LONG, resume="auto").run_folder.path.name == "run-6"
    assert {
        name: content for name, content in all_runs(tmp_path).items() if name in others
    } == others


def test_allowed_change_continues_the_run_that_was_refused(
    tmp_path: Path, finished: dict[str, bytes]
) -> None:
    with stopped_after(1), pytest.raises(Interrupted):
        start(tmp_path, LONG).run()
    with pytest.raises(
        CheckpointError, match=r"run-2.checkpoints.*pass --allow-config-change to continue with it"
    ):
        start(tmp_path, "run.seed=5", resume="auto")
    start(tmp_path, "run.seed=5", resume="auto", allow_config_change=True).run()
    assert last_of(tmp_path / "runs/run-2") == "step-000006"
    assert files(tmp_path / "runs/run") == finished


def test_name_of_a_run_that_was_deleted_is_free_again(
    tmp_path: Path, finished: dict[str, bytes]
) -> None:
    for seed in (2, 3):
        start(tmp_path, SHORT, f"run.seed={seed}").run()
    shutil.rmtree(tmp_path / "runs/run-2")
    (tmp_path / "runs/run-2024").mkdir()
    (tmp_path / "runs/run-2024/config.yaml").write_text("run: {seed: 3}", encoding="utf-8")
    assert start(tmp_path, SHORT, "run.seed=3", resume="auto").run_folder.path.name == "run-3"
    assert start(tmp_path, SHORT, "run.seed=4").run_folder.path.name == "run-2"


def test_finished_run_goes_on_if_its_resume_asks_for_more_steps(
    tmp_path: Path, finished: dict[str, bytes]
) -> None:
    lines = list[str]()
    trainer = start(tmp_path, LONG, "optim.warmup_steps=5", resume="auto", report=lines.append)
    assert (
        sum(
            "continues to step 6, not 3, at the rates of the longer schedule" in line
            for line in lines
        )
        == 1
    )
    assert trainer.state.step == 3
    trainer.run()
    assert all_runs(tmp_path).keys() == {"run"}
    assert last_of(tmp_path / "runs/run") == "step-000006"


def test_run_of_the_same_configuration_is_refused_without_resume(
    tmp_path: Path, finished: dict[str, bytes]
) -> None:
    with pytest.raises(
        CheckpointError, match=r"exists already, with this configuration; continue it with --resume"
    ):
        start(tmp_path, SHORT)
    start(tmp_path, SHORT, "train.log_interval=2", resume="auto").run()
    options = ("run.name=tuned", f"train.init_from={tmp_path / 'runs/run'}", "train.max_steps=2")
    start(tmp_path, *options).run()
    with pytest.raises(
        CheckpointError, match="with this configuration"
    ):  # the architecture is that of the base
        start(tmp_path, *options)
    assert all_runs(tmp_path).keys() == {"run", "tuned"}


def test_unfinished_run_of_another_configuration_is_not_resumed(tmp_path: Path) -> None:
    with stopped_after(1), pytest.raises(Interrupted):
        start(tmp_path, LONG).run()
    ways = (
        "train.max_steps: 6 -> 3.*--allow-config-change to continue.*leave --resume out to "
        "begin a new run"
    )
    with pytest.raises(CheckpointError, match=ways):
        start(tmp_path, SHORT, resume="auto")
    start(tmp_path, SHORT).run()
    assert last_of(tmp_path / "runs/run") == "step-000001"
    assert last_of(tmp_path / "runs/run-2") == "step-000003"


def test_run_may_begin_with_the_one_that_has_its_name(
    tmp_path: Path, finished: dict[str, bytes]
) -> None:
    for key, name in (("train.init_from", "run-2"), ("train.teacher", "run-3")):
        trainer = start(tmp_path, SHORT, f"{key}={tmp_path / 'runs/run'}")
        trainer.run()
        assert trainer.run_folder.path.name == name
    assert files(tmp_path / "runs/run") == finished


def test_refused_run_leaves_nothing(tmp_path: Path, finished: dict[str, bytes]) -> None:
    lines = list[str]()
    with pytest.raises(gpt.GPTError, match="torch does not compile native kernels"):
        start(tmp_path, LONG, "run.kernels=native", "run.compile=true", report=lines.append)
    assert not [line for line in lines if "this run is" in line]
    assert all_runs(tmp_path) == {"run": finished}
    assert not list((tmp_path / "runs").glob(".*"))


def test_edited_text_is_another_run_and_prints_how_to_continue(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(COMMAND) == 0
    before = files(workplace / "runs/tiny")
    (workplace / "corpus.txt").write_text(
        CORPUS * 30 + "A line more, with a new character: %.\n", encoding="utf-8"
    )
    capsys.readouterr()
    assert train.main(COMMAND) == 0
    said = capsys.readouterr().err
    assert "runs/tiny is a run of another configuration (data: another text), and stays" in said
    again = re.findall("to begin with what runs/tiny has learned: gpt train (.*)", said)[0]
    assert train.main(shlex.split(again)) == 0
    assert (
        "runs/tiny-3: beginning with runs/tiny/checkpoints/step-000006" in capsys.readouterr().err
    )
    assert files(workplace / "runs/tiny") == before
    lines: list[str] = []
    gpt.train(text=CORPUS * 31, config="runs/tiny/config.yaml", report=lines.append)
    again = next(line for line in lines if "has learned" in line).partition("gpt train ")[2]
    assert train.main(shlex.split(again)) == 0
    assert "runs/tiny-5: beginning with runs/tiny/" in capsys.readouterr().err


@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize("stopped", [False, True])
def test_run_with_a_plugin_does_not_block_its_name(
    workplace: Path, capsys: pytest.CaptureFixture[str], stopped: bool
) -> None:
    plugin_of(workplace)
    with stopped_after(2 if stopped else 99):
        assert train.main([*COMMAND, "model.mlp=own_mish", "--plugin", "my_parts.py"]) == (
            143 if stopped else 0
        )
    before = files(workplace / "runs/tiny")
    unload()
    capsys.readouterr()
    if stopped:
        assert train.main([*COMMAND, "--resume", "auto"]) == 2
        assert (
            "model.mlp: own_mish comes from the plugin my_parts.py; pass --plugin my_parts.py"
            in capsys.readouterr().err
        )
    assert train.main([*COMMAND, *([] if stopped else ["--resume", "auto"])]) == 0
    said = capsys.readouterr().err
    assert (
        "runs/tiny is a run of another configuration (it cannot be read here: "
        "runs/tiny/config.yaml:"
    ) in said
    assert gpt.train(
        config="tiny.yaml", sample_tokens=0, resume="auto", report=None
    ).folder == Path("runs/tiny-2")
    with pytest.raises(gpt.GPTError, match="runs/tiny-2 exists already, with this configuration"):
        gpt.train(config="tiny.yaml", sample_tokens=0, report=None)
    assert files(workplace / "runs/tiny") == before


BEGIN = """
import sys
from pathlib import Path
from training.sessions import start_session
trainer = start_session(Path(sys.argv[1]), *sys.argv[2:])
print(trainer.run_folder.path.name, flush=True)
sys.stdin.read()
trainer.run()
"""


@pytest.mark.parametrize(("options", "name"), [((SHORT,), ""), ((LONG,), "run-2")])
def test_name_of_a_run_that_another_process_trains(
    tmp_path: Path, options: tuple[str, ...], name: str
) -> None:
    command = [sys.executable, "-c", BEGIN, str(tmp_path), SHORT]
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tests
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "run\n"
        if name:
            trainer = start(tmp_path, *options)
            assert trainer.run_folder.path.name == name
            trainer.run()
        else:
            with pytest.raises(
                CheckpointError, match=f"^another process is training {tmp_path / 'runs/run'}; "
            ):
                start(tmp_path, *options)
        other.communicate("")
    assert other.returncode == 0
    assert last_of(tmp_path / "runs/run") == "step-000003"


def test_name_taken_by_another_process_is_refused_in_one_line(tmp_path: Path) -> None:
    lock = RunFolder.lock

    def late(run: RunFolder) -> None:
        with patch.object(RunFolder, "lock", lock):
            start(tmp_path, SHORT).run()
        lock(run)

    with (
        patch.object(RunFolder, "lock", late),
        pytest.raises(CheckpointError, match=r"has just trained .*run; give"),
    ):
        start(tmp_path, LONG)
    assert all_runs(tmp_path).keys() == {"run"}


def test_command_that_goes_on_names_the_validation_text(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "val.txt").write_text(CORPUS * 3, encoding="utf-8")
    assert train.main(COMMAND) == 0
    assert train.main([*COMMAND, "data.val_path=val.txt"]) == 0
    said = capsys.readouterr().err
    again = re.findall("to begin with what runs/tiny has learned: gpt train (.*)", said)[0]
    assert train.main(shlex.split(again)) == 0
    goes_on = gpt.load_config(workplace / "runs/tiny-3/config.yaml").config
    assert (goes_on.data.val_path, goes_on.train.init_from) == ("val.txt", "runs/tiny")
