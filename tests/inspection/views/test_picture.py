"""The model as one picture against `run_with_cache`: every vector, length, weight and guess, and what is refused."""

import math

import pytest
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.inspection.tracing.edits import scale, zero
from gpt.inspection.views.lens import lens_view
from gpt.inspection.views.picture import picture_view
from gpt.system.errors import InputError
from inspection.variants import every_variant
from tiny import sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n'")
IDS = torch.tensor(CHARS.encode("the cat's hat").tolist())


@every_variant
@torch.no_grad()
def test_the_numbers_are_those_of_the_activations(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    view = picture_view(model, CHARS, IDS)
    _, cache = run_with_cache(model, IDS)
    begin = view["parts"].index("attn")
    assert view["parts"] == [*["embedding", "position"][:begin], *["attn", "mlp"] * model.config.n_layer]
    streams = view["added"].cumsum(0)
    for layer in range(model.config.n_layer):
        before, _, after = streams[begin + 2 * layer - 1 : begin + 2 * layer + 2]
        torch.testing.assert_close(before, cache["resid_pre", layer][0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(after, cache["resid_post", layer][0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(view["weights"][layer], cache["pattern", layer][0])
        for norm, name in enumerate(("ln1", "ln2")):
            expected = cache[f"blocks.{layer}.{name}.hook_normalized"][0].norm(dim=-1).tolist()
            assert view["normalized"][2 * layer + norm] == pytest.approx(expected, rel=1e-5)
    assert view["normalized"][-1] == pytest.approx(cache["ln_final.hook_normalized"][0].norm(dim=-1).tolist(), rel=1e-5)
    lens = lens_view(model, CHARS, IDS, 10)
    assert (view["labels"], view["ids"], view["top"]) == (lens["labels"], IDS.tolist(), lens["top"][-1])
    assert view["lens"] == [[candidates[0] for candidates in row] for row in lens["top"]]


@every_variant
def test_the_parameters_are_all_that_the_model_has(variant: dict[str, object]) -> None:
    """One block is listed, and the others are like it."""
    model = sharp_model(**variant)
    counts = {name: math.prod(shape) for name, shape in picture_view(model, CHARS, IDS)["parameters"]}
    block = sum(count for name, count in counts.items() if name.startswith("h."))
    total = sum(counts.values()) + (model.config.n_layer - 1) * block
    assert total == sum(parameter.numel() for parameter in model.parameters())


def test_a_head_can_be_left_out_and_the_stream_cannot_be_edited() -> None:
    model = sharp_model()
    whole, without = (
        picture_view(model, CHARS, IDS, {"blocks.0.attn.hook_z": zero(1)} if edit else None) for edit in (0, 1)
    )
    assert torch.equal(whole["added"][:2], without["added"][:2])
    assert not torch.allclose(whole["added"][2], without["added"][2])
    with pytest.raises(InputError, match="this model cannot be shown: this model computes something else than a sum"):
        picture_view(model, CHARS, IDS, {"blocks.0.hook_resid_post": scale(2)})


def test_a_block_that_computes_something_else_is_not_drawn() -> None:
    model = sharp_model()
    model.h[1].register_forward_hook(lambda block, inputs, output: 1.5 * output)
    with pytest.raises(InputError, match="cannot be shown"):
        picture_view(model, CHARS, IDS)
