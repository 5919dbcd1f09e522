import json
from collections.abc import Callable

import pytest

from gpt.accounting.parallel import parallel_step
from gpt.accounting.published import PUBLISHED
from gpt.cli import explain

SMALL = ["--published", "gpt2", "model.n_layer=2", "--batch", "8", "--seq", "64"]
MODEL = PUBLISHED["gpt2"].model_copy(update={"n_layer": 2})
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = explain.main(list(arguments))
        return code, *capsys.readouterr()

    return call


def test_scaling_has_a_row_for_each_number_of_devices(run: Run) -> None:
    code, out, _ = run("scaling", *SMALL, "--json", "--cluster", "rtx-4090-25gbe")
    assert code == 0
    found = json.loads(out)
    assert [row["devices"] for row in found["ddp"]] == [1, 2, 8, 16, 64]
    for method in ("ddp", "fsdp"):
        last, step = found[method][-1], parallel_step(MODEL, "adamw", method, 64)  # type: ignore[arg-type]
        assert last["sent"] == step.sent
        assert last["efficiency"] < 0.5  # 64 tokens hide nothing behind 25 Gb/s
    assert found["ddp"][0]["memory"] == found["ddp"][-1]["memory"] > found["fsdp"][-1]["memory"]


def test_scaling_marks_what_does_not_fit_and_names_its_assumptions(run: Run) -> None:
    large = ["--published", "llama-2-7b", "model.n_embd=16384", "model.n_layer=4"]  # 6 billion parameters
    code, out, _ = run("scaling", *large, "--batch", "1", "--seq", "8", "--utilization", "0.3")
    assert code == 0
    ddp, fsdp = out.split("FSDP2: ")
    assert sum(" !" in line for line in ddp.splitlines()) == 5
    assert sum(" !" in line for line in fsdp.splitlines()) == 2
    assert "Matmuls reach 30% of the peak, links 80%" in out
    assert "DGX H100 datasheets" in out


def test_memory_of_one_of_several_processes(run: Run) -> None:
    code, out, _ = run("memory", *SMALL, "--world-size", "4", "--parallel", "fsdp", "--json", "--device", "cpu")
    assert code == 0
    found = json.loads(out)
    assert found["batch"] == 2
    step = parallel_step(MODEL, "adamw", "fsdp", 4)
    assert found["process"]["weights"] == step.weights
    assert found["process"]["sent"] == step.sent
    code, out, _ = run("memory", *SMALL, "--world-size", "4", "run.parallel=fsdp", "--device", "cpu")
    assert "One of 4 processes (fsdp): 2 × 64 tokens" in out
    assert f"{step.optimizer:,}" in out


def test_flops_shows_what_is_sent(run: Run) -> None:
    rates = ["--bandwidth", "100", "--matmul-rate", "1000"]
    code, out, _ = run("flops", *SMALL, "--world-size", "8", "--json", *rates)
    assert code == 0
    assert json.loads(out)["sent"]["bytes"] == parallel_step(MODEL, "adamw", "ddp", 8).sent
    _, out, _ = run("flops", *SMALL, "--world-size", "8", *rates)
    assert "Sending: one of 8 processes (ddp) in a ring" in out
    assert "sent" not in json.loads(run("flops", *SMALL, "--json", *rates)[1])


@pytest.mark.parametrize(
    ("view", "options", "words"),
    [
        ("memory", ["--world-size", "3"], "--world-size is 3, which does not divide the batch of 8 sequences"),
        ("flops", ["--world-size", "0"], "--world-size is 0, expected 1 to 1,000,000"),
        ("scaling", ["--cluster", "abacus"], "--cluster abacus: expected one of dgx-h100"),
        ("scaling", ["--utilization", "1.5"], "--utilization is 1.5, expected a number above 0, at most 1"),
        ("scaling", ["--link-utilization", "0"], "--link-utilization is 0, expected a number above 0"),
    ],
)
def test_a_mistake_is_one_line(run: Run, view: str, options: list[str], words: str) -> None:
    code, out, err = run(view, *SMALL, *options)
    assert (code, out) == (2, "")
    assert words in err
