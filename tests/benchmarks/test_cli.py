"""The command line: mistakes, then each measurement once, at a size that costs seconds; what `make
cuda` runs.
"""

import json
from argparse import Namespace
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from native_support import needs_compiler

from benchmarks import cuda
from benchmarks.cli import main
from benchmarks.serve import Run
from benchmarks.training_runs import README_OPTIONS, nanogpt_options
from benchmarks.training_step import start_workers

HF = ["--hf"] if find_spec("transformers") else []
MISH = (
    "import torch.nn.functional as F\nfrom gpt.model.layers import "
    "ACTIVATIONS\nACTIVATIONS['own_mish'] = F.mish\n"
)
PARTS = ["model.mlp=own_mish", "run.kernels=torch"]
QUICK = ["--warmup", "1", "--steps", "2", "--rounds", "1", "--matmul-sizes", "32"]


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    lines = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    assert found["machine"]["class"]
    assert found["threads"] == 1
    return found


STEP, RECIPE = (f"train {kind} --config tiny.yaml" for kind in ("step", "recipe"))
LLAMA = "decode --architecture llama"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{STEP} --variants native,nativ", "there is no 'nativ', only config, native"),
        (f"{STEP} --nanogpt .", ". is not a checkout of nanoGPT: it has no model.py"),
        (f"{STEP} run.name=x", "run.name has no effect here"),
        (f"{RECIPE} run.seed=1", "run.seed has no effect here"),
        ("decode --shapes 4/4", "--shapes 4/4: expected layers/heads/width such as 4/4/128"),
        ("decode --shapes 4/3/128", "n_embd"),
        ("decode --llama-cpp", "--llama-cpp needs --architecture llama"),
        (f"{LLAMA} --llama-cpp nowhere", "pip install llama-cpp-python"),
        (f"{LLAMA} --llama-cpp x --window 20", "does not move its window of 20"),
        ("decode --checkpoint nowhere --hf", "--checkpoint has no peers"),
        ("decode --compiled --window 20", "--compiled does not move its window of 20"),
        (
            "serve --window 100",
            "--prompt-lengths and --tokens do not fit into the model's window of 100",
        ),
        ("serve --shape 1/2", "--shapes 1/2: expected layers/heads/width"),
        ("cuda", "sees no CUDA device, and this needs one"),
        ("cuda --stages race,nonsense", "--stages: 'nonsense' is none of tests, decoding"),
        ("cuda --nanogpt nowhere", "--nanogpt nowhere is not a checkout of nanoGPT"),
        (f"{STEP} --variants native {' '.join(QUICK)}", "native: run.kernels is native, but "),
        ("decode --hf", "--hf needs transformers; pip install transformers"),
    ],
)
def test_mistakes_are_one_line(
    command: str,
    message: str,
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also a variant for another machine, and a peer that is not installed."""
    found = {"transformers": None}
    monkeypatch.setattr("benchmarks.cli_options.find_spec", lambda name: found.get(name, name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    name, *words = command.split()
    try:
        code = cuda.main(words) if name == "cuda" else main([name, *words])
    except SystemExit as error:
        code = error.code
    error_line = capsys.readouterr().err.splitlines()[-1]
    assert code == 2
    assert error_line.startswith("error: ")
    assert message in error_line


@pytest.mark.usefixtures("no_plugins")
def test_recipe_and_step_are_timed(
    workplace: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "my_parts.py").write_text(MISH, encoding="utf-8")
    command = ["--config", "tiny.yaml", "--plugin", "my_parts.py", "--json", "out.json"]
    assert main(["train", "recipe", *command, "train.max_steps=4", *PARTS, "--seeds", "5"]) == 0
    found = last_line(capsys)
    assert found == json.loads((workplace / "out.json").read_text())
    assert found["overrides"] == ["train.max_steps=4", *PARTS]
    assert [one["seed"] for one in found["runs"]["gpt"]] == [5]
    assert 0 < found["total"]["gpt"]["loss"]["mean"] < 5
    assert not (workplace / "runs").exists()
    assert (
        main(["train", "step", *command, "--variants", "torch", "--nanogpt", str(checkout), *QUICK])
        == 0
    )
    found = last_line(capsys)
    assert list(found["variants"]) == ["torch", "nanoGPT float32", "nanoGPT bfloat16"]
    for row in found["variants"].values():
        assert row["milliseconds"]["median"] > 0
        assert row["peak_bytes"] > 0
        assert len(row["times_slower"]) == 1
    assert found["variants"]["torch"]["blocks"] == "eager"
    assert found["tokens_per_step"] == 4 * 16


def test_race_is_run_and_judged(
    workplace: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--config", "tiny.yaml", "--nanogpt", str(checkout), "--peer-steps", "3"]
    assert main(["train", "race", *command]) == 0
    found = last_line(capsys)
    assert list(found["runs"]) == ["gpt", "nanoGPT"]
    for (one,) in found["runs"].values():
        assert 0 < one["loss"] < 6
        assert one["seconds"] > 0
    ours, theirs = (found["runs"][name][0] for name in ("gpt", "nanoGPT"))
    assert ours["common_loss"] == ours["loss"], "its window is the shorter one"
    assert theirs["common_loss"] != theirs["loss"]
    assert found["times"]["nanoGPT"] == [theirs["seconds"] / ours["seconds"]]


@pytest.mark.parametrize(
    ("device", "steps", "expected"),
    [
        ("cuda", None, []),
        ("cuda", 1751, ["--max_iters=1751"]),
        ("cpu", None, README_OPTIONS.split()),
        ("cpu", 3, README_OPTIONS.replace("iters=2000", "iters=3").split()),
    ],
)
def test_nanogpt_trains_by_its_own_options(
    device: str, steps: int | None, expected: list[str]
) -> None:
    assert nanogpt_options(device, steps) == expected


SMALL = ["--tokens", "5", "--rounds", "1"]


@needs_compiler
def test_decoding_is_timed_beside_peers(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is compiled, which would take a minute: the loop beside it is the same.
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    variants = "native,eager,native-int8,native-int4"
    command = [
        "--shapes",
        "1/2/16",
        "2/2/32",
        "--window",
        "24",
        "--batch",
        "1",
        "3",
        "--variants",
        variants,
        *SMALL,
    ]
    assert main(["decode", *command, *HF, "--compiled"]) == 0
    found = last_line(capsys)["results"]
    models = ("gpt2 1/2/16", "gpt2 2/2/32")
    assert [(row["model"], row["batch"]) for row in found] == [
        (name, batch) for name in models for batch in (1, 3)
    ]
    for result in found:
        peers = [*(["Hugging Face"] if HF else []), "torch.compile"]
        assert list(result["rows"]) == [*variants.split(","), *peers]
        assert all(row["tokens_per_second"] > 0 for row in result["rows"].values())
        assert result["rows"]["native"]["times"] == [1.0]
        assert result["rows"]["native"]["first_seconds"] > 0
    variants = "native,native-int8"
    assert (
        main(["decode", "--checkpoint", str(trained / "runs/tiny"), "--variants", variants, *SMALL])
        == 0
    )
    (result,) = last_line(capsys)["results"]
    assert list(result["rows"]) == variants.split(",")
    assert result["rows"]["native-int8"]["weights"] == "int8"


ENDLESS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
"""
"""Waits for a process that would keep its output open."""


def test_failing_or_endless_command_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {
        "tests": [
            ["-c", "print('error: a device-side assert', file=__import__('sys').stderr); exit(134)"]
        ],
        "decoding": [["-c", "print('a table'); print('{}')"]],
        "commands": [["-c", ENDLESS], ["-c", "print('too late')"]],
    }
    monkeypatch.setitem(cuda.MINUTES, "commands", 1 / 60)
    skipped = {"race": "Not run: no text", "recipes": "Not run."}
    assert cuda.run_all(commands, skipped, tmp_path) == 1
    text = (tmp_path / "cuda.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert "... ended with 134: a device-side assert" in text
    assert "```\na table\n```" in text
    assert text.count("**Failed:** the time of its stage is over") == 2
    assert "too late" not in text.replace("print('too late')", "")
    assert "## race\n\nNot run: no text" in text


def test_commands_for_a_gpu_are_those_that_there_are(checkout: Path) -> None:
    stages = cuda.commands_of(checkout, Path("results"))
    assert list(stages) == list(cuda.MINUTES)
    assert sum(cuda.MINUTES.values()) <= 8
    for script, *words in (command for commands in stages.values() for command in commands):
        if script == "scripts/bench.py":
            with pytest.raises(SystemExit) as ended:
                main([*words, "--help"])
            assert ended.value.code == 0
        assert script.startswith("-") or (cuda.ROOT / script).is_file()
        assert all((cuda.ROOT / word).is_file() for word in words if word.endswith(".yaml"))


def test_text_that_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPT_OFFLINE", "1")
    monkeypatch.setenv("GPT_DATA_DIR", str(tmp_path))
    assert "tinyshakespeare.txt is missing, and offline" in cuda.why_no_text()


def test_trainer_itself_runs_and_nothing_is_left(workplace: Path) -> None:
    with ExitStack() as stack:
        jobs = {"mine": {"trainer": "gpt", "overrides": []}}
        answer = start_workers(jobs, Namespace(config="tiny.yaml", warmup=1, steps=12), stack)[
            "mine"
        ]()
        assert len(answer["milliseconds"]) == 12  # more steps than an evaluation interval
        assert (answer["dtype"], answer["blocks"]) == ("float32", "eager")
    assert not (workplace / "runs").exists()


TINY = [
    "--shape",
    "1/2/16",
    "--window",
    "32",
    "--prompt-lengths",
    "4",
    "8",
    "--tokens",
    "6",
    "--rounds",
    "1",
]


def test_server_answers_closed_and_open_loops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *TINY, "--concurrency", "3", "--requests", "5", "--rates", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {Run(row["concurrency"], row["rate"]): row for row in json.loads(lines[-1])["results"]}
    assert {one: row["requests"] for one, row in rows.items()} == {
        Run(1): 2,
        Run(3): 6,
        Run(1, 50.0): 5,
    }
    for row in rows.values():
        assert row["tokens_per_second"][0] > 0
        assert row["first_token_ms"]["p99"] >= row["first_token_ms"]["p50"] > 0
    assert any("50 requests/s" in line for line in lines)
