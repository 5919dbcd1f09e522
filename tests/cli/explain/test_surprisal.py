import json

import pytest
import torch

from cli.conftest import Call
from gpt.checkpoint import Loaded
from gpt.config import SamplingParams
from gpt.evaluation.scoring import score_text
from gpt.inspection.tracing.edits import scale
from gpt.inspection.views.surprisal import surprisal, surprisal_view

VIEW = "explain surprisal --prompt 'It was'"
SETTINGS = {"temperature": 0.6, "top_k": 4, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3}
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def ids(loaded: Loaded) -> torch.Tensor:
    return torch.tensor(loaded.tokenizer.encode("It was").tolist())


def test_json_holds_the_view(run: Call, loaded: Loaded, ids: torch.Tensor) -> None:
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in SETTINGS.items())
    found = run(f"{VIEW} --json --top 2 {options}").json
    params = SamplingParams.model_validate(SETTINGS)
    assert found.pop("source")
    assert found == json.loads(json.dumps(surprisal_view(loaded.model, loaded.tokenizer, ids, params, 2)))
    assert found["mean_bits"] == pytest.approx(score_text(loaded.model, loaded.tokenizer, "It was").bits_per_char)


def test_settings_that_are_not_given_are_those_of_the_run(run: Call, loaded: Loaded) -> None:
    found = run(f"{VIEW} --json --top-k 1").json
    assert found["settings"] == f"temperature {loaded.config.sample.temperature:g}, top-k 1"
    assert [len(alternatives) for alternatives in found["after"]] == [0, 1, 1, 1, 1, 1]
    assert len(found["before"][1]) == len(run("explain lens --prompt It --json").json["top"][0][0]) == 5


def test_the_table_has_a_row_for_every_token(run: Call, loaded: Loaded, ids: torch.Tensor) -> None:
    title, *lines = run(VIEW).out.splitlines()
    computed = surprisal(loaded.model, ids)
    assert title.endswith(f"{computed.mean_bits:.4f} bits per token on average")
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0].isdigit()]
    assert rows[0] == ["0", "I", "-"]
    for number, (row, bits, label) in enumerate(zip(rows[1:], computed.bits.tolist(), "t␣was", strict=True), 1):
        assert row[:4] == [str(number), label, f"{bits:.2f}", "█" * min(10, round(bits))]
    title = run(f"{VIEW} --edit blocks.0.hook_mlp_out=-9").out.splitlines()[0]
    edited = surprisal(loaded.model, ids, edits={"blocks.0.hook_mlp_out": scale(-9.0)}).mean_bits
    plain = f"{computed.mean_bits:.4f}"
    assert title.endswith(f"{edited:.4f} bits per token on average; {plain} without the edit")
    assert f"{edited:.4f}" != plain


def test_the_help_has_a_line_for_every_setting(run: Call) -> None:
    lines = run("explain surprisal --help").out.splitlines()
    for name in SETTINGS:
        option = next(line for line in lines if line.startswith("  --" + name.replace("_", "-")))
        following = lines[lines.index(option) + 1]
        assert len(option.split()) > 2 or following.startswith("      "), name
