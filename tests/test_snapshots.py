"""Snapshots of a run: when they are taken, what they hold, and that they never change or end it."""

import errno
import re
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml

import gpt
from gpt.checkpoint import RunFolder, step_files
from gpt.extras import snapshot_text, snapshots
from gpt.extras.inspection.views.snapshots import read_snapshot
from gpt.extras.snapshot_text import beginning_of, copy_to_cpu, decoding_runtime
from gpt.extras.snapshots import Snapshots
from gpt.generation.batch import sample_texts
from gpt.generation.runtime import Runtime
from gpt.native.verdicts import machine
from gpt.training.callbacks import Callback
from gpt.training.signals import Interrupted
from gpt.training.trainer import Trainer
from tiny import CORPUS, TINY, sharp_model
from training.sessions import rows, same, stopped_after, weights
from training.sessions import start_session as start


def start_with_snapshots(folder: Path, *overrides: str, **options: Any) -> Trainer:
    return start(folder, *overrides, callbacks=[Snapshots(print)], **options)


def steps_of(run: RunFolder) -> list[int]:
    return list(step_files(run.snapshots))


def test_run_with_snapshots_is_the_same_run(tmp_path: Path) -> None:
    observed = start_with_snapshots(tmp_path / "with", "model.dropout=0.1")
    observed.run()
    plain = start(tmp_path / "without", "model.dropout=0.1")
    plain.run()
    assert same(weights(observed.model), weights(plain.model))
    for name in ("train/loss", "val/loss"):
        assert rows(tmp_path / "with", name) == rows(tmp_path / "without", name)
    assert not plain.run_folder.snapshots.exists()


def test_resumed_run_drops_later_snapshots(tmp_path: Path) -> None:
    start_with_snapshots(tmp_path).run()
    run = RunFolder(tmp_path / "runs/run")
    # a process that was killed leaves this
    (run.snapshots / ".step-000006.safetensors.abcdefgh.tmp").mkdir()
    third = str(run.path / "checkpoints/step-000003")
    resumed = start(tmp_path, resume=third)
    assert steps_of(run)[-1] == 3
    assert list(step_files(run.samples))[-1] == 3
    assert not list(run.snapshots.glob(".*"))
    resumed.run()
    assert steps_of(run)[-1] == 3
    assert list(step_files(run.samples))[-1] == 6


def test_snapshot_holds_the_model_of_its_step(tmp_path: Path) -> None:
    keys = ("train.max_steps=5", "train.log_interval=2", "train.sample_tokens=0", "sample.seed=5")
    trainer = start_with_snapshots(tmp_path, *keys)
    with patch.object(snapshots, "prompt_of", return_value="It was"):
        trainer.run()
    run = trainer.run_folder
    assert steps_of(run) == [0, 1, 2, 3, 4, 5]
    shown = read_snapshot(run.snapshot(5))
    assert torch.equal(shown.embedding, trainer.model.wte.weight.detach().half().float())
    assert shown.attention.shape == (1, 2, 16, 16)
    # the losses that were logged by then
    logged = rows(tmp_path, "train/loss")
    expected = [None, None, logged[2], logged[2], logged[4], logged[5]]
    assert [read_snapshot(run.snapshot(step)).loss for step in range(6)] == expected
    params = trainer.config.sample.params(max_new_tokens=200)
    (text,) = sample_texts(Runtime(trainer.model), trainer.dataset.tokenizer, "It was", params, [5])
    assert shown.sample == text
    assert len(text) == 200


@pytest.mark.parametrize("max_steps", [1, 6, 1720, 10**6])
def test_snapshots_lie_by_equal_factors(max_steps: int) -> None:
    steps = sorted(snapshots.snapshot_steps(max_steps))
    assert (steps[0], steps[1], steps[-1]) == (0, 1, max_steps)
    assert len(steps) <= 32
    assert all(later <= 1.6 * step + 1 for step, later in pairwise(steps[1:]))


def test_interrupted_run_ends_with_a_snapshot(tmp_path: Path) -> None:
    """Step 77 is between two of the steps at which a run of 100 has one."""
    trainer = start_with_snapshots(tmp_path, "train.max_steps=100")
    with stopped_after(77), pytest.raises(Interrupted):
        trainer.run()
    assert 77 not in snapshots.snapshot_steps(100)
    assert steps_of(trainer.run_folder)[-1] == 77


def test_run_whose_callback_failed_ends_with_a_snapshot(tmp_path: Path) -> None:
    failing = Callback()

    def fail(event: Any) -> None:
        if event.step == 77:
            raise ZeroDivisionError

    failing.on_step = fail  # type: ignore[method-assign]
    trainer = start(tmp_path, "train.max_steps=100", callbacks=[failing, Snapshots(print)])
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    assert steps_of(trainer.run_folder)[-1] == 77


FULL = OSError(errno.ENOSPC, "No space left")
OUT_OF_MEMORY = RuntimeError("CUDA out of memory\nof much")


@pytest.mark.parametrize(
    ("function", "fails_at", "error", "said"),
    [
        ("take_snapshot", 1, OUT_OF_MEMORY, "no snapshots from step 0 on: CUDA out of memory;"),
        ("take_snapshot", 3, OUT_OF_MEMORY, "no snapshots from step 2 on: CUDA out of memory;"),
        ("write_text", 1, ZeroDivisionError("no text"), "from step 0 on: no text;"),
        ("write_atomic", 1, FULL, "Snapshots cannot write: No space left; training continues"),
        ("make_folder", 1, FULL, "Snapshots cannot write: No space left; training continues"),
    ],
)
def test_failed_snapshot_does_not_end_the_run(
    tmp_path: Path, function: str, fails_at: int, error: Exception, said: str
) -> None:
    lines: list[str] = []
    plain = getattr(snapshots, function)

    def fail(*given: Any, **named: Any) -> Any:
        if replaced.call_count >= fails_at:
            raise error
        return plain(*given, **named)

    with patch.object(snapshots, function, side_effect=fail) as replaced:
        trainer = start(tmp_path, callbacks=[Snapshots(lines.append)])
        assert trainer.run().step == 6
    assert len(steps_of(trainer.run_folder)) == fails_at - 1
    warnings = [line for line in lines if line.startswith("warning")]
    assert len(warnings) == 1
    assert said in warnings[0]
    if not isinstance(error, OSError):  # which may be over when the next one is written
        assert replaced.call_count == fails_at


@pytest.mark.parametrize("wanted", [True, False])
def test_training_from_python_has_snapshots_if_wanted(tmp_path: Path, wanted: bool) -> None:
    run = gpt.train(
        text=CORPUS * 30,
        config={},
        name="run",
        model={"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16},
        max_steps=2,
        eval_interval=2,
        batch_size=2,
        sample_tokens=5,
        report=None,
        run={"dir": str(tmp_path / "runs"), "device": "cpu", "snapshots": wanted},
        data={"dir": str(tmp_path / "data")},
    )
    assert (run.folder / "snapshots").exists() is wanted


def test_snapshot_of_pairs_answers_a_held_out_question(tmp_path: Path) -> None:
    pairs = "".join(
        f'{{"prompt": "{first}+{second}", "answer": "{first + second}"}}\n'
        for first, second in product(range(10), repeat=2)
    )
    (tmp_path / "sums.jsonl").write_text(pairs, encoding="utf-8")
    recipe = yaml.safe_load(TINY)
    recipe["data"] |= {"path": str(tmp_path / "sums.jsonl"), "dir": str(tmp_path / "data")}
    recipe["data"]["items"] = "pairs"
    recipe["run"]["dir"] = str(tmp_path / "runs")
    run = gpt.train(config=recipe, report=None)
    shown = read_snapshot(RunFolder(run.folder).snapshot(6))
    assert re.fullmatch(r"\d\+\d\n", shown.prompt or "")


def test_snapshot_of_a_list_has_items_in_lines(tmp_path: Path) -> None:
    overrides = ("data.items=lines", "sample.seed=5")
    trainer = start_with_snapshots(tmp_path, *overrides)
    trainer.run()
    shown = read_snapshot(trainer.run_folder.snapshot(6))
    mark = trainer.config.sample.begin_id
    params = trainer.config.sample.params(max_new_tokens=200)
    items = sample_texts(
        Runtime(trainer.model), trainer.dataset.tokenizer, "", params, list(range(5, 21))
    )
    assert mark is not None
    assert (shown.prompt, shown.sample) == ("", "\n".join(items)[:200])


def test_texts_are_at_a_few_steps_and_have_one_prompt(tmp_path: Path) -> None:
    trainer = start_with_snapshots(tmp_path, "train.max_steps=40")
    trainer.run()
    run = trainer.run_folder
    shown = {step: read_snapshot(run.snapshot(step)) for step in steps_of(run)}
    written = [step for step, snapshot in shown.items() if snapshot.sample]
    assert written == [0, 4, 9, 19, 40]
    assert len({snapshot.prompt for snapshot in shown.values()}) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cut\n\nSee also:\n\nAnother one. More.", "Another one."),
        ("cut mid-sentence.\n\nROMEO:\nWhat light?", "ROMEO:"),
        ("cut\n\nsmall letter.\n\nGood morrow, all. More.", "Good morrow, all."),
        ('cut\n \n"Quoted." x\n\nHe said \u201cno.\u201d Then', "He said \u201cno.\u201d"),
        ("cut\n\n" + "Word " * 30, ("Word " * 12).strip()),
        ("cut\n\n" + "Word " * 30 + "\n\nShort one. And", "Short one."),
        ("cut\n\n版本三点五。更改", "版本三点五。"),
        ("no paragraph at all. None.", ""),
        ("", ""),
    ],
)
def test_prompt_is_how_a_paragraph_begins(text: str, expected: str) -> None:
    assert beginning_of(text) == expected


def test_compiled_decoder_writes_where_the_run_does_not_ask_for_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a verdict of an earlier command nothing is compiled while a training waits."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = sharp_model()
    with patch.object(snapshot_text, "build_runtime", side_effect=AssertionError):
        assert decoding_runtime(model, "auto").name.startswith("eager")
        kernels = tmp_path / "gpt" / "kernels"
        kernels.mkdir(parents=True)
        (kernels / "engine-0-1-2.trial").touch()  # of another machine
        assert decoding_runtime(model, "auto").name.startswith("eager")
        (kernels / f"engine-0-1-{machine()}.trial").touch()
        assert decoding_runtime(model, "torch").name.startswith("eager")
        with pytest.raises(AssertionError):
            decoding_runtime(model, "auto")


def test_copy_of_a_model_has_its_weights_and_keeps_them_tied() -> None:
    model = sharp_model(tie_weights=True, position="rope")
    idx = torch.tensor([[1, 2, 3]])
    copied = copy_to_cpu(model)
    assert torch.equal(copied(idx), model(idx))
    assert copied.lm_head.weight is copied.wte.weight
    assert copied.wte is not model.wte
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
