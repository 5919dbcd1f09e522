"""llama.cpp beside the model, where its Python package is installed; its process, where it is not."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks import llama_cpp
from benchmarks.hugging_face import check_agreement
from benchmarks.llama_cpp import CACHES, LlamaCpp, check_llama_cpp
from gpt.config import SamplingParams
from gpt.data import CharTokenizer
from gpt.errors import ConfigError, GPTError
from gpt.generation import generate_tokens
from gpt.interop.gguf_file import write_gguf
from tiny import sharp_model

LLAMA = {"norm": "rmsnorm", "position": "rope", "mlp": "swiglu", "mlp_width": 96}

needs_llama_cpp = pytest.mark.skipif(
    not (find_spec("llama_cpp") and find_spec("gguf")), reason="llama-cpp-python and gguf are not installed"
)

FAKE = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    seconds = {"F16": 1.0, "F32": 2.0}[request["cache"]] if request["steps"] else 0.0
    print(json.dumps({"ticks": [0.0, seconds]} if request["steps"] else {"logits": [[0.0]]}), flush=True)
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends processes after the test."""
    with ExitStack() as found:
        yield found


@pytest.fixture
def _fake_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.setattr(llama_cpp, "WORKER", tmp_path / "fake.py")


@pytest.mark.usefixtures("_fake_worker")
def test_each_request_names_its_type_of_cache(stack: ExitStack) -> None:
    peer, idx = LlamaCpp(sharp_model(**LLAMA), "F32", sys.executable, stack), torch.zeros(2, 3, dtype=torch.int64)
    assert [peer.decode(idx, SamplingParams(max_new_tokens=1), cache) for cache in CACHES] == [[0.0, 1.0], [0.0, 2.0]]


@pytest.mark.usefixtures("_fake_worker")
def test_other_logits_are_refused(stack: ExitStack) -> None:
    model = sharp_model(**LLAMA)
    peer = LlamaCpp(model, "F32", sys.executable, stack)
    with pytest.raises(ConfigError, match=r"llama.cpp gives other logits"):
        check_agreement("llama.cpp", peer.logits, model)


def test_a_python_without_it_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--llama-cpp .*nowhere: .*pip install llama-cpp-python"):
        check_llama_cpp(str(tmp_path / "nowhere"))


@needs_llama_cpp
@pytest.mark.parametrize("changes", [{}, {"n_kv_head": 2}, {"tie_weights": True}], ids=str)
def test_float32_gives_our_logits(stack: ExitStack, changes: dict[str, object]) -> None:
    model = sharp_model(**LLAMA, **changes)
    peer = LlamaCpp(model, "F32", sys.executable, stack)
    check_agreement("llama.cpp", peer.logits, model, 1e-4)
    ticks = peer.decode(torch.zeros(3, 4, dtype=torch.int64), SamplingParams(max_new_tokens=5), "F32")
    assert len(ticks) == 7
    assert sorted(ticks) == ticks


@needs_llama_cpp
def test_a_served_model_has_our_characters_and_no_end_of_text(tmp_path: Path) -> None:
    import llama_cpp as library

    tokenizer, text = CharTokenizer("\n\\ !'ROMEabcdefghijklmn"), "ROME:\n O'\\ed!".replace(":", "")
    model = sharp_model(**LLAMA, block_size=64, vocab_size=tokenizer.vocab_size)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, tokenizer, "float32", "peer")
    peer = library.Llama(str(path), n_ctx=64, verbose=False)
    ids = tokenizer.encode(text).tolist()
    assert peer.tokenize(text.encode()) == ids
    assert peer.token_eos() == -1
    found = peer.create_completion(text, max_tokens=20, temperature=0)["choices"][0]["text"]
    tokens = generate_tokens(model, ids, SamplingParams(max_new_tokens=20, temperature=0))
    assert found == tokenizer.decode(list(tokens))


@needs_llama_cpp
def test_a_file_that_it_does_not_load_is_an_error(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "write_gguf", lambda path, *_: path.write_bytes(b"nothing"))
    peer = LlamaCpp(sharp_model(**LLAMA), "F32", sys.executable, stack)
    with pytest.raises(GPTError, match=r"llama.cpp: .*does not load"):
        peer.logits(torch.zeros(1, 3, dtype=torch.int64))
