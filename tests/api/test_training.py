import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpt
from gpt.checkpoint import read_checkpoint
from gpt.cli import train as command
from tiny import CORPUS

POEM = "To be, or not to be, that is the question:\n" * 50
SHORT = "'To be, or not to be, that is the questio...' looks like the text itself, not like a path"
TINY: dict[str, Any] = {"config": "tiny.yaml", "report": None}
"""Keywords for a training in `workplace`."""


def test_function_trains_what_the_command_trains_and_resumes_it(
    workplace: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = gpt.train(**TINY)
    assert capsys.readouterr() == ("", "")
    saved, expected = (
        read_checkpoint(folder / "runs/tiny/checkpoints/step-000006")
        for folder in (workplace, trained)
    )
    assert saved.config == expected.config
    assert all(saved.model[name].equal(weight) for name, weight in expected.model.items())
    assert run.folder == Path("runs/tiny")
    assert (
        command.main(["--config", "runs/tiny/config.yaml", "--resume", "auto", "train.max_steps=6"])
        == 0
    )
    with pytest.raises(
        gpt.GPTError, match=r'exists already, with this configuration; .*resume="auto"'
    ):
        gpt.train(**TINY)


def test_text_is_kept_for_the_commands(workplace: Path) -> None:
    run = gpt.train(text=CORPUS * 30, name="own", **TINY)
    (kept,) = (workplace / "data").glob("text-*.txt")
    assert kept.read_text(encoding="utf-8") == CORPUS * 30
    from_file = gpt.train("corpus.txt", name="file", **TINY).model.state_dict()
    assert all(weight.equal(from_file[name]) for name, weight in run.model.state_dict().items())
    assert command.main(["--config", "runs/own/config.yaml", "--resume", "auto"]) == 0


def test_without_a_configuration_the_recipe_fits_the_text(workplace: Path) -> None:
    """It is the one of make_config.py."""
    small = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16}
    run = gpt.train(
        "corpus.txt", model=small, max_steps=2, device="cpu", compile=False, report=None
    )
    assert run.folder == Path("runs/corpus")
    assert (run.config.optim.name, run.config.data.order, run.config.model.position) == (
        "muon",
        "shuffled",
        "rope",
    )
    with pytest.raises(gpt.GPTError, match="has 5 characters; a model needs at least"):
        gpt.train(text="abcde")


def test_several_texts_are_those_of_the_yaml_file(workplace: Path) -> None:
    several = ["corpus.txt", Path("other.txt")]
    (workplace / "other.txt").write_text(CORPUS * 20, encoding="utf-8")
    run = gpt.train(several, **TINY)
    assert (
        command.main(
            ["--config", "tiny.yaml", "run.name=yaml", "data.path=[corpus.txt, other.txt]"]
        )
        == 0
    )
    assert gpt.Run("runs/yaml").config.data == run.config.data
    small = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16}
    fitted = gpt.train(several, model=small, max_steps=2, report=None)
    assert fitted.folder == Path("runs/corpus-other")
    assert (fitted.config.optim.name, fitted.config.data.order) == ("muon", "random")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, 'nothing to train on: give a path, text="..." or config="shakespeare"'),
        ({"path": "corpus.txt", "text": "x"}, "path and text are given"),
        ({"text": b"x"}, "text is a bytes, expected str"),
        ({"text": ""}, "the text is empty"),
        ({"path": "gone.txt"}, "gone.txt: no such file"),
        ({"path": ["corpus.txt", "gone.txt"], "config": "tiny.yaml"}, "gone.txt: no such file"),
        ({"path": []}, "keyword: data.path: got [], expected a path, or [PATH, ...]"),
        (
            {"path": {"corpus.txt": 3}},
            "keyword: data.path: got {'corpus.txt': 3}, texts have no weights",
        ),
        ({"path": b"x"}, "keyword: data.path: got b'x', expected a path, or [PATH, ...]"),
        ({"path": POEM}, f"{SHORT}; save it in a file and give that, or pass text= to gpt.train"),
        (
            {"path": "corpus.txt", "config": POEM},
            f"{SHORT}; give a YAML file, a recipe's name, or in Python a dict",
        ),
        (
            {"config": "tiny.yaml", "init_from": POEM},
            f"train.init_from: {SHORT}; give a run folder or a checkpoint folder",
        ),
        (
            {"config": "tiny.yaml", "teacher": POEM},
            f"train.teacher: {SHORT}; give a run folder or a checkpoint folder",
        ),
        (
            {"config": "tiny.yaml", "resume": POEM},
            f"{SHORT}; give a run folder or a checkpoint folder",
        ),
        ({"config": "tiny.yaml", "plugins": POEM}, f"{SHORT}; give a plugin's file"),
        (
            {"config": "tiny.yaml", "resume": True},
            'resume is True, expected "auto", a path, or None',
        ),
        ({"config": "tiny.yaml", "callbacks": [gpt.Callback]}, "callbacks: got <class"),
    ],
)
def test_mistake_is_one_line(workplace: Path, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(gpt.GPTError) as caught:
        gpt.train(**keywords)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize("read", [gpt.load, gpt.Run, gpt.plot, gpt.load_config, gpt.load_plugins])
@pytest.mark.parametrize("text", [POEM, POEM.replace("\n", " ")], ids=["lines", "line"])
def test_text_in_the_place_of_a_path_is_said_to_be_one(
    read: Callable[[str], object], text: str
) -> None:
    with pytest.raises(gpt.GPTError, match=f"^{SHORT}; give a"):
        read(text)


def interrupt(event: Any) -> None:
    if event.step == 2:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_saves_and_returns_the_run_only_at_a_prompt(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    lines: list[str] = []
    run = gpt.train(config="tiny.yaml", callbacks=[interrupt], report=lines.append)
    assert lines[-1] == (
        "stopped by SIGINT at step 2, saved in runs/tiny; continue with the same call and "
        'resume="auto"'
    )
    assert [row["step"] for row in run.metrics if "train/loss" in row] == [1, 2]
    assert gpt.train(resume="auto", **TINY).metrics[-1]["step"] == 6
    monkeypatch.delattr(sys, "ps1")
    with pytest.raises(KeyboardInterrupt):
        gpt.train(callbacks=[interrupt], name="program", **TINY)
    assert (workplace / "runs/program/checkpoints/step-000002").is_dir()


def test_resume_of_a_run_has_its_configuration(workplace: Path) -> None:
    gpt.train(max_steps=3, **TINY)
    for resume in ("runs/tiny", "tiny", Path("runs/tiny/checkpoints/step-000004")):
        run = gpt.train(resume=resume, max_steps=4, report=None)
        assert run.folder == Path("runs/tiny")
        assert (run.config.model.n_embd, run.config.train.max_steps) == (16, 4)
    with pytest.raises(
        gpt.GPTError, match=r"tina: no such run or checkpoint; did you mean tiny[?]"
    ):
        gpt.train(resume="tina")
    assert gpt.Run("tiny").folder == Path("runs/tiny")
    with pytest.raises(
        gpt.GPTError, match=r"tina is not a run folder: it has no config.yaml; did you mean tiny[?]"
    ):
        gpt.Run("tina")


def test_resume_finds_a_run_that_was_moved_by_its_name(workplace: Path) -> None:
    gpt.train(max_steps=3, run={"dir": "elsewhere"}, **TINY)
    Path("runs").mkdir(exist_ok=True)
    Path("elsewhere/tiny").rename("runs/tiny")
    run = gpt.train(resume="tiny", max_steps=4, report=None)
    # Its configuration says that runs lie in "elsewhere", where there is none any more.
    assert run.folder == Path("runs/tiny")
    assert run.metrics[-1]["step"] == 4
