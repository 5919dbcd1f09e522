"""What a format does not cover and what an edit changes is refused.

The recipes that the guide says can be exported.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt.config import ModelConfig, SamplingParams
from gpt.config.sources import RECIPES, load_config
from gpt.data.tokenizers import CharTokenizer
from gpt.extras.export.coverage import require_as_configured
from gpt.extras.export.gguf_file import write_gguf
from gpt.extras.export.html import PageWords, render_model_page
from gpt.extras.export.hugging_face import export_files
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import InputError
from planted_edits import EDITS
from tiny import sharp_model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"
CHARS = CharTokenizer("abcdefghijklmnopqrst \n?")
SMALLER = {
    "n_layer": 1,
    "n_head": 4,
    "n_embd": 32,
    "block_size": 16,
    "vocab_size": 23,
    "mlp_width": None,
}
EXPORTS: dict[str, Callable[[GPT, Path], object]] = {
    "html": lambda model, _: render_model_page(
        model, CHARS, "float32", SamplingParams(), PageWords("A title", "a note")
    ),
    "hf": lambda model, _: export_files(model, CHARS, SamplingParams()),
    "gguf": lambda model, folder: write_gguf(folder / "x.gguf", model, CHARS, "float32", "x"),
}


def test_model_is_refused_where_the_code_is_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharp_model(position="rope", norm="rmsnorm", qk_norm=True, mlp="gelu")
    require_as_configured(model)
    require_as_configured(quantize(model, "int8"))
    EDITS["attention times zero"](monkeypatch)
    with pytest.raises(
        InputError,
        match=r"^the model is not what its configuration builds: \w+ of gpt/model/\w+\.py was",
    ):
        require_as_configured(model)


class WiderConfig(ModelConfig):
    """A configuration with an option that exporters do not know."""

    alibi_slope: float = 0.0


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS.keys())
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp": "own_mish"}, r"model\.mlp"),
        ({"norm": "dyt"}, r"model\.norm"),
        ({"position": "own_alibi"}, r"model\.position"),
        ({"alibi_slope": 0.5}, r"; train one with model\.alibi_slope=0\.0"),
    ],
)
def test_option_that_is_not_listed_is_refused_by_name(
    changes: dict[str, object], message: str, export: Callable[[GPT, Path], object], tmp_path: Path
) -> None:
    model = sharp_model(mlp="gelu_tanh")
    model.config = WiderConfig(**model.config.model_dump())
    export(model, tmp_path)  # the new key has its default
    model.config = model.config.model_copy(update=changes)
    with pytest.raises(InputError, match=message) as error:
        export(model, tmp_path)
    assert "\n" not in str(error.value)


def exports_of(recipe: Path, folder: Path) -> str:
    """What a recipe's row in the page has to have in the last column."""
    model = sharp_model(**load_config(recipe).config.model.model_dump() | SMALLER)
    possible = []
    for name, export in EXPORTS.items():
        try:
            export(model, folder)
            possible.append(name)
        except InputError:
            continue
    return ", ".join(possible)


def test_page_says_where_each_recipe_can_be_exported(tmp_path: Path) -> None:
    rows = re.findall(
        r"^\| (`\w+\.yaml`.*) \| (html.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    table = {
        name: exports for names, exports in rows for name in re.findall(r"`(\w+)\.yaml`", names)
    }
    assert table == {path.stem: exports_of(path, tmp_path) for path in RECIPES.glob("*.yaml")}
