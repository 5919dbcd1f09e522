"""What the views of an exported page ask of the model in it, against gpt/extras/inspection's own
views.
"""

import json
import math
from typing import Any

import pytest
import torch

from export.node import run_page
from gpt.config import SamplingParams
from gpt.data.pairs import ANSWER, END_OF_TEXT, SIGNS, TURN
from gpt.data.tokenizers import CharTokenizer
from gpt.extras.export.html import PageWords, render_model_page
from gpt.extras.inspection.tracing.activation_cache import Edits
from gpt.extras.inspection.tracing.edits import zero
from gpt.extras.inspection.views.attention import attention_view, summarize_head
from gpt.extras.inspection.views.continuation import greedy_continuation
from gpt.extras.inspection.views.lens import lens_view
from gpt.extras.inspection.views.picture import picture_view
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.extras.inspection.views.tokens import View, labels_of
from gpt.generation.generator import generate, generate_tokens
from gpt.model import GPT
from inspection.variants import VARIANTS
from tiny import sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n'")
TEXT = "the cat's hat\nis"
IDS = torch.tensor(CHARS.encode(TEXT).tolist())
ABLATE = [[0, 1], [1, 3]]
EVERY = {
    **VARIANTS,
    "wide": {"n_embd": 36, "n_head": 4, "mlp_width": 70},
    "one layer": {"n_layer": 1},
}


KNOWN = f"""
const [source, text] = [newSource(), {json.dumps(TEXT)}];
const write = async (source, request, notice) => {{
  const tokens = [];
  await source.write({{ seed: 1, temperature: 0, ...request }}, (more) => {{
    tokens.push(...more);
    notice?.();
  }});
  return tokens;
}};
"""


def ask(model: GPT, code: str) -> Any:
    """What `code`, which sees a `source`, the text above and how to `write`, returns."""
    return run_page(
        render_model_page(model, CHARS, "float32", SamplingParams(), PageWords("", "")),
        f"{KNOWN}\n{code}",
    )


MARKED = CharTokenizer([*"abcdefgh \n", END_OF_TEXT, ANSWER, TURN])
END = MARKED.stoi[END_OF_TEXT]


def ask_marked(model: GPT, code: str, **sample: Any) -> Any:
    """What `code` returns on the page of a model of items."""
    params = SamplingParams(begin_id=END, end_id=END, **sample)
    page = render_model_page(model, MARKED, "float32", params, PageWords("", ""))
    return run_page(page, f"{KNOWN}\n{code}")


def test_items_begin_at_their_mark_and_end_before_the_length_they_may_have() -> None:
    model = sharp_model(vocab_size=MARKED.vocab_size, block_size=64)
    settings = {"temperature": 1.0, "seed": 5}
    code = f"""
    const request = {{ prompt: "ab", count: 40, ...{json.dumps(settings)} }};
    return (await write(source, request)).map((token) => [token.id, token.isGiven]);
    """
    found = ask_marked(model, code)
    prompt = [END, *MARKED.encode("ab").tolist()]
    params = SamplingParams(max_new_tokens=40, end_id=END, **settings)
    written = list(generate_tokens(model, prompt, params))
    assert written[-1] == END
    assert len(written) < 40
    given = [[index, True] for index in prompt]
    assert found == [*given, *([index, False] for index in written)]


def test_answer_ends_where_another_question_would_follow() -> None:
    model = sharp_model(vocab_size=MARKED.vocab_size, block_size=64)
    turn = MARKED.stoi[TURN]
    with torch.no_grad():
        model.lm_head.weight[turn] = 0  # the logit 0, where all others are below it
        model.lm_head.weight[[index for index in range(len(MARKED.itos)) if index != turn]] *= 1e-6
    code = """
    const request = { prompt: "ab\\x1f", count: 40, temperature: 1, seed: 3 };
    return (await write(source, request)).map(({ id }) => id);
    """
    found = ask_marked(model, code, stop=(TURN,))
    assert found[:4] == [END, *MARKED.encode(f"ab{ANSWER}").tolist()]
    assert found.index(turn) == len(found) - 1 < 43


def test_views_of_items_begin_at_the_mark_and_read_signs() -> None:
    model = sharp_model(vocab_size=MARKED.vocab_size)
    code = f"return source.surprisal({{ text: 'ab{SIGNS[ANSWER]}c' }});"
    idx = torch.tensor([END, *MARKED.encode(f"ab{ANSWER}c").tolist()])
    bits = [None, *surprisal(model, idx).bits.tolist()]
    assert_same(ask_marked(model, code, stop=(TURN,))["bits"], bits)


def test_logits_of_an_earlier_item_are_computed_again() -> None:
    model = sharp_model(vocab_size=MARKED.vocab_size)
    first = [END, *MARKED.encode("ab").tolist()]
    code = f"""
    await write(source, {{ prompt: "ab", count: 1 }});
    await write(source, {{ prompt: "cd", count: 1 }});
    return [...await source.logitsAfter({{ ids: {first} }})];
    """
    with torch.no_grad():
        expected = model(torch.tensor([first]))[0, -1]
    found = torch.tensor(ask_marked(model, code))
    torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.std()), rtol=0)


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


@pytest.mark.parametrize(
    ("name", "ablate"), [*((name, ABLATE) for name in EVERY), ("gpt2", []), ("llama", [])]
)
def test_views_are_those_of_the_package(name: str, ablate: list[list[int]]) -> None:
    model = sharp_model(**EVERY[name])
    heads = [pair for pair in ablate if pair[0] < model.config.n_layer]
    edits: Edits = {f"blocks.{layer}.attn.hook_z": zero(head) for layer, head in heads}
    code = f"""
    const request = {{ text, ablate: {heads} }};
    const {{ weights, ...attention }} = await source.attention(request);
    const rest = [await source.lens(request), await source.surprisal(request)];
    const picture = await source.picture(request);
    for (const key of ["added", "queries", "keys", "hidden", "weights"]) {{
      picture[key] = [...picture[key]];
    }}
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
    flat = {
        name: wanted[name].flatten().tolist() for name in ("added", "queries", "keys", "hidden")
    }
    assert_views(picture, {**wanted, **flat, "weights": triangles.tolist()})
    wanted = surprisal(model, IDS, edits=edits)
    bits = {"bits": [None, *wanted.bits.tolist()], "mean_bits": wanted.mean_bits}
    assert_views(surprised, {"labels": expected["labels"], **bits})
    # Nine tokens, since all of them would leave no room in the window.
    ids, probabilities = greedy_continuation(model, IDS[-9:], 7, edits)
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
        tokens = ask(
            model, f"return write(source, {{ prompt: 'the ', count: 400, {settings}, seed: 5 }});"
        )
        written = generate(
            model, CHARS, "the ", **{"max_new_tokens": 400, "seed": 5, "top_k": 0, **params}
        )
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


def test_text_that_the_model_cannot_read_is_refused() -> None:
    messages = {
        "surprisal({ text: 'a' })": "The text is too short; this view takes at least 2 tokens.",
        "attention({ text: 'a'.repeat(17) })": "The text has 17 tokens; the model reads 16.",
        "continuation({ text, count: 16 })": (
            "A window of 16 tokens has no room for 16 new ones after a text."
        ),
    }
    requests = ", ".join(
        f"source.{request}.catch((error) => error.message)" for request in messages
    )
    *found, bits = ask(
        sharp_model(), f"return Promise.all([{requests}, bitsOf(Float32Array.of(0, -400), 1)]);"
    )
    assert found == list(messages.values())
    assert bits == pytest.approx(400 / math.log(2))  # finite where a probability is zero


def test_head_left_out_changes_only_the_text_that_asks_for_it() -> None:
    code = """
    const request = { prompt: "the ", count: 40 };
    const without = { ...request, ablate: [[0, 0], [1, 2]] };
    return [
      await write(source, request),
      await write(source, without),
      await write(source, request),
      await write(newSource(), without),
    ];
    """
    whole, without, again, anew = ask(sharp_model(std=0.1), code)
    assert whole == again
    assert whole != without == anew


@pytest.mark.parametrize(
    ("count", "kept", "most"), [(8, 9, 6), (40, 24, 40)], ids=["in the window", "beyond it"]
)
def test_branch_continues_the_text_and_reuses_its_prompt(count: int, kept: int, most: int) -> None:
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
    const continued = await write(source, {{ prompt: ids, count: 3, known: {kept} }});
    return [branched, branchedSteps, expected, continued];
    """
    branched, steps, expected, rest = ask(sharp_model(std=0.1), code)
    assert [token["id"] for token in branched] == [token["id"] for token in expected]
    # a prompt that is read anew has no logits before the window
    assert branched[kept:] == expected[kept:]
    assert rest == expected[kept:]
    assert steps <= most


def test_prompt_that_is_longer_than_the_window_is_read_from_where_the_model_sees_it() -> None:
    code = """
    let steps = 0;
    const step = source.model.step;
    source.model.step = function (...given) { steps++; return step.apply(this, given); };
    const tokens = await write(source, { prompt: "the cat ".repeat(20), count: 1 });
    return [steps, tokens];
    """
    steps, tokens = ask(sharp_model(std=0.1), code)
    assert len(tokens) == 161
    assert steps <= 16
    seen = [token["probability"] is not None for token in tokens]
    assert seen == [False] * 145 + [True] * 16
