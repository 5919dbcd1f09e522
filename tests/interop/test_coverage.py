"""What a format does not cover, and what an edit changes, is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from gpt.config import ModelConfig, SamplingParams
from gpt.data.tokenizers import CharTokenizer
from gpt.interop.coverage import require_as_configured
from gpt.interop.gguf_file import write_gguf
from gpt.interop.html import render_model_page
from gpt.interop.hugging_face import export_files
from gpt.model import GPT
from gpt.model.attention import Attention
from gpt.model.quantized import quantize
from gpt.system.errors import InputError
from planted_edits import EDITS
from tiny import sharp_model
from variants import VARIANTS, keys_of, name_of

CHARS = CharTokenizer("abcdefghijklmnopqrst \n?")
GPT2: dict[str, object] = {"mlp": "gelu_tanh"}
LLAMA: dict[str, object] = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "n_kv_head": 2}
QWEN = LLAMA | {"qk_norm": True, "tie_weights": True, "norm_eps": 0.1, "rope_theta": 50.0}
EDITED = r"^the model is not what its configuration builds: \w+ of gpt/model/\w+\.py was replaced$"
EXPORTS: dict[str, Callable[[GPT, Path], object]] = {
    "html": lambda model, _: render_model_page(model, CHARS, "float32", SamplingParams(), "A title", "a note"),
    "hf": lambda model, _: export_files(model, CHARS, SamplingParams()),
    "gguf": lambda model, folder: write_gguf(folder / "x.gguf", model, CHARS, "float32", "x"),
}


@pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
def test_an_untouched_model_is_as_configured(variant: tuple[Any, ...]) -> None:
    model = sharp_model(**keys_of(variant))
    require_as_configured(model)
    require_as_configured(quantize(model, "int8"))


@pytest.mark.parametrize(
    ("edit", "changes"),
    [
        ("attention times zero", GPT2),
        ("another activation", {"mlp": "gelu", "mlp_width": 120}),
        ("another eps", QWEN),
        ("another scale", LLAMA | {"n_kv_head": 4}),
    ],
)
def test_an_edit_of_the_code_is_refused(edit: str, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    EDITS[edit](monkeypatch)
    with pytest.raises(InputError, match=EDITED):
        require_as_configured(sharp_model(**changes))


class Scaled(Attention):
    def forward(self, *arguments: Any) -> Tensor:
        return 0.5 * super().forward(*arguments)


def test_a_module_that_the_configuration_does_not_build_is_refused() -> None:
    model = sharp_model(**GPT2)
    model.h[1].attn.__class__ = Scaled
    with pytest.raises(InputError, match=r"^the model is not what its configuration builds: .* Scaled"):
        require_as_configured(model)


class WiderConfig(ModelConfig):
    """A configuration with an option that exporters do not know."""

    alibi_slope: float = 0.0


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS.keys())
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp": "mish"}, r"model\.mlp"),
        ({"norm": "dyt"}, r"model\.norm"),
        ({"position": "alibi"}, r"model\.position"),
        ({"alibi_slope": 0.5}, r"; train one with model\.alibi_slope=0\.0"),
    ],
)
def test_an_option_that_is_not_listed_is_refused_by_name(
    changes: dict[str, object], message: str, export: Callable[[GPT, Path], object], tmp_path: Path
) -> None:
    model = sharp_model(**GPT2)
    model.config = WiderConfig(**model.config.model_dump())
    export(model, tmp_path)  # the new key has its default
    model.config = model.config.model_copy(update=changes)
    with pytest.raises(InputError, match=message) as error:
        export(model, tmp_path)
    assert "\n" not in str(error.value)
