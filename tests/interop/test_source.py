"""What the views of an exported page ask of the model in it, against gpt/inspection's own views."""

import json
import math
from typing import Any

import pytest
import torch

from gpt.config import SamplingParams
from gpt.data.tokenizers import CharTokenizer
from gpt.generation import generate
from gpt.generation.sampling import next_token_probabilities
from gpt.inspection.tracing.activation_cache import Edits, run_with_cache
from gpt.inspection.tracing.edits import zero
from gpt.inspection.views.attention import attention_view
from gpt.inspection.views.lens import lens_view
from gpt.inspection.views.picture import picture_view
from gpt.inspection.views.surprisal import surprisal
from gpt.inspection.views.tokens import View, labels_of
from gpt.interop.html import render_model_page
from gpt.model import GPT
from inspection.variants import VARIANTS
from interop.node import run_page
from tiny import sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n'")
TEXT = "the cat's hat\nis"
IDS = torch.tensor(CHARS.encode(TEXT).tolist())
LABELS = labels_of(CHARS, range(23))
ABLATE = [[0, 1], [1, 3]]
EVERY = {**VARIANTS, "wide": {"n_embd": 36, "n_head": 4, "mlp_width": 70}, "one layer": {"n_layer": 1}}


def ask(model: GPT, code: str, wasm: str = "true") -> Any:
    """What `code`, which sees a `source` and the text and heads above, returns."""
    page = render_model_page(model, CHARS, "float32", SamplingParams(), "", "")
    known = f"const source = newSource({wasm}); const text = {json.dumps(TEXT)};"
    return run_page(page, f"{known}\n{code}")


def assert_same(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    """Compare lists of lists of names and numbers; what are equal but for rounding may stand in another order."""
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=tolerance)
    else:
        assert found == expected


def assert_views(found: View, expected: View, tolerance: float = 1e-4) -> None:
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert_same(found[key], value, tolerance)


@pytest.mark.parametrize(("name", "ablate"), [*((name, ABLATE) for name in EVERY), ("gpt2", []), ("llama", [])])
def test_every_view_is_that_of_the_package(name: str, ablate: list[list[int]]) -> None:
    model = sharp_model(**EVERY[name])
    heads = [pair for pair in ablate if pair[0] < model.config.n_layer]
    edits: Edits = {f"blocks.{layer}.attn.hook_z": zero(head) for layer, head in heads}
    code = f"""
    const request = {{ text, ablate: {heads} }};
    const {{ weights, ...attention }} = await source.attention(request);
    const rest = [await source.lens(request), await source.surprisal(request)];
    const picture = await source.picture(request);
    for (const key of ["added", "weights"]) picture[key] = [...picture[key]];
    return [[...weights], attention, ...rest, await source.continuation({{ ...request, count: 7 }}), picture];
    """
    weights, attention, lens, surprised, continuation, picture = ask(model, code)
    expected = attention_view(model, CHARS, IDS, edits)
    rows, columns = torch.tril_indices(len(TEXT), len(TEXT)).unbind()
    triangles = expected["weights"][:, :, rows, columns].flatten()
    torch.testing.assert_close(torch.tensor(weights), triangles, atol=1e-5, rtol=0)
    shape = {"layers": model.config.n_layer, "heads": model.config.n_head}
    assert attention == {"labels": expected["labels"], **shape}
    assert_views(lens, lens_view(model, CHARS, IDS, 10, edits=edits))
    wanted = picture_view(model, CHARS, IDS, edits)
    assert_views(picture, {**wanted, "added": wanted["added"].flatten().tolist(), "weights": triangles.tolist()})
    wanted = surprisal(model, IDS, edits=edits)
    bits = {"bits": [None, *wanted.bits.tolist()], "mean_bits": wanted.mean_bits}
    assert_views(surprised, {"labels": expected["labels"], **bits})
    ids, probabilities = greedy(model, IDS[-9:].tolist(), 7, edits)  # the others leave no room in the window
    assert (continuation["ids"], continuation["labels"]) == (ids, labels_of(CHARS, ids))
    assert_same(continuation["probabilities"], probabilities)


@torch.no_grad()
def greedy(model: GPT, ids: list[int], count: int, edits: Edits) -> tuple[list[int], list[float]]:
    """The most likely ids after some, one after another, and their probabilities."""
    given, probabilities = len(ids), []
    for _ in range(count):
        logits, _ = run_with_cache(model, torch.tensor([ids]), names=[], edits=edits)
        likely = logits[0, -1].softmax(-1).max(-1)
        ids = [*ids, int(likely.indices)]
        probabilities.append(float(likely.values))
    return ids[given:], probabilities


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
def test_it_writes_what_the_package_writes(settings: str, params: dict[str, Any]) -> None:
    model = sharp_model(std=0.1, position="rope")
    code = f"""
    const tokens = [];
    const onTokens = (more) => tokens.push(...more);
    await source.write({{ prompt: "the ", count: 700, seed: 5, {settings} }}, onTokens);
    return [tokens.map((token) => token.text).join(""), tokens.map((token) => token.isGiven)];
    """
    text, given = ask(model, code)
    params = {"top_k": 0, **params}
    assert text == "the " + generate(model, CHARS, "the ", max_new_tokens=700, seed=5, **params)
    assert given == [True] * 4 + [False] * 700


@torch.no_grad()
def test_a_token_has_its_probability_and_its_alternatives() -> None:
    model = sharp_model(std=0.1)
    code = """
    const tokens = [];
    const request = { prompt: "the", count: 5, seed: 1, temperature: 0.5, topK: 4 };
    await source.write(request, (more) => tokens.push(...more));
    return tokens;
    """
    tokens = ask(model, code)
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
def test_other_settings_give_a_written_token_the_probabilities_of_the_package() -> None:
    """Of the sampling filters one after another, in their order; a token of another text is not told."""
    model = sharp_model(std=0.1, vocab_size=40)
    filters = [{"temperature": 0.0}, {"temperature": 0.4}, {"top_k": 3}, {"top_p": 0.01}, {"min_p": 0.3}]
    every = [*filters, {"temperature": 1.7, "top_k": 12, "top_p": 0.8, "min_p": 0.1}]
    names = {"temperature": "temperature", "top_k": "topK", "top_p": "topP", "min_p": "minP"}
    code = f"""
    await source.write({{ prompt: text, count: 1, seed: 1, temperature: 1 }}, () => {{}});
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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_that_the_tokenizer_does_not_have_are_not_sampled(temperature: float) -> None:
    model = sharp_model(vocab_size=40)
    code = f"""
    const tokens = [];
    const request = {{ prompt: "the ", count: 60, seed: 5, temperature: {temperature} }};
    await source.write(request, (more) => tokens.push(...more));
    return tokens;
    """
    tokens = ask(model, code)
    params: dict[str, Any] = {"temperature": temperature, "top_k": 0, "max_new_tokens": 60, "seed": 5}
    assert "".join(token["text"] for token in tokens) == "the " + generate(model, CHARS, "the ", **params)
    assert any("#" in label for token in tokens for _, label, _ in token["own"])
    assert all(id < 23 for token in tokens for id, _, _ in token["sampled"])


def test_a_text_without_a_head_is_another_and_the_next_one_is_whole_again() -> None:
    model = sharp_model(std=0.1)
    code = """
    const write = async (source, ablate) => {
      const tokens = [];
      const request = { prompt: "the ", count: 40, seed: 1, temperature: 0, ablate };
      await source.write(request, (more) => tokens.push(...more));
      return tokens;
    };
    const heads = [[0, 0], [1, 2]];
    const [whole, without, again] = [await write(source, []), await write(source, heads), await write(source, [])];
    return [whole, without, again, await write(newSource(), heads)];
    """
    whole, without, again, anew = ask(model, code)
    assert whole == again
    assert whole != without == anew


@pytest.mark.parametrize(("count", "kept", "most"), [(8, 9, 6), (40, 24, 40)], ids=["in the window", "beyond it"])
def test_a_branch_is_what_the_text_would_have_been_and_does_not_compute_its_prompt_again(
    count: int, kept: int, most: int
) -> None:
    model = sharp_model(std=0.1)
    code = (
        f"const [count, kept] = [{count}, {kept}];"
        + """
    let steps = 0;
    const step = source.model.step;
    source.model.step = function (...given) { steps++; return step.apply(this, given); };
    const write = async (source, prompt, count, known) => {
      const tokens = [];
      steps = 0;
      await source.write({ prompt, count, seed: 1, temperature: 0, known }, (more) => tokens.push(...more));
      return tokens;
    };
    const tokens = await write(source, "the ", count);
    const prompt = tokens.slice(0, kept).map((token) => token.text).join("") + "a";
    const branched = await write(source, prompt, 3);
    const branchedSteps = steps;
    const expected = await write(newSource(), prompt, 3);
    const ids = expected.map((token) => token.id).slice(0, prompt.length);
    return [branched, branchedSteps, expected, await write(source, ids, 3, kept)];
    """
    )
    branched, steps, expected, rest = ask(model, code)
    assert branched == expected
    assert rest == expected[kept:]
    assert steps <= most


def test_reading_does_not_disturb_writing() -> None:
    model = sharp_model(std=0.1)
    code = """
    const write = async (reads) => {
      const tokens = [];
      let readings = 0;
      const onTokens = (more) => {
        tokens.push(...more);
        if (reads) source.lens({ text }).then(() => readings++);
      };
      await source.write({ prompt: "the ", count: 1500, seed: 1, temperature: 1 }, onTokens);
      return [tokens.map((token) => token.id), readings];
    };
    const alone = await write(false);
    source.text = new Text(source.model);
    return [alone[0], ...await write(true)];
    """
    alone, disturbed, readings = ask(model, code, wasm="false")
    assert readings > 1
    assert disturbed == alone


def test_writing_ends_when_it_is_told_to() -> None:
    code = """
    const controller = new AbortController();
    const tokens = [];
    const onTokens = (more) => { tokens.push(...more); controller.abort(); };
    const request = { prompt: "the ", count: 100000, seed: 1, temperature: 1, signal: controller.signal };
    const reason = await source.write(request, onTokens).catch((error) => error.name);
    const first = tokens.length;
    await source.write({ ...request, count: 3, signal: null }, (more) => tokens.push(...more));
    return [reason, first, tokens.length - first];
    """
    reason, first, second = ask(sharp_model(), code)
    assert reason == "AbortError"
    assert 0 < first < 100000
    assert second == 7


def test_what_the_model_cannot_read_is_said() -> None:
    messages = {
        "lens({ text: 'the Zoo #1' })": "The model does not know 'Z', '#', '1'; remove it from the text.",
        "surprisal({ text: 'a' })": "The text is too short; this view takes at least 2 characters.",
        "attention({ text: 'a'.repeat(17) })": "The text has 17 characters; the model reads 16.",
        "continuation({ text, count: 16 })": "A window of 16 tokens has no room for 16 new ones after a text.",
        "write({ prompt: '%', count: 1 })": "The model does not know '%'; remove it from the text.",
    }
    requests = ", ".join(f"source.{request}.catch((error) => error.message)" for request in messages)
    assert ask(sharp_model(), f"return Promise.all([{requests}]);") == list(messages.values())


def test_bits_stay_finite_where_a_probability_is_zero() -> None:
    bits = ask(sharp_model(), "return bitsOf(Float32Array.of(0, -400), 1);")
    assert bits == pytest.approx(400 / math.log(2))
