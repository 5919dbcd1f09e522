"""A run, a model of one's own loop that is saved like one, and the display of a notebook, without
one.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gpt
from gpt.api.scoring import score_text
from gpt.checkpoint import RunFolder
from gpt.cli import evaluate, explain, export, sample, train
from tiny import CORPUS, loss_by_definition, tiny_config


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> gpt.Run:
    monkeypatch.chdir(trained)
    return gpt.Run("runs/tiny", device="cpu")


def test_run_says_what_its_folder_holds(run: gpt.Run, trained: Path) -> None:
    lines = (trained / "runs/tiny/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert run.metrics == [json.loads(line) for line in lines]
    assert run.config.run.name == "tiny"
    assert not run.model.training
    assert run.tokenizer.decode(run.tokenizer.encode("Ada")) == "Ada"
    assert (
        repr(run)
        == f"Run('runs/tiny', validation loss {run.metrics[-1]['val/loss']:.4f} at step 6)"
    )
    html = run._repr_html_()
    assert "runs/tiny" in html
    assert html.count("<circle") == 2  # evaluated at steps 3 and 6


def test_sample_and_evaluation_are_those_of_the_commands(
    run: gpt.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        sample.main(
            ["--checkpoint", "runs/tiny", "--prompt", "Who", "--max-new-tokens", "9", "--seed", "3"]
        )
        == 0
    )
    assert run.sample("Who", max_new_tokens=9, seed=3) + "\n" == capsys.readouterr().out
    assert evaluate.main(["--checkpoint", "runs/tiny", "--device", "cpu", "--split", "train"]) == 0
    assert run.evaluate("train") == json.loads(capsys.readouterr().out)
    _assert_sample_and_loss_are_those_of_the_model(run)
    ends = [run.sample(f"Who{end}", max_new_tokens=9, seed=3) for end in ("\n", "\r\n", "\r")]
    assert ends[0] == ends[1] == ends[2]
    scores = [
        score_text(run.model, run.tokenizer, f"Who{end}I", None) for end in ("\n", "\r\n", "\r")
    ]
    assert scores[0] == scores[1] == scores[2]
    with pytest.raises(gpt.GPTError, match="tmperature: unknown key; did you mean temperature"):
        run.sample(tmperature=1)
    with pytest.raises(gpt.GPTError, match="split is 'vall', expected one of train, val, test"):
        run.evaluate("vall")


def _assert_sample_and_loss_are_those_of_the_model(run: gpt.Run) -> None:
    """Compare with plain forward passes, since the commands use what `Run` uses."""
    ids = torch.from_numpy(run.tokenizer.encode("Who"))
    for _ in range(9):
        next_id = run.model(ids[None])[0, -1].argmax()  # (), of logits (1, T, V)
        ids = torch.cat([ids, next_id[None]])
    written = run.tokenizer.decode(ids.tolist()).removeprefix("Who")
    assert run.sample("Who", max_new_tokens=9, temperature=0.0) in (written, "Who" + written)
    text = Path("corpus.txt").read_text(encoding="utf-8")
    train_split = torch.from_numpy(run.tokenizer.encode(text[: int(0.9 * len(text))]))
    loss = loss_by_definition(run.model, train_split, run.model.config.block_size)
    assert run.evaluate("train")["loss"] == pytest.approx(loss, abs=1e-5)


def test_plot_shows_the_losses_that_there_are(run: gpt.Run, tmp_path: Path) -> None:
    figure = run.plot(tmp_path / "loss.svg")
    training, validation = figure.axes[0].lines
    assert training.get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert validation.get_ydata().tolist() == [
        row["val/loss"] for row in run.metrics if "val/loss" in row
    ]
    assert (tmp_path / "loss.svg").is_file()
    for name, wanted in (("short", "train/loss"), ("empty", "nothing")):
        (tmp_path / name).mkdir()
        rows = [json.dumps(row) + "\n" for row in run.metrics if wanted in row]
        (tmp_path / name / "metrics.jsonl").write_text(
            "".join(rows) + '{"step": 7, "cut', encoding="utf-8"
        )
    assert len(gpt.plot(run, tmp_path / "short").axes[0].lines) == 3
    with pytest.raises(gpt.GPTError, match="empty has no losses yet"):
        gpt.plot(tmp_path / "empty")


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_metrics_that_are_no_regular_file_are_refused(
    make: Callable[[Path], object], tmp_path: Path, run: gpt.Run
) -> None:
    make(tmp_path / "metrics.jsonl")
    with pytest.raises(gpt.GPTError, match=r"cannot read the metrics of .*: not a regular file"):
        gpt.plot(tmp_path)
    with pytest.raises(gpt.GPTError, match=r"metrics\.jsonl is (not a regular file|a link)"):
        RunFolder(tmp_path).create(run.config)


def test_other_folder_is_no_run(tmp_path: Path) -> None:
    for call, message in (
        (lambda: gpt.Run(tmp_path), r"is not a run folder: it has no config\.yaml"),
        (lambda: gpt.plot(), "at least one run"),
        (lambda: gpt.plot(tmp_path, x="time"), "x is 'time'"),
    ):
        with pytest.raises(gpt.GPTError, match=message):
            call()


TOKENIZER = gpt.CharTokenizer(CORPUS)


def own_model() -> gpt.GPT:
    """Trained for one step by a plain loop."""
    model = gpt.GPT(tiny_config(vocab_size=TOKENIZER.vocab_size))
    ids = torch.from_numpy(TOKENIZER.encode(CORPUS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(ids[None, :16])[0], ids[1:17]).backward()
    optimizer.step()
    return model


def test_saved_model_is_loaded_again(tmp_path: Path) -> None:
    model = own_model()
    gpt.save(model, TOKENIZER, tmp_path / "deep/mine")
    loaded, tokenizer = gpt.load(tmp_path / "deep/mine", "cpu")
    assert all(
        weight.equal(loaded.state_dict()[name]) for name, weight in model.state_dict().items()
    )
    assert tokenizer.to_dict() == TOKENIZER.to_dict()
    int8 = gpt.quantize(loaded, "int8")
    gpt.save(int8, tokenizer, tmp_path / "deep/mine")  # replaces it
    again, _ = gpt.load(tmp_path / "deep/mine", "cpu")
    assert all(value.equal(again.state_dict()[name]) for name, value in int8.state_dict().items())
    run = gpt.Run(tmp_path / "deep/mine")
    assert repr(run) == f"Run('{tmp_path / 'deep/mine'}')"
    assert "deep/mine" in run._repr_html_()
    assert "<svg" not in run._repr_html_()


def test_saved_model_serves_commands_and_init_from_but_no_resume(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpt.save(own_model(), TOKENIZER, "runs/mine")
    checkpoint = ["--checkpoint", "runs/mine"]
    assert sample.main([*checkpoint, "--prompt", "The", "--max-new-tokens", "3"]) == 0
    assert evaluate.main([*checkpoint, "--text-file", "corpus.txt"]) == 0
    assert explain.main(["lens", *checkpoint, "--prompt", "The best"]) == 0
    assert export.main([*checkpoint, "--to", "html", "--output", "page.html"]) == 0
    assert evaluate.main(checkpoint) == 2
    assert "has no record of its training corpus" in capsys.readouterr().err
    assert train.main(["--config", "tiny.yaml", "--resume", "runs/mine"]) == 2
    assert "begin a new run with it: train.init_from=runs/mine" in capsys.readouterr().err
    own = {
        "init_from": "runs/mine",
        "max_steps": 1,
        "device": "cpu",
        "compile": False,
        "kernels": "torch",
    }
    run = gpt.train("corpus.txt", config={}, name="tuned", report=None, **own)
    assert run.model.config.n_embd == 32


def test_save_replaces_only_what_it_wrote(tmp_path: Path, trained: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    for folder in (
        tmp_path,
        tmp_path / "notes.txt",
        next((trained / "runs/tiny/checkpoints").iterdir()),
    ):
        with pytest.raises(
            gpt.GPTError, match=r"exists already and is not from gpt\.save; choose another folder"
        ):
            gpt.save(own_model(), TOKENIZER, folder)
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("model", "tokenizer", "message"),
    [
        (torch.nn.Linear(1, 1), TOKENIZER, "the model is a Linear, expected a gpt.GPT"),
        (gpt.GPT(tiny_config()).half(), gpt.CharTokenizer("ab"), "float16, expected .* float32"),
        (gpt.GPT(tiny_config()), gpt.ByteTokenizer(), "the tokenizer has 256 ids, the model 23"),
    ],
)
def test_unloadable_model_is_not_written(
    tmp_path: Path, model: Any, tokenizer: Any, message: str
) -> None:
    with pytest.raises(gpt.GPTError, match=message):
        gpt.save(model, tokenizer, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda model: setattr(model.lm_head, "weight", torch.nn.Parameter(torch.ones(23, 32))),
            "a head of its own",
        ),
        (lambda model: setattr(model.h[0].ln_1, "eps", 0.1), r"h\.0\.ln_1\.eps"),
        (lambda model: model.rotation.cos.mul_(2), r"rotation\.cos"),
    ],
)
def test_change_that_a_checkpoint_would_lose_is_named(
    tmp_path: Path, change: Callable[[gpt.GPT], object], message: str
) -> None:
    model = gpt.GPT(tiny_config(position="rope", tie_weights=True))
    change(model)
    with pytest.raises(gpt.GPTError, match=rf"does not describe {message}.* would lose that"):
        gpt.save(model, gpt.CharTokenizer("ab"), tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    "wrap",
    [
        torch.compile,
        torch.nn.DataParallel,
        lambda model: torch.compile(torch.nn.DataParallel(torch.compile(model))),
        torch.optim.swa_utils.AveragedModel,
    ],
)
def test_wrapped_model_is_saved_as_what_it_was_made_of(
    wrap: Callable[[gpt.GPT], Any], tmp_path: Path
) -> None:
    model = own_model()
    gpt.save(wrap(model), TOKENIZER, tmp_path / "mine")
    assert gpt.load(tmp_path / "mine", "cpu")[0].wte.weight.equal(model.wte.weight)
