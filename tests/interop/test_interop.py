"""Programs of others, in the environment of `make interop`: transformers 4, lm-eval, peft and nnsight."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from export.test_hugging_face import CHARS, EXPORTS, save
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import ByteTokenizer, Tokenizer
from gpt.generation.generator import generate
from gpt.model import GPT
from tiny import CORPUS, sharp_model

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build/interop/bin/python"
Run = Callable[..., Any]


def run(python: Path | str, program: str, *arguments: object) -> Any:
    """Return what one of the programs prints in its last line."""
    command = [python, ROOT / f"tests/interop/programs/{program}.py", *arguments]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    result = subprocess.run(list(map(str, command)), env=os.environ | offline, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-5000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def elsewhere() -> Run:
    """Run a program in the other environment."""
    if not PYTHON.exists():
        pytest.skip("there is no build/interop; make interop makes it, with transformers 4, lm-eval, peft and nnsight")
    return lambda program, *arguments: run(PYTHON, program, *arguments)


@pytest.fixture
def here() -> Run:
    """Run it with the packages of the tests."""
    return lambda program, *arguments: run(sys.executable, program, *arguments)


def exported_models() -> list[tuple[GPT, Tokenizer, str]]:
    """A model of each kind that is exported, with each kind of tokenizer, and a text of 20 tokens or more."""
    models = [(sharp_model(std=0.1, block_size=64, **changes), CHARS, "a bad face\nfor ages") for _, changes in EXPORTS]
    for tokenizer, text in (
        (ByteTokenizer(), "\N{GREEK SMALL LETTER ALPHA}\nbyte by byte"),
        (learn_bpe([CORPUS], 300), CORPUS[:60]),
    ):
        models.append((sharp_model(std=0.1, block_size=64, vocab_size=tokenizer.vocab_size), tokenizer, text))
    return models


@pytest.mark.parametrize(("version", "environment"), [("4.", "elsewhere"), ("5.", "here")])
def test_transformers_gives_our_ids_logits_and_texts_of_every_export(
    version: str, environment: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """From what its tokenizer gives its model, as it comes."""
    read: Run = request.getfixturevalue(environment)
    models = exported_models()
    folders = [tmp_path / str(number) for number in range(len(models))]
    for folder, (model, tokenizer, text) in zip(folders, models, strict=True):
        folder.mkdir()
        (save(model, folder, tokenizer) / "text.txt").write_text(text, encoding="utf-8")
    said = read("read_exports", *folders)
    assert said["version"].startswith(version)
    for answer, (model, tokenizer, text) in zip(said["answers"], models, strict=True):
        ids = tokenizer.encode(text).tolist()
        assert answer["ids"] == ids
        with torch.no_grad():
            torch.testing.assert_close(torch.tensor([answer["logits"]]), model(torch.tensor([ids])), atol=1e-5, rtol=0)
        assert answer["text"] == text + generate(model, tokenizer, text, max_new_tokens=20, temperature=0.0)


def logprob(model: GPT, start: int | None, text: str, given: int = 0) -> float:
    """The log-probability of a text after its first `given` characters, and after `start`."""
    ids = [*([] if start is None else [start]), *CHARS.encode(text).tolist()]
    first = len(ids) - (len(text) - given)
    with torch.no_grad():
        logprobs = model(torch.tensor([ids]))[0].log_softmax(dim=-1)
    return float(sum(logprobs[place - 1, ids[place]] for place in range(first, len(ids))))


def likelihoods(answers: dict[str, Any]) -> list[float]:
    return [*(value for value, _ in answers["loglikelihood"]), *answers["loglikelihood_rolling"]]


@pytest.mark.parametrize("end_id", [0, None])
def test_lm_eval_has_our_likelihoods_and_texts(end_id: int | None, elsewhere: Run, tmp_path: Path) -> None:
    """Of a run with an end, and of one without, in both ways that docs/export.md gives."""
    model = sharp_model(std=0.1, block_size=64)
    save(model, tmp_path, end_id=end_id)
    expected = [logprob(model, None, "bad face", 3), logprob(model, 0, "ab"), logprob(model, 0, "a bad face\n")]
    scored = ["loglikelihood", "loglikelihood_rolling"]
    if end_id is None:
        answers = elsewhere("lm_eval_hf", tmp_path, '{"prefix_token_id": 0}', *scored)
        assert likelihoods(answers) == pytest.approx(expected, abs=1e-4)
        assert elsewhere("end_with_line", tmp_path) == 0
    answers = elsewhere("lm_eval_hf", tmp_path, "{}", *scored, "generate_until")
    assert likelihoods(answers) == pytest.approx(expected, abs=1e-4)
    params: dict[str, Any] = {"max_new_tokens": 8, "temperature": 0.0}
    assert answers["generate_until"] == [
        generate(model, CHARS, "bad", stop=["s", "\n"], **params),
        generate(model, CHARS, "a bad face", stop=["\n"], **params),
    ]


def test_peft_adapts_saves_loads_and_merges(elsewhere: Run, tmp_path: Path) -> None:
    for differences in elsewhere("adapt", tmp_path).values():
        assert differences["adapted"] > 0.01
        assert differences["loaded"] == 0
        assert differences["merged"] < 1e-5


def test_nnsight_reads_our_activations_and_edits_them(elsewhere: Run) -> None:
    differences = elsewhere("trace")
    assert differences["block"] < 1e-6
    assert differences["logits"] < 1e-6
    assert differences["edited"] > 0.01
