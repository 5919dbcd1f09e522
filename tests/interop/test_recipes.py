"""Which recipes can be exported where, as README says."""

import re
from pathlib import Path

from gpt.config import SamplingParams
from gpt.config.sources import RECIPES, load_config
from gpt.data.tokenizers import CharTokenizer
from gpt.interop.gguf_file import write_gguf
from gpt.interop.html import render_model_page
from gpt.interop.hugging_face import export_files
from gpt.model import GPT
from gpt.system.errors import InputError
from tiny import sharp_model

README = Path(__file__).resolve().parents[2] / "README.md"
CHARS = CharTokenizer("abcdefghijklmnopqrst \n?")
SMALLER = {"n_layer": 1, "n_head": 4, "n_embd": 32, "block_size": 16, "vocab_size": 23, "mlp_width": None}


def table() -> dict[str, str]:
    """The last column of README's table of recipes, by recipe."""
    rows = re.findall(r"^\| (`\w+\.yaml`.*) \| (html.*) \|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: exports for names, exports in rows for name in re.findall(r"`(\w+)\.yaml`", names)}


def model_of(recipe: str) -> GPT:
    return sharp_model(**load_config(RECIPES / f"{recipe}.yaml").config.model.model_dump() | SMALLER)


def exports_of(recipe: str, folder: Path) -> str:
    """What a recipe's row has in the last column."""
    model, params = model_of(recipe), SamplingParams()
    render_model_page(model, CHARS, "fp16", params, "", "")
    try:
        export_files(model, CHARS, params)
        write_gguf(folder / "x.gguf", model, CHARS, "float32", "x")
    except InputError:
        return "html"
    return "html, hf, gguf"


def test_readme_says_where_each_recipe_can_be_exported(tmp_path: Path) -> None:
    recipes = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    assert table() == {recipe: exports_of(recipe, tmp_path) for recipe in recipes}
