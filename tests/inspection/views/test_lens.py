"""The logit lens, and the model as one picture, against `run_with_cache` and smaller models."""

import json
import math

import pytest
import torch

from gpt.data.tokenizers import CharTokenizer
from gpt.extras.inspection.tracing.activation_cache import run_with_cache
from gpt.extras.inspection.tracing.edits import scale, zero
from gpt.extras.inspection.views.lens import lens_view, logit_lens
from gpt.extras.inspection.views.picture import picture_view
from gpt.model import GPT
from gpt.system.errors import InputError
from inspection.variants import VARIANTS, every_variant, some_ids
from tiny import sharp_model, tiny_config

CHARS = CharTokenizer("\n abcdefghijklmnopqrs")  # 21, of a model with 23 ids
IDS = torch.tensor(CHARS.encode("a bad face\nbed").tolist())
LABELS = ["a", "␣", "b", "a", "d", "␣", "f", "a", "c", "e", "⏎", "b", "e", "d"]
NAMES = ["⏎", "␣", *"abcdefghijklmnopqrs", "#21", "#22"]


@every_variant
@torch.no_grad()
def test_row_i_of_the_lens_is_the_output_of_a_model_of_i_blocks(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    idx = some_ids()
    with torch.enable_grad():
        lens = logit_lens(model, idx)
    assert (lens.shape, lens.dtype, lens.requires_grad) == ((3, 2, 7, 23), torch.float32, False)
    shorter = GPT(tiny_config(**{"tie_weights": False, **variant, "n_layer": 1})).eval()
    shorter.load_state_dict(
        {name: w for name, w in model.state_dict().items() if not name.startswith("h.1.")}
    )
    torch.testing.assert_close(lens[1], shorter(idx), rtol=0, atol=1e-5)
    torch.testing.assert_close(lens[2], model(idx), rtol=0, atol=1e-6)


def test_lens_shows_the_edited_model_from_the_edit_on() -> None:
    model = sharp_model(**VARIANTS["llama"])
    idx = some_ids()
    plain = logit_lens(model, idx)
    edits = {"blocks.1.attn.hook_z": zero()}
    edited = logit_lens(model, idx, edits)
    assert torch.equal(plain[:2], edited[:2])
    assert not torch.allclose(plain[2], edited[2], atol=1e-2)
    assert torch.equal(edited[-1], run_with_cache(model, idx, [], edits)[0])
    for name in ("ln_final.hook_normalized", "logits", "ln_final.*ed"):
        with pytest.raises(
            InputError, match=r"a lens reads the streams, and (ln_final|logits).* comes later"
        ):
            logit_lens(model, idx, {name: zero()})


def test_lens_of_a_model_with_another_head_is_refused() -> None:
    class Doubled(GPT):
        def forward(self, *args: object, **options: object) -> torch.Tensor:
            return 2 * super().forward(*args, **options)  # type: ignore[arg-type]

    model = sharp_model()
    model.__class__ = Doubled
    with pytest.raises(
        InputError, match=r"^a logit lens cannot be shown: .* than lm_head\(ln_f\(x\)\)"
    ):
        logit_lens(model, torch.arange(9).unsqueeze(0))


@torch.no_grad()
def test_lens_view_ranks_the_tokens_of_each_row() -> None:
    model = sharp_model()
    view = lens_view(model, CHARS, IDS.int(), count=3)
    edits = {"blocks.1.attn.hook_z": zero()}
    assert (view["labels"], view["rows"]) == (LABELS, ["embeddings", "block 0", "block 1"])
    assert view["next"] == [*LABELS[1:], None]
    for row, logits in enumerate(logit_lens(model, IDS)[:, 0]):
        probabilities = logits.softmax(-1)
        came = probabilities[:-1].gather(1, IDS[1:, None]).flatten().tolist()
        assert view["next_probability"][row] == [*map(pytest.approx, came), None]
        for top, values, ids in zip(view["top"][row], *probabilities.topk(3), strict=True):
            assert [name for name, _ in top] == [NAMES[index] for index in ids.tolist()]
            assert [probability for _, probability in top] == pytest.approx(values.tolist())
    assert json.loads(json.dumps(view))["next"] == view["next"]
    assert lens_view(model, CHARS, IDS, 3, edits)["top"][2] != view["top"][2]
    one = lens_view(model, CHARS, IDS[:1], count=99)
    assert (one["next"], one["next_probability"], len(one["top"][0][0])) == (
        [None],
        [[None]] * 3,
        23,
    )


@every_variant
@torch.no_grad()
def test_picture_has_the_numbers_of_the_activations(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    view = picture_view(model, CHARS, IDS)
    _, cache = run_with_cache(model, IDS)
    begin = view["parts"].index("attn")
    layers = model.config.n_layer
    assert view["parts"] == [*["embedding", "position"][:begin], *["attn", "mlp"] * layers]
    streams = view["added"].cumsum(0)
    for layer in range(layers):
        before, _, after = streams[begin + 2 * layer - 1 : begin + 2 * layer + 2]
        torch.testing.assert_close(before, cache["resid_pre", layer][0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(after, cache["resid_post", layer][0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(view["weights"][layer], cache["pattern", layer][0])
        q = view["queries"][layer].transpose(0, 1)
        k = view["keys"][layer].transpose(0, 1)
        scores = (
            q @ k.repeat_interleave(len(q) // len(k), 0).transpose(-2, -1) / math.sqrt(q.size(-1))
        )
        found = cache["attn_scores", layer][0]
        torch.testing.assert_close(
            scores.tril(), found.masked_fill(found == -math.inf, 0), atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(view["hidden"][layer], cache["post", layer][0])
    norms = [
        *(f"blocks.{layer}.ln{norm}" for layer in range(layers) for norm in (1, 2)),
        "ln_final",
    ]
    for found, name in zip(view["normalized"], norms, strict=True):
        assert found == pytest.approx(
            cache[f"{name}.hook_normalized"][0].norm(dim=-1).tolist(), rel=1e-5
        )
    lens = lens_view(model, CHARS, IDS, 10)
    assert (view["labels"], view["ids"], view["top"]) == (
        lens["labels"],
        IDS.tolist(),
        lens["top"][-1],
    )
    assert view["lens"] == [[candidates[0] for candidates in row] for row in lens["top"]]
    # The view has the parameters of one block, and the others have the same shapes.
    counts = {name: math.prod(shape) for name, shape in view["parameters"]}
    block = sum(count for name, count in counts.items() if name.startswith("h."))
    assert sum(counts.values()) + (layers - 1) * block == sum(
        parameter.numel() for parameter in model.parameters()
    )


def test_picture_leaves_a_head_out_and_refuses_what_is_no_sum() -> None:
    model = sharp_model()
    whole, without = (
        picture_view(model, CHARS, IDS, edits)["added"]
        for edits in ({}, {"*0.attn.hook_z": zero(1)})
    )
    assert torch.equal(whole[:2], without[:2])
    assert not torch.allclose(whole[2], without[2])
    with pytest.raises(
        InputError,
        match="this model cannot be shown: this model computes something else than a sum",
    ):
        picture_view(model, CHARS, IDS, {"blocks.0.hook_resid_post": scale(2)})
    model.h[1].register_forward_hook(lambda block, inputs, output: 1.5 * output)
    with pytest.raises(InputError, match="cannot be shown"):
        picture_view(model, CHARS, IDS)
