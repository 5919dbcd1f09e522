"""Exported files, each opened by a program of its own, which writes the model's greedy text."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from drills.frame import Drill, Tally, repeats
from gpt.config import SamplingParams
from gpt.data.bpe import learn_bpe
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.generation import generate_tokens
from gpt.interop.gguf_file import write_gguf
from gpt.interop.gguf_tokenizer import gguf_tokens
from gpt.interop.html import render_model_page
from gpt.interop.onnx_file import write_onnx
from gpt.interop.reference import compute_logits, from_gguf
from gpt.model import GPT
from interop.node import run_page
from patience import PATIENCE
from tiny import CORPUS, sharp_model
from variants import VARIANTS, keys_of

PROMPT, COUNT = "Who keeps the", 32
TOKENIZERS = (CharTokenizer("".join(sorted(set(CORPUS)))), ByteTokenizer(), learn_bpe([CORPUS], 300))
GPT2: dict[str, Any] = {"mlp": "gelu_tanh"}
LLAMA: dict[str, Any] = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu"}
GGUF_VARIANTS: tuple[dict[str, Any], ...] = (
    LLAMA | {"n_kv_head": 2},
    GPT2 | {"position": "sinusoidal"},
    LLAMA | {"qk_norm": True, "n_kv_head": 1},
    GPT2 | {"bias": True},
    LLAMA | {"bias": True, "n_kv_head": 2},
    GPT2 | {"tie_weights": True, "bias": True},
    LLAMA | {"tie_weights": True, "n_kv_head": 1},
    LLAMA | {"tie_weights": True, "qk_norm": True},
    GPT2 | {"position": "sinusoidal", "tie_weights": True, "bias": True},
    LLAMA | {"bias": True, "tie_weights": True},
    LLAMA | {"qk_norm": True, "n_kv_head": 2, "rope_theta": 100.0, "norm_eps": 0.1},
    GPT2 | {"mlp_width": 80},
)
"""Of the models that GGUF has, every choice."""
LLAMA_CPP = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = sys.argv[1], 64, 1, False
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.cpuparams.n_threads = 1
asked = {"prompt": sys.argv[2], "max_tokens": int(sys.argv[3]), "temperature": 0.0, "logprobs": 1}
answer = xllamacpp.Server(params).handle_completions(asked)
print(json.dumps([byte for each in answer["choices"][0]["logprobs"]["content"] for byte in each["bytes"]]))
"""
Write = Callable[[GPT, Tokenizer, Path], bytes]


def by_onnxruntime(model: GPT, tokenizer: Tokenizer, folder: Path) -> bytes:
    """Write a file, and its text with the tokenizer in the file."""
    from tokenizers import Tokenizer as TokenizerOfFile

    write_onnx(folder / "x.onnx", model, tokenizer)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "x.onnx", options)
    metadata = session.get_modelmeta().custom_metadata_map
    ids = TokenizerOfFile.from_str(metadata["tokenizer.json"]).encode(PROMPT, add_special_tokens=False).ids
    return _continue(ids, lambda ids: session.run(["logits"], {"idx": ids.unsqueeze(0).numpy()})[0][0], tokenizer)


def by_javascript(model: GPT, tokenizer: Tokenizer, folder: Path) -> bytes:
    """Write a page, and its text by the code in the page."""
    page = render_model_page(model, tokenizer, "float32", SamplingParams(), "", "", "")
    code = f"""
    const tokens = [];
    const request = {{ prompt: {json.dumps(PROMPT)}, count: {COUNT}, seed: 1, temperature: 0 }};
    await newSource(true).write(request, (more) => tokens.push(...more));
    return tokens.filter((token) => !token.isGiven).map((token) => token.id);
    """
    return b"".join(map(tokenizer.token_bytes, run_page(page, code)))


def by_llama_cpp(model: GPT, tokenizer: Tokenizer, folder: Path) -> bytes:
    """Write a file, and its text by llama.cpp."""
    write_gguf(folder / "x.gguf", model, tokenizer, "float32", "x")
    command = [sys.executable, "-c", LLAMA_CPP, str(folder / "x.gguf"), PROMPT, str(COUNT)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return bytes(json.loads(ended.stdout.splitlines()[-1]))


def by_reference(model: GPT, tokenizer: Tokenizer, folder: Path) -> bytes:
    """Write a file, and its text by what this package knows of llama.cpp; the tokenizer is not that of the file."""
    write_gguf(folder / "x.gguf", model, tokenizer, "float32", "x")
    reader: Any = import_module("gguf").GGUFReader(folder / "x.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    file = from_gguf(fields, {each.name: torch.tensor(each.data) for each in reader.tensors})
    return _continue(tokenizer.encode(PROMPT).tolist(), lambda ids: compute_logits(file, ids), tokenizer)


def _continue(ids: list[int], logits: Callable[[torch.Tensor], Any], tokenizer: Tokenizer) -> bytes:
    """Return the bytes of the most likely tokens after some ids, by a program that gives logits (T, V)."""
    given = len(ids)
    for _ in range(COUNT):
        ids = [*ids, int(logits(torch.tensor(ids))[-1].argmax())]
    return b"".join(map(tokenizer.token_bytes, ids[given:]))


def greedy(model: GPT, tokenizer: Tokenizer, end: int | None) -> bytes:
    """Return the bytes of the model's own text, which an end token ends."""
    params = SamplingParams(max_new_tokens=COUNT, temperature=0.0, end_id=end)
    ids = generate_tokens(model, tokenizer.encode(PROMPT).tolist(), params)
    return b"".join(tokenizer.token_bytes(index) for index in ids if index != end)


GGUF: dict[str, Write] = (
    {"GGUF by llama.cpp": by_llama_cpp} if find_spec("xllamacpp") else {"GGUF by its reference": by_reference}
)
WRITERS: dict[str, Write] = {"ONNX by onnxruntime": by_onnxruntime, "HTML by Node": by_javascript, **GGUF}


def make_model(tokenizer: Tokenizer, seed: int, changes: dict[str, Any]) -> GPT:
    """Return a model that writes ASCII: llama.cpp holds back what is not UTF-8."""
    model = sharp_model(0.3, seed, **{"block_size": 64, "vocab_size": tokenizer.vocab_size, **changes})
    others = [index for index in range(tokenizer.vocab_size) if not tokenizer.token_bytes(index).isascii()]
    with torch.no_grad():
        model.lm_head.weight[others] = 0.0
    return model


def try_formats(folder: Path, count: int, tally: Tally) -> None:
    """Export so many models in each format; in each, tokenizers take turns."""
    for name, write in WRITERS.items():
        variants = GGUF_VARIANTS if name.startswith("GGUF") else [keys_of(variant) for variant in VARIANTS]
        for number, changes in enumerate(variants[:count]):
            tokenizer = TOKENIZERS[number % len(TOKENIZERS)]
            model = make_model(tokenizer, number, changes)
            end = gguf_tokens(tokenizer).end_id if write is by_llama_cpp else None
            try:
                found, expected = write(model, tokenizer, folder), greedy(model, tokenizer, end)
                wrong = "" if found == expected else f"{found!r} instead of {expected!r}"
            except Exception as error:  # of any of the programs
                wrong = repr(error)[:500]
            tally.count(name)
            tally.count("wrong", bool(wrong))
            tally.check(not wrong, f"{name}, {type(tokenizer).__name__}, {changes}: {wrong}")


def run(folder: Path, full: bool) -> Tally:
    """Export models of every choice that a format has."""
    tally = Tally(*WRITERS, "wrong")
    torch.set_num_threads(1)
    try_formats(folder, repeats(full, len(VARIANTS), 2), tally)
    return tally


DRILL = Drill(
    "Models of every choice that a format has, exported as ONNX, as a page and as GGUF, write their greedy texts when "
    "the programs of these formats open the files.",
    run,
)
