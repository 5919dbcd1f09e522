"""The words of the model as one picture, for every kind of model."""

import re

import pytest
import torch

from gpt.config import SamplingParams
from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.interop.html import render_model_page
from inspection.variants import VARIANTS
from interop.node import run_page
from tiny import sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n'")
TEXT = "the cat's hat"
IDS = torch.tensor(CHARS.encode(TEXT).tolist())
TOKEN = 7
DESCRIBE = f"""
const numbers = new Numbers(await newSource().picture({{ text: {TEXT!r} }}));
const described = describeParts(numbers, "character");
const blocks = described.blocks.map(({{ attention, middle, mlp, stream }}) => [...attention, middle, ...mlp, stream]);
const say = ({{ kind, name, shape, note, value, about, vector, guess }}) => ({{
  kind, name, shape, note, value: value({TOKEN}), about: about({TOKEN}),
  length: vector ? Math.hypot(...vector({TOKEN})) : null, guess: guess?.({TOKEN}) ?? null,
}});
return [described.before, ...blocks, described.after].map((parts) => parts.map(say));
"""


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_part_is_described(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    config = model.config
    before, *blocks, after = run_page(render_model_page(model, CHARS, "float32", SamplingParams(), "", ""), DESCRIBE)
    heads = [f"head {head}" for head in range(config.n_head)]
    mlp = ["MLP", "MLP adds"]
    inside = ["norm", "attention", *heads, "attention adds", "stream", "norm", *mlp]
    assert [[part["name"] for part in block] for block in blocks] == [
        [*inside, "after block 0"],
        [*inside, "after block 1"],
    ]
    position = [] if config.position == "rope" else ["position"]
    assert [part["name"] for part in before] == ["text", "embedding", *position, "stream"]
    assert [part["name"] for part in after] == ["final norm", "logits"]
    for part in (part for group in (before, *blocks, after) for part in group):
        words = f"{part['value']} {part['about']} {part.get('note', '')} {part.get('shape', '')}"
        assert not re.search("undefined|NaN|null|Infinity", words)
    guessing = [part["name"] for block in blocks for part in block if part["guess"] is not None]
    assert guessing == ["after block 0", "after block 1"]


@torch.no_grad()
def test_figures_are_those_of_the_activations() -> None:
    model = sharp_model()
    before, *blocks, after = run_page(render_model_page(model, CHARS, "float32", SamplingParams(), "", ""), DESCRIBE)
    logits, cache = run_with_cache(model, IDS)
    lengths = {
        name: float(cache[name][0, TOKEN].norm())
        for name in cache
        if name.endswith(("embed", "_out")) or "resid" in name
    }
    assert [part["length"] for part in before] == pytest.approx(
        [None, lengths["hook_embed"], lengths["hook_pos_embed"], lengths["blocks.0.hook_resid_pre"]], abs=1e-4
    )
    for layer, block in enumerate(blocks):
        found = [part["length"] for part in block if part["length"] is not None]
        middle = float((cache["resid_pre", layer] + cache["attn_out", layer])[0, TOKEN].norm())
        attention, mlp, end = (lengths[f"blocks.{layer}.hook_{name}"] for name in ("attn_out", "mlp_out", "resid_post"))
        assert found == pytest.approx([attention, middle, mlp, end], abs=1e-4)
        change = found[0] / lengths[f"blocks.{layer}.hook_resid_pre"]
        assert block[6]["value"] == f"adds {100 * change:.{int(change < 0.9995)}f}%"
    best = logits[0, TOKEN].softmax(-1).max(-1)
    assert blocks[-1][-1]["guess"][1] == pytest.approx(float(best.values), abs=1e-5)
    assert after[1]["value"].endswith(f" {100 * float(best.values):.1f}%")
