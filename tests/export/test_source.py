"""What the views of an exported page ask of the model in it, against gpt/extras/inspection's own views."""

import json
import math
import re
from typing import Any

import pytest
import torch

from export.node import run_page
from gpt.config import SamplingParams
from gpt.data.tokenizers import CharTokenizer
from gpt.extras.export.html import render_model_page
from gpt.extras.inspection.tracing.activation_cache import Edits, run_with_cache
from gpt.extras.inspection.tracing.edits import zero
from gpt.extras.inspection.views.attention import attention_view, summarize_head
from gpt.extras.inspection.views.continuation import greedy_continuation
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.picture import picture_view
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.extras.inspection.views.tokens import View, labels_of
from gpt.generation.generator import generate
from gpt.generation.sampling import next_token_probabilities
from gpt.model import GPT
from inspection.variants import VARIANTS
from tiny import sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n'")
TEXT = "the cat's hat\nis"
IDS = torch.tensor(CHARS.encode(TEXT).tolist())
LABELS = labels_of(CHARS, range(23))
ABLATE = [[0, 1], [1, 3]]
EVERY = {**VARIANTS, "wide": {"n_embd": 36, "n_head": 4, "mlp_width": 70}, "one layer": {"n_layer": 1}}


KNOWN = f"""
const [source, text] = [newSource(), {json.dumps(TEXT)}];
const write = async (source, request, notice) => {{
  const tokens = [];
  await source.write({{ seed: 1, temperature: 0, ...request }}, (more) => {{ tokens.push(...more); notice?.(); }});
  return tokens;
}};
"""


def ask(model: GPT, code: str) -> Any:
    """What `code`, which sees a `source`, the text above and how to `write`, returns."""
    return run_page(render_model_page(model, CHARS, "float32", SamplingParams(), "", ""), f"{KNOWN}\n{code}")


def assert_same(found: Any, expected: Any) -> None:
    """Compare lists of lists of names and numbers."""
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-4)
    else:
        assert found == expected


def assert_views(found: View, expected: View) -> None:
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert_same(found[key], value)


@pytest.mark.parametrize(("name", "ablate"), [*((name, ABLATE) for name in EVERY), ("gpt2", []), ("llama", [])])
def test_views_are_those_of_the_package(name: str, ablate: list[list[int]]) -> None:
    model = sharp_model(**EVERY[name])
    heads = [pair for pair in ablate if pair[0] < model.config.n_layer]
    edits: Edits = {f"blocks.{layer}.attn.hook_z": zero(head) for layer, head in heads}
    code = f"""
    const request = {{ text, ablate: {heads} }};
    const {{ weights, ...attention }} = await source.attention(request);
    const rest = [await source.lens(request), await source.surprisal(request)];
    const picture = await source.picture(request);
    for (const key of ["added", "weights"]) picture[key] = [...picture[key]];
    const continuation = await source.continuation({{ ...request, count: 7 }});
    const summary = new Heads(await source.attention(request)).summarize(2);
    return [[...weights], attention, summary, ...rest, continuation, picture];
    """
    weights, attention, summary, lens, surprised, continuation, picture = ask(model, code)
    expected = attention_view(model, CHARS, IDS, edits)
    rows, columns = torch.tril_indices(len(TEXT), len(TEXT)).unbind()
    triangles = expected["weights"][:, :, rows, columns].flatten()
    torch.testing.assert_close(torch.tensor(weights), triangles, atol=1e-5, rtol=0)
    wanted = summarize_head(expected["weights"][0, 2])
    assert_views(summary, {"distance": wanted.distance, "entropy": wanted.entropy})
    shape = {"layers": model.config.n_layer, "heads": model.config.n_head}
    assert attention == {"labels": expected["labels"], **shape}
    assert_views(lens, lens_view(model, CHARS, IDS, 10, edits=edits))
    wanted = picture_view(model, CHARS, IDS, edits)
    assert_views(picture, {**wanted, "added": wanted["added"].flatten().tolist(), "weights": triangles.tolist()})
    wanted = surprisal(model, IDS, edits=edits)
    bits = {"bits": [None, *wanted.bits.tolist()], "mean_bits": wanted.mean_bits}
    assert_views(surprised, {"labels": expected["labels"], **bits})
    ids, probabilities = greedy_continuation(model, IDS[-9:], 7, edits)  # the others leave no room in the window
    expected = {"ids": ids.tolist(), "labels": labels_of(CHARS, ids.tolist())}
    assert_views(continuation, expected | {"probabilities": probabilities.tolist()})


@pytest.mark.parametrize(
    ("settings", "params"),
    [
        ("temperature: 0", {"temperature": 0.0}),
        ("temperature: 0.9, topK: 4", {"temperature": 0.9, "top_k": 4}),
        ("temperature: 1.3, topP: 0.7", {"temperature": 1.3, "top_p": 0.7}),
        ("temperature: 1, topK: 9, topP: 0.5", {"temperature": 1.0, "top_k": 9, "top_p": 0.5}),
        ("temperature: 1, topP: 0.9, minP: 0.2", {"temperature": 1.0, "top_p": 0.9, "min_p": 0.2}),
    ],
)
def test_source_writes_what_the_package_writes(settings: str, params: dict[str, Any]) -> None:
    """Also with a model that has ids which the tokenizer lacks."""
    for model in (sharp_model(std=0.1, position="rope"), sharp_model(vocab_size=40)):
        tokens = ask(model, f"return write(source, {{ prompt: 'the ', count: 400, {settings}, seed: 5 }});")
        written = generate(model, CHARS, "the ", **{"max_new_tokens": 400, "seed": 5, "top_k": 0, **params})
        assert "".join(token["text"] for token in tokens) == "the " + written
        assert [token["isGiven"] for token in tokens] == [True] * 4 + [False] * 400
        assert all(id < 23 for token in tokens for id, _, _ in token["sampled"])
    assert any("#" in label for token in tokens for _, label, _ in token["own"])


@pytest.mark.parametrize("variant", EVERY)
def test_greedy_text_goes_on_past_the_window(variant: str) -> None:
    model = sharp_model(std=0.25, **EVERY[variant])
    tokens = ask(model, "return write(source, { prompt: 'the ', count: 60 });")
    written = generate(model, CHARS, "the ", max_new_tokens=60, temperature=0.0)
    assert "".join(token["text"] for token in tokens) == "the " + written


@torch.no_grad()
def test_written_token_has_its_probability_and_its_alternatives() -> None:
    model = sharp_model(std=0.1)
    tokens = ask(model, "return write(source, { prompt: 'the', count: 5, temperature: 0.5, topK: 4 });")
    text = "".join(token["text"] for token in tokens)
    assert [token["id"] for token in tokens] == CHARS.encode(text).tolist()
    first, *others = tokens
    assert (first["probability"], first["own"], first["sampled"]) == (None, [], [])
    logits = model(torch.tensor([[token["id"] for token in tokens]]))[0]
    for logit, token in zip(logits, others, strict=False):
        own = logit.softmax(-1)
        chance = next_token_probabilities(logit, SamplingParams(temperature=0.5, top_k=4))[token["id"]].item()
        assert (token["probability"], token["chance"]) == pytest.approx((float(own[token["id"]]), chance), abs=1e-5)
        assert all(label == LABELS[id] for id, label, _ in token["own"])
        assert_same([p for _, _, p in token["own"]], own.topk(10).values.tolist())
        assert_same([p for _, _, p in token["sampled"]], (logit.topk(4).values / 0.5).softmax(-1).tolist())


@torch.no_grad()
def test_other_settings_give_the_probabilities_of_the_package() -> None:
    """Of the sampling filters one after another, in their order; a token of another text is not told."""
    model = sharp_model(std=0.1, vocab_size=40)
    filters = [{"temperature": 0.0}, {"temperature": 0.4}, {"top_k": 3}, {"top_p": 0.01}, {"min_p": 0.3}]
    every = [*filters, {"temperature": 1.7, "top_k": 12, "top_p": 0.8, "min_p": 0.1}]
    names = {"temperature": "temperature", "top_k": "topK", "top_p": "topP", "min_p": "minP"}
    code = f"""
    await write(source, {{ prompt: text, count: 1 }});
    const other = await source.logitsAfter({{ ids: [1] }});
    const logits = await source.logitsAfter({{ ids: {IDS.tolist()} }});
    const settings = {json.dumps([{names[key]: value for key, value in each.items()} for each in every])};
    return [other, settings.map((each) => [...probabilitiesOf(logits, each)])];
    """
    other, found = ask(model, code)
    assert other is None
    logits = model(IDS[None])[0, -1]
    for settings, probabilities in zip(every, found, strict=True):
        expected = next_token_probabilities(logits[:23], SamplingParams(**{"temperature": 1.0, "top_k": 0, **settings}))
        assert probabilities == pytest.approx([*expected.tolist(), *[0] * 17], abs=1e-5), settings


def test_text_without_a_head_is_another_and_the_next_one_is_whole_again() -> None:
    code = """
    const request = { prompt: "the ", count: 40 };
    const without = { ...request, ablate: [[0, 0], [1, 2]] };
    return [await write(source, request), await write(source, without), await write(source, request),
            await write(newSource(), without)];
    """
    whole, without, again, anew = ask(sharp_model(std=0.1), code)
    assert whole == again
    assert whole != without == anew


@pytest.mark.parametrize(("count", "kept", "most"), [(8, 9, 6), (40, 24, 40)], ids=["in the window", "beyond it"])
def test_branch_is_what_the_text_would_have_been_and_does_not_compute_its_prompt_again(
    count: int, kept: int, most: int
) -> None:
    code = f"""
    let steps = 0;
    const step = source.model.step;
    source.model.step = function (...given) {{ steps++; return step.apply(this, given); }};
    const tokens = await write(source, {{ prompt: "the ", count: {count} }});
    const prompt = tokens.slice(0, {kept}).map((token) => token.text).join("") + "a";
    steps = 0;
    const branched = await write(source, {{ prompt, count: 3 }});
    const branchedSteps = steps;
    const expected = await write(newSource(), {{ prompt, count: 3 }});
    const ids = expected.map((token) => token.id).slice(0, prompt.length);
    return [branched, branchedSteps, expected, await write(source, {{ prompt: ids, count: 3, known: {kept} }})];
    """
    branched, steps, expected, rest = ask(sharp_model(std=0.1), code)
    assert branched == expected
    assert rest == expected[kept:]
    assert steps <= most


def test_reading_does_not_disturb_writing() -> None:
    code = """
    const slow = newSource(false);  // without WebAssembly
    const request = { prompt: "the ", count: 1500, temperature: 1 };
    const alone = await write(slow, request);
    slow.text = new Text(slow.model);
    let readings = 0;
    return [alone, await write(slow, request, () => slow.lens({ text }).then(() => readings++)), readings];
    """
    alone, disturbed, readings = ask(sharp_model(std=0.1), code)
    assert readings > 1
    assert disturbed == alone


def test_writing_ends_when_it_is_told_to() -> None:
    code = """
    const controller = new AbortController();
    const request = { prompt: "the ", count: 100000, temperature: 1, signal: controller.signal };
    let calls = 0;
    const stop = () => { calls++; controller.abort(); };
    const reason = await write(source, request, stop).catch((error) => error.name);
    return [reason, calls, (await write(source, { ...request, count: 3, signal: null })).length];
    """
    assert ask(sharp_model(), code) == ["AbortError", 1, 7]


def test_text_that_the_model_cannot_read_is_refused() -> None:
    messages = {
        "lens({ text: 'the Zoo #1' })": "The model does not know 'Z', '#', '1'; remove it from the text.",
        "surprisal({ text: 'a' })": "The text is too short; this view takes at least 2 characters.",
        "attention({ text: 'a'.repeat(17) })": "The text has 17 characters; the model reads 16.",
        "continuation({ text, count: 16 })": "A window of 16 tokens has no room for 16 new ones after a text.",
        "write({ prompt: '%', count: 1 })": "The model does not know '%'; remove it from the text.",
    }
    requests = ", ".join(f"source.{request}.catch((error) => error.message)" for request in messages)
    *found, bits = ask(sharp_model(), f"return Promise.all([{requests}, bitsOf(Float32Array.of(0, -400), 1)]);")
    assert found == list(messages.values())
    assert bits == pytest.approx(400 / math.log(2))  # finite where a probability is zero


TOKEN = 7
DESCRIBE = f"""
const numbers = new Numbers(await source.picture({{ text }}));
const described = describeParts(numbers, "character");
const blocks = described.blocks.map(({{ attention, middle, mlp, stream }}) => [...attention, middle, ...mlp, stream]);
const say = ({{ kind, name, shape, note, value, about, vector, guess }}) => ({{
  kind, name, shape, note, value: value({TOKEN}), about: about({TOKEN}),
  length: vector ? Math.hypot(...vector({TOKEN})) : null, guess: guess?.({TOKEN}) ?? null,
}});
return [described.before, ...blocks, described.after].map((parts) => parts.map(say));
"""


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
@torch.no_grad()
def test_every_part_of_a_picture_is_described_with_its_figures(variant: dict[str, object]) -> None:
    model = sharp_model(**variant)
    before, *blocks, after = ask(model, DESCRIBE)
    inside = ["norm", "attention", *(f"head {head}" for head in range(4)), "attention adds", "stream", "norm", "MLP"]
    names = [[part["name"] for part in block] for block in blocks]
    assert names == [[*inside, "MLP adds", f"after block {layer}"] for layer in (0, 1)]
    position = [] if model.config.position == "rope" else ["position"]
    assert [part["name"] for part in before] == ["text", "embedding", *position, "stream"]
    assert [part["name"] for part in after] == ["final norm", "logits"]
    for part in (part for group in (before, *blocks, after) for part in group):
        words = f"{part['value']} {part['about']} {part.get('note', '')} {part.get('shape', '')}"
        assert not re.search("undefined|NaN|null|Infinity", words)
    guessing = [part["name"] for block in blocks for part in block if part["guess"] is not None]
    assert guessing == ["after block 0", "after block 1"]
    logits, cache = run_with_cache(model, IDS)
    lengths = {name: float(tensor[0, TOKEN].norm()) for name, tensor in cache.items() if tensor.dim() == 3}
    parts = [lengths["hook_embed"], lengths["hook_pos_embed"]] if position else [None]  # alone it is the stream
    streams = [None, *parts, lengths["blocks.0.hook_resid_pre"]]
    assert [part["length"] for part in before] == pytest.approx(streams, abs=1e-4)
    for layer, block in enumerate(blocks):
        found = [part["length"] for part in block if part["length"] is not None]
        middle = float((cache["resid_pre", layer] + cache["attn_out", layer])[0, TOKEN].norm())
        attention, mlp, end = (lengths[f"blocks.{layer}.hook_{name}"] for name in ("attn_out", "mlp_out", "resid_post"))
        assert found == pytest.approx([attention, middle, mlp, end], abs=1e-4)
        change = found[0] / lengths[f"blocks.{layer}.hook_resid_pre"]
        assert block[6]["value"] == f"adds {100 * change:.{int(change < 0.9995)}f}%"
    best = float(logits[0, TOKEN].softmax(-1).max())
    assert blocks[-1][-1]["guess"][1] == pytest.approx(best, abs=1e-5)
    assert after[1]["value"].endswith(f" {100 * best:.1f}%")
