"""What a caller has set for all of torch changes no result: a table of public functions and of settings."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import gpt
from gpt.cli import export, sample
from gpt.generation.backends.selection import DecodeOptions
from tiny import CORPUS, sharp_model, tiny_config

TOKENIZER = gpt.CharTokenizer(CORPUS)
TEXT = "the keeper"
LLAMA = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu"}
"""An architecture that every export has."""


@contextmanager
def changed(change: Callable[[Any], object], value: Any, former: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(former)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16": lambda: changed(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "float16": lambda: changed(torch.set_default_dtype, torch.float16, torch.float32),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "threads": lambda: changed(torch.set_num_threads, 2, torch.get_num_threads()),
    "deterministic": lambda: changed(torch.use_deterministic_algorithms, True, False),
}


def build(**changes: Any) -> gpt.GPT:
    torch.manual_seed(0)
    return gpt.GPT(tiny_config(vocab_size=TOKENIZER.vocab_size, **changes))


def weights(model: gpt.GPT) -> dict[str, Tensor]:
    """All tensors, those that are not saved too; the weights can be trained."""
    assert not any(parameter.is_inference() for parameter in model.parameters())
    return {**dict(model.named_buffers()), **dict(model.named_parameters())}


def save_and_load(model: gpt.GPT) -> dict[str, Tensor]:
    gpt.save(model, TOKENIZER, "saved")
    return weights(gpt.load("saved", "cpu")[0])


def train() -> list[Any]:
    small = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "position": "rope", "qk_norm": True}
    run = gpt.train(
        text=CORPUS * 30, name=None, model=small, max_steps=4, eval_interval=2, batch_size=2,
        warmup_steps=1, device="cpu", compile=False, dtype="float32", config={}, sample_tokens=5, report=None,
        run={"dir": "runs"},
    )  # fmt: skip
    evaluated = run.evaluate()
    return [[row.get("val/loss") for row in run.metrics], evaluated["loss"], weights(run.model), run.sample("the")]


def written(to: str) -> Callable[[gpt.GPT], bytes]:
    def write(model: gpt.GPT) -> bytes:
        gpt.save(model, TOKENIZER, "saved")
        assert export.main(["--checkpoint", "saved", "--to", to, "--output", to]) == 0
        path = Path(to)
        return b"".join(file.read_bytes() for file in ([path] if path.is_file() else sorted(path.iterdir())))

    return write


def command(model: gpt.GPT) -> int:
    gpt.save(model, TOKENIZER, "saved")
    return sample.main(["--checkpoint", "saved", "--prompt", TEXT, "--beam", "2", "--max-new-tokens", "4"])


def eager(model: gpt.GPT) -> list[str]:
    runtime = gpt.build_runtime(model, DecodeOptions(backend="eager"))
    return gpt.generate(model, TOKENIZER, [TEXT, "a"], runtime=runtime, max_new_tokens=30, min_p=0.1)


FUNCTIONS: dict[str, Callable[[gpt.GPT], Any]] = {
    "GPT": lambda _: weights(build(position="rope", qk_norm=True)),
    "GPT of other parts": lambda _: weights(build(position="sinusoidal", norm="rmsnorm", mlp="swiglu", bias=True)),
    "save and load": save_and_load,
    "generate": lambda model: gpt.generate(model, TOKENIZER, [TEXT, "a"], max_new_tokens=30, top_k=5),
    "stream": lambda model: list(gpt.stream(model, TOKENIZER, TEXT, repetition_penalty=1.2)),
    "generate_tokens": lambda model: list(gpt.generate_tokens(model, TEXT, tokenizer=TOKENIZER)),
    "eager": eager,
    "a beam": command,
    "run_with_cache": lambda model: dict(gpt.run_with_cache(model, TEXT, tokenizer=TOKENIZER)[1]),
    "an edit": lambda model: gpt.run_with_cache(
        model, TEXT, edits={"blocks.0.attn.hook_z": gpt.edits.zero()}, tokenizer=TOKENIZER
    )[0],
    "logit_lens": lambda model: gpt.logit_lens(model, TEXT, tokenizer=TOKENIZER),
    "surprisal": lambda model: vars(gpt.surprisal(model, TEXT, tokenizer=TOKENIZER)),
    "attention_patterns": lambda model: gpt.attention_patterns(model, TEXT, tokenizer=TOKENIZER),
    "trace_shapes": lambda model: gpt.trace_shapes(model, TEXT, TOKENIZER),
    "show": lambda model: (repr(gpt.show.lens(model, TOKENIZER, TEXT)), gpt.show.parameters(model)._repr_html_()),
    "quantize": lambda model: dict(gpt.quantize(model, "int4").named_buffers()),
    "train": lambda _: train(),
    "tokenizers": lambda _: [
        [TOKENIZER.encode(TEXT).tolist(), TOKENIZER.decode(TOKENIZER.encode(TEXT))],
        gpt.ByteTokenizer().encode(TEXT).tolist(),
    ],
    "html": written("html"),
    "hf": written("hf"),
    "gguf": written("gguf"),
}


@pytest.fixture(scope="module", params=FUNCTIONS)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, gpt.GPT, Any]:
    """A function, a model, and the result in a process that has changed nothing."""
    function = FUNCTIONS[request.param]
    model = sharp_model(vocab_size=TOKENIZER.vocab_size, **LLAMA)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("plain"))
        return function, model, function(model)


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_default_of_torch_changes_a_result(
    asked: tuple[Any, gpt.GPT, Any], setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, model, expected = asked
    monkeypatch.chdir(tmp_path)
    with SETTINGS[setting]():
        found = function(model)
    same(found, expected, 1e-5 if setting == "threads" else 0.0)  # other threads sum in another order


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (torch.autocast("cpu", torch.bfloat16), r"torch\.autocast; leave it before"),
        (torch.device("meta"), "default device is not the CPU; set it back"),  # in place of cuda
    ],
)
def test_a_training_is_refused_where_torch_computes_elsewhere_or_in_another_type(setting: Any, message: str) -> None:
    with setting, pytest.raises(gpt.GPTError, match=message):
        train()


def same(found: Any, expected: Any, tolerance: float) -> None:
    """With their types and devices."""
    if isinstance(expected, dict | list):
        assert len(found) == len(expected)
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            same(found[key], expected[key], tolerance)
    elif isinstance(expected, Tensor | float):
        assert_close(found, expected, rtol=tolerance, atol=tolerance)
    else:
        assert found == expected
