"""Exports and models in the libraries of `make interop`: transformers 4, lm-eval and others."""

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
    """Run one of the programs, and return the JSON of the last line that it prints."""
    script = ROOT / f"tests/interop/programs/{program}.py"
    command = [str(word) for word in (python, script, *arguments)]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    result = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-5000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def elsewhere() -> Run:
    """Return a function that runs a program in the other environment."""
    if not PYTHON.exists():
        missing = "there is no build/interop"
        pytest.skip(
            f"{missing}; make interop makes it, with transformers 4, lm-eval, peft and nnsight"
        )
    return lambda program, *arguments: run(PYTHON, program, *arguments)


@pytest.fixture
def here() -> Run:
    """Return a function that runs a program with the packages of the tests."""
    return lambda program, *arguments: run(sys.executable, program, *arguments)


def exported_models() -> list[tuple[GPT, Tokenizer, str]]:
    """Return a model of each kind that is exported, with each kind of tokenizer, and a text of 20
    tokens or more.
    """
    models: list[tuple[GPT, Tokenizer, str]] = []
    for _, changes in EXPORTS:
        model = sharp_model(std=0.1, block_size=64, **changes)
        models.append((model, CHARS, "a bad face\nfor ages"))
    texts: list[tuple[Tokenizer, str]] = [
        (ByteTokenizer(), "\N{GREEK SMALL LETTER ALPHA}\nbyte by byte"),
        (learn_bpe([CORPUS], 300), CORPUS[:60]),
    ]
    for tokenizer, text in texts:
        model = sharp_model(std=0.1, block_size=64, vocab_size=tokenizer.vocab_size)
        models.append((model, tokenizer, text))
    return models


@pytest.mark.parametrize(("version", "environment"), [("4.", "elsewhere"), ("5.", "here")])
def test_transformers_gives_our_ids_logits_and_texts(
    version: str, environment: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its model reads what its tokenizer returns, without any change."""
    read: Run = request.getfixturevalue(environment)
    models = exported_models()
    folders = [tmp_path / str(number) for number in range(len(models))]
    for folder, (model, tokenizer, text) in zip(folders, models, strict=True):
        folder.mkdir()
        exported = save(model, folder, tokenizer)
        (exported / "text.txt").write_text(text, encoding="utf-8")
    printed = read("read_exports", *folders)
    assert printed["version"].startswith(version)
    for answer, (model, tokenizer, text) in zip(printed["answers"], models, strict=True):
        ids = tokenizer.encode(text).tolist()
        assert answer["ids"] == ids
        with torch.no_grad():
            expected = model(torch.tensor([ids]))
        torch.testing.assert_close(torch.tensor([answer["logits"]]), expected, atol=1e-5, rtol=0)
        written = generate(model, tokenizer, text, max_new_tokens=20, temperature=0.0)
        assert answer["text"] == text + written


def logprob(model: GPT, start: int | None, text: str, given: int = 0) -> float:
    """Return the log-probability of a text after its first `given` characters, all of it after the
    id `start`.
    """
    ids = CHARS.encode(text).tolist()
    if start is not None:
        ids = [start, *ids]
    first = len(ids) - (len(text) - given)
    with torch.no_grad():
        logprobs = model(torch.tensor([ids]))[0].log_softmax(dim=-1)  # (T, V)
    return float(sum(logprobs[place - 1, ids[place]] for place in range(first, len(ids))))


def likelihoods(answers: dict[str, Any]) -> list[float]:
    """Return the log-likelihoods of both kinds of requests.

    Lm-eval also says whether a text is the most likely one.
    """
    conditional = [value for value, _ in answers["loglikelihood"]]
    return [*conditional, *answers["loglikelihood_rolling"]]


@pytest.mark.parametrize("end_id", [0, None])
def test_lm_eval_has_our_likelihoods_and_texts(
    end_id: int | None, elsewhere: Run, tmp_path: Path
) -> None:
    """Exports with an end token, and without one, in both ways that docs/export.md gives."""
    model = sharp_model(std=0.1, block_size=64)
    save(model, tmp_path, end_id=end_id)
    expected = [
        logprob(model, None, "bad face", 3),
        logprob(model, 0, "ab"),
        logprob(model, 0, "a bad face\n"),
    ]
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
