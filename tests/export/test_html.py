"""An exported page: under Node against PyTorch, and in a browser, opened from disk, used by mouse
and by keyboard.
"""

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer

import gpt
from browser import CONTROL, Page
from export.node import run_page
from gpt.config import SampleConfig, SamplingParams
from gpt.data.bpe import BPETokenizer, learn_bpe
from gpt.data.pairs import ANSWER, END_OF_TEXT, SIGNS, TURN
from gpt.data.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer
from gpt.data.words import learn_words
from gpt.extras.export import html
from gpt.extras.export.html import PageWords, render_model_page
from gpt.generation.generator import generate
from gpt.model import GPT
from gpt.model.quantized import quantize
from gpt.system.errors import InputError
from tiny import CORPUS, sharp_model

CHARS = CharTokenizer("abcdefghijklmnopqrst \n'")
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


def page_of(model: GPT, weights: str = "float32", tokenizer: Tokenizer = CHARS) -> str:
    return render_model_page(
        model, tokenizer, weights, SamplingParams(), PageWords("A <title>", "a note")
    )


@pytest.mark.parametrize(
    ("changes", "kept", "weights", "tolerance"),
    [
        ({"n_embd": 36, "n_head": 2, "mlp_width": 70, "bias": True}, "float32", "float32", 1e-4),
        ({}, "float32", "fp16", 1e-4),
        ({}, "float32", "int8", 1e-4),
        ({}, "int8", "fp16", 1e-4),
        ({}, "int8", "int8", 1e-4),
        ({}, "bf16", "fp16", 1e-4),
        ({}, "int4", "fp16", 1e-2),  # which is rounded again
    ],
)
@torch.no_grad()
def test_logits_are_those_of_the_weights_rounded_as_in_the_page(
    changes: dict[str, object], kept: str, weights: str, tolerance: float
) -> None:
    model = sharp_model(**changes)
    model = model if kept == "float32" else quantize(model, kept)
    code = f"const model = newModel(); return {IDS}.map((id, at) => [...model.step(id, at)]);"
    logits = torch.tensor(run_page(page_of(model, weights), code))
    in_page = copy.deepcopy(
        quantize(model, "int8") if (kept, weights) == ("float32", "int8") else model
    )
    for parameter in in_page.parameters() if weights != "float32" else ():
        parameter.data = parameter.half().float()
    expected = in_page(torch.tensor([IDS]))[0]
    torch.testing.assert_close(logits, expected, atol=tolerance * float(expected.std()), rtol=0)


def test_byte_pairs_bytes_and_words_become_the_ids_of_the_package() -> None:
    library = LibraryTokenizer.from_str(json.dumps(learn_bpe([CORPUS], 300).to_dict()["tokenizer"]))
    # The added tokens are literal text, which may look like words or marks.
    library.add_special_tokens([AddedToken("<|end|>"), AddedToken("<|end|>.")])
    generator = random.Random(0)
    parts = [
        "the",
        "keeper's",
        "'LL",
        "don't",
        " ",
        "  ",
        "\n",
        "\t",
        "\r\n",
        "\x85",
        "\ufeff",
        "\u3000",
        "e\u0301",
    ]
    parts += [
        "123",
        "½",
        "é",
        "你好",
        "🎭",
        "...",
        "<|end|>",
        "<|end|>.",
        "<|",
        "Ġ",
        "room " * 9,
        "\0",
        "ß",
        "_",
    ]
    texts = [
        "",
        CORPUS,
        "aé\U0001f600",
        *("".join(generator.choices(parts, k=12)) for _ in range(300)),
    ]
    code = f"""
    const tokenizer = new Tokenizer(data.tokenizer);
    return {json.dumps(texts)}.map((text) => {{
      const {{ ids, unknown }} = tokenizer.encode(text);
      const show = tokenizer.stream();
      return [ids, unknown, ids.map(show)];
    }});
    """
    words = learn_words(lambda: [CORPUS, "don't 123 \x85 \t \u3000"], 60)
    for tokenizer in (BPETokenizer(json.loads(library.to_str())), ByteTokenizer(), words):
        page = page_of(sharp_model(vocab_size=tokenizer.vocab_size), tokenizer=tokenizer)
        for text, (ids, unknown, pieces) in zip(texts, run_page(page, code), strict=True):
            assert ids == tokenizer.encode(text).tolist()
            assert unknown == []
            stream = tokenizer.stream()
            assert pieces == [stream.feed(index) for index in ids]


def test_page_refuses_weights_and_words_that_it_cannot_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = BPETokenizer(learn_bpe([CORPUS], 300).to_dict()["tokenizer"] | {"pre_tokenizer": None})
    with pytest.raises(
        InputError,
        match=r"a page has byte pair encoding only with words as of GPT-2.*; use --to hf",
    ):
        page_of(sharp_model(vocab_size=300), tokenizer=words)
    model = sharp_model()
    for value in (float("nan"), 1e6):
        model.h[1].mlp.c_fc.weight.data[0, 0] = value
        with pytest.raises(
            InputError, match=r"h\.1\.mlp\.c_fc\.weight has values that are not finite in fp16"
        ):
            page_of(model, "fp16")
    monkeypatch.setattr(html, "MAX_BYTES", 1_000_000)
    with pytest.raises(
        InputError,
        match="a browser reads at most 1 MB of weights from a page, and these have 2; use",
    ):
        page_of(sharp_model(n_embd=128))


def test_page_is_one_offline_file_and_hostile_text_stays_data() -> None:
    tokenizer = CharTokenizer("</script>&\u2028ab")
    page = page_of(sharp_model(), tokenizer=tokenizer)
    assert page.count("<script") == page.count("</script>") == 3
    assert run_page(page, "return data.tokenizer.chars;") == tokenizer.itos
    assert re.search(
        r"""og:title" content="A &lt;title&gt;">\n.*og:description" content="a note">""", page
    )
    assert "default-src 'none'" in page
    assert not re.search(
        r"""https?:|src=|url\(|@import|import\(|fetch\(|XMLHttp|innerHTML|\beval\(""", page
    )
    everywhere, *templates = re.split(r"<template", page)
    for part in templates:
        own = re.findall(r' id="([^"]+)"', everywhere + part.partition("</template>")[0])
        assert len(own) == len(set(own))


SNAPSHOT = {
    "loss": 2.0,
    "prompt": "the ",
    "line": [],
    "attention": None,
    "tokens": [],
    "points": [],
    "nearest": [],
}
STEPS = (0, 1, 5, 20, 90, 400)
LEARNING = {
    "run": {
        "name": "run",
        "training": False,
        "step": 400,
        "max_steps": 400,
        "tokenizer": "char",
        "best_step": None,
        "best_val_loss": 1.25,
        "snapshots": [*STEPS, 401],
    },
    "snapshots": {step: {**SNAPSHOT, "step": step, "sample": f"text at {step}"} for step in STEPS}
    | {401: {**SNAPSHOT, "step": 401, "sample": ""}},
}
"""A run with texts at some of its steps."""
TOKENS = "[...document.querySelectorAll('.written .token')].map((item) => item.textContent)"
WRITTEN = f"{TOKENS}.join('').replaceAll('⏎', '\\n')"
DONE = "document.querySelector('.status').textContent.includes('written with seed')"
Open = Callable[..., Page]
EXAMPLES = ("a read\nline", "the end")


@pytest.fixture
def model(request: pytest.FixtureRequest) -> GPT:
    return sharp_model(std=0.1, position="rope", **getattr(request, "param", {}))


@pytest.fixture
def open_page(model: GPT, tmp_path: Path, visit: Open) -> Iterator[Open]:
    """Open the page of the model; nothing but the file must be asked for."""
    file = tmp_path / "model.html"
    params = SamplingParams(max_new_tokens=60, temperature=0.8, top_k=5, seed=7)
    words = PageWords("A title", "a note", "ab", EXAMPLES)
    page = render_model_page(model, CHARS, "float32", params, words, LEARNING)
    file.write_text(page, encoding="utf-8")
    pages: list[Page] = []

    def start(address: str = "#write", **options: Any) -> Page:
        pages.append(visit(file.as_uri() + address, **options))
        return pages[-1]

    yield start
    for page in pages:
        assert {url for url in page.requests if not url.startswith("data:")} == {file.as_uri()}


def enter(page: Page, field: str, text: str) -> None:
    """Type a text into a field, by keyboard alone, and send it."""
    page.run(f"document.getElementById('{field}').select()")
    page.type(text)
    page.press("Enter", CONTROL)


def write(page: Page, prompt: str, **settings: float) -> str:
    """Type settings and a prompt, write by keyboard alone, and return the text."""
    page.run("document.querySelectorAll('.writer details').forEach((each) => each.open = true)")
    for name, value in settings.items():
        page.run(f"document.getElementById('{name.replace('_', '-')}').select()")
        page.type(str(value))
    enter(page, "prompt", prompt)
    page.wait_for(DONE)
    return page.run(WRITTEN)


def open_view(page: Page, name: str) -> None:
    """Open a view by a click on its name."""
    page.point(f"document.querySelector('#views [href=\"#{name}\"]')", click=True)
    page.wait_for(f"document.querySelector('.view-{name}') !== null")


def test_page_generates_in_webassembly_what_pytorch_generates(open_page: Open, model: GPT) -> None:
    page = open_page()
    assert page.run("document.getElementById('prompt').value") == "ab"
    text = write(page, "caf\u00e9\u2019s #1\u2014", count=1)
    assert text[:-1] == "cafe's "
    assert "The model does not know \u00e9 \u2019 # 1 \u2014, so a plain form" in page.text(
        ".status"
    )
    text = write(page, "the ", count=200, temperature=0.8, top_k=5, seed=11)
    assert text == "the " + generate(
        model, CHARS, "the ", max_new_tokens=200, temperature=0.8, top_k=5, seed=11
    )
    assert page.text(".status").startswith("200 characters written with seed 11")
    assert "per second." in page.text(".status")
    page.run("document.getElementById('prompt').value = ''")  # which starts a line
    greedy = generate(model, CHARS, "", max_new_tokens=20, temperature=0.0)
    assert write(page, "", count=20, temperature=0) == "\n" + greedy


def test_program_that_the_page_shows_writes_its_text(
    open_page: Open, model: GPT, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = open_page()
    text = write(page, "th\u00e9 #", count=40, temperature=0.8, top_k=5, min_p=0.01, seed=11)
    assert text.startswith("the ")
    monkeypatch.setattr(gpt, "load", lambda folder: (model, CHARS))
    exec(page.run("document.querySelector('[data-part=snippet]').textContent"), {})
    assert capsys.readouterr().out == f"{text}\n"


def test_strong_colors_of_surprise_and_of_probability_differ(open_page: Open) -> None:
    """A strong blue is likely, so that what is unlikely must have another color."""
    page = open_page()
    text = write(page, "the ", count=60, temperature=1.5)
    assert len(text) == 64
    strongest = """
      {} .map((item) => item.style.backgroundColor.match(/[0-9]+/g)?.map(Number))
      .filter(Boolean).reduce((one, other) => other[1] < one[1] ? other : one)
    """
    red, green, blue = page.run(
        strongest.format("[...document.querySelectorAll('.written .token')]")
    )
    assert red > blue > green  # purple
    open_view(page, "lens")
    page.wait_for("document.querySelector('#lens-table .cell') !== null")
    red, green, blue = page.run(strongest.format("[...document.querySelectorAll('td.cell')]"))
    assert blue > green > red


def test_model_view_continues_with_what_it_samples(open_page: Open, model: GPT) -> None:
    page = open_page()
    open_view(page, "picture")
    bars = "[...document.querySelectorAll('.bars .value')].map((item) => item.textContent)"
    page.wait_for("document.querySelector('.ending') !== null")
    page.run(
        "const slider = document.querySelector('.ending input'); slider.value = 0;"
        "slider.dispatchEvent(new Event('input'))"
    )
    page.wait_for(f"{bars}.join() === '100%'")
    before = page.run("document.querySelector('.picture-line').textContent")
    place = page.run(
        "[...document.querySelectorAll('.picture-line .token')].findIndex((each) => "
        "each.ariaCurrent)"
    )
    page.point("document.querySelector('.ending button')", click=True)
    page.wait_for(f"document.querySelector('.picture-line')?.textContent !== {json.dumps(before)}")
    text = page.run("document.getElementById('reading-text').value")
    assert len(text) == place + 2
    assert text[-1] == generate(model, CHARS, text[:-1], max_new_tokens=1, temperature=0)
    # The head names what the bars below it show, and the keyboard can go on, too.
    for temperature in (0.5, 1):
        page.run(
            "{ const slider = document.querySelector('.ending input');"
            f"slider.value = {temperature}; slider.dispatchEvent(new Event('input')); }}"
        )
        stage = "logits" if temperature == 1 else f"logits at temperature {temperature}"
        page.wait_for(f"document.querySelector('.stage').textContent === '{stage}'")
        first = "document.querySelector('.bars li')"
        name, value = (
            f"{first}.querySelector('.{part}').textContent" for part in ("name", "value")
        )
        page.wait_for(
            f"document.querySelector('[data-part=guess]').textContent === {name} + {value}"
        )
    page.run("document.querySelector('.go-on').focus()")
    for length in (1, 2):
        page.press("Enter")
        page.wait_for(
            f"document.getElementById('reading-text').value.length === {len(text) + length}"
            " && document.activeElement.matches('.go-on')"
        )


STORY = "document.querySelector('.story-text').textContent"
STAGE = "document.querySelector('.stages [aria-pressed=true]')?.textContent"


def wait_for_story(page: Page, expected: str) -> None:
    page.wait_for(f"{STORY} === {json.dumps(expected)}")


def test_first_screen_tells_how_the_model_learned(open_page: Open, model: GPT) -> None:
    """The last text is written by the page itself, so that its link and picture are of it."""
    page = open_page("")
    expected = generate(model, CHARS, "the ", max_new_tokens=200, temperature=0.8, top_k=5, seed=7)
    wait_for_story(page, f"the {expected}")
    labels = "[...document.querySelectorAll('.stages button')].map((each) => each.textContent)"
    shares = ["untrained", "1% trained", "5% trained", "23% trained", "trained"]
    assert page.run(labels) == shares
    assert page.run(STAGE) == "trained"
    for number, step in enumerate((0, 5, 20, 90)):
        page.point(f"document.querySelectorAll('.stages button')[{number}]", click=True)
        wait_for_story(page, f"the text at {step}")
    assert "numbers." in page.text(".about")
    assert "best validation loss 1.25 nats per token" in page.text("[data-part=state]")
    page.wait_for("document.querySelector('[data-part=sample-at]').textContent !== ''")
    assert page.text("[data-part=sample-at]") == "step 401 · training loss 2.00"
    assert page.text("[data-part=written-at]") == "What it wrote at step 400"
    assert page.text("[data-part=sample-text]") == "the text at 400"


def test_story_goes_from_noise_to_the_model_by_itself(open_page: Open) -> None:
    page = open_page("", hurry=8)
    page.run(
        f"stages = []; setInterval(() => {{ const stage = {STAGE};"
        " if (stage !== stages.at(-1)) stages.push(stage); }, 16)"
    )
    page.wait_for(f"{STAGE} === 'trained' && {STORY}.length > 100")
    labels = ["untrained", "1% trained", "5% trained", "23% trained", "trained"]
    assert page.run("stages") == labels[-len(page.run("stages")) :]


@pytest.mark.parametrize("hurry", [0, 4])
def test_own_beginning_is_continued_and_its_link_writes_the_same_text(
    hurry: int, open_page: Open, model: GPT
) -> None:
    page = open_page("", hurry=hurry)
    page.run("document.getElementById('beginning').focus()")
    page.type("no one ")
    page.press("Enter")
    settings = {"max_new_tokens": 200, "temperature": 0.8, "top_k": 5}
    expected = "no one " + generate(model, CHARS, "no one ", seed=7, **settings)
    wait_for_story(page, expected)
    assert page.run("document.activeElement.id") == "beginning"
    link = page.run(
        "new Promise((done) => { navigator.clipboard.writeText = async (text) => done(text);"
        "document.querySelector('[data-part=link]').click() })"
    )
    page.press("Enter")  # again, which takes the next seed
    wait_for_story(page, "no one " + generate(model, CHARS, "no one ", seed=8, **settings))
    address = link[link.index("#") :]
    assert re.match(r"#write\?p=no\+one\+&seed=7&t=0\.8&top-k=5", address)
    other = open_page(address)
    other.wait_for(DONE)
    assert other.run(WRITTEN) == expected
    other.run(f"location.hash = {json.dumps(address.replace('seed=7', 'seed=8'))}")
    other.wait_for(f"{WRITTEN} !== {json.dumps(expected)} && {DONE}")
    assert other.run("document.getElementById('seed').value") == "8"


@pytest.mark.parametrize("address", ["", "#write"])
def test_text_is_saved_as_a_picture(address: str, open_page: Open) -> None:
    page = open_page(address)
    page.wait_for(f"{STORY}.length > 100" if not address else DONE)
    image = page.run(
        "new Promise((done) => { HTMLAnchorElement.prototype.click = function () {"
        "const image = new Image(); image.onload = () => done([this.download, image.width,"
        "image.height]); image.src = this.href; };"
        "document.querySelector('[data-part=picture]').click() })"
    )
    assert image[1:] == [1200, 630]
    assert image[0].endswith(".png")


@pytest.mark.parametrize("kind", ["text", "items", "answers"])
def test_page_without_snapshots_shows_a_text_of_the_model(
    kind: str, visit: Open, tmp_path: Path
) -> None:
    """The boxes of what is not known are not there."""
    marks: dict[str, dict[str, Any]] = {
        "text": {},
        "items": {"begin_id": END, "end_id": END},
        "answers": {"begin_id": END, "end_id": END, "stop": (TURN,)},
    }
    page, _ = open_items(visit, tmp_path, MARKED, f"ab{SIGNS[ANSWER]}c", **marks[kind])
    page.run("location.hash = ''")
    page.wait_for("document.querySelector('.story-text') !== null")
    page.wait_for(f"{STORY}.length > 2")
    # an item or an answer may stand in the training text
    assert ("did not exist" in page.text(".about")) == (kind == "text")
    for part in ("stages", "commanded", "below"):
        assert page.run(f"document.querySelector('[data-part={part}]').hidden")


@pytest.mark.parametrize("hurry", [0, 4])
def test_text_is_typed_where_motion_is_wanted(hurry: int, open_page: Open) -> None:
    page = open_page(hurry=hurry)
    page.wait_for(DONE)
    page.run(
        "grown = 0; new MutationObserver(() => grown++).observe("
        "document.querySelector('.written'), { childList: true })"
    )
    assert len(write(page, "the ", count=60)) == 64
    assert (page.run("grown") > 50) == (hurry > 0)


@pytest.mark.parametrize("model", [{"block_size": 128}], indirect=True)
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (400, False)])
def test_no_view_breaks_a_rule_of_accessibility_or_is_cut_off(
    width: int, dark: bool, open_page: Open
) -> None:
    page = open_page(width=width, height=800, dark=dark)
    write(page, "the ", count=100)
    lightness = page.run(
        "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
    )
    assert (sum(lightness) < 100) == dark
    for view in ("start", "write", "picture", "attention", "lens"):
        open_view(page, view)
        page.wait_for(
            "document.querySelector('.story-text, .view .text, .view .head canvas, #lens-table "
            ".cell') !== null"
        )
        assert page.violations() == [], view
        if width == 400:
            letters = "[...document.querySelectorAll('.picture-line .token, #text .token')]"
            boxes = f"{letters}.map((letter) => letter.getBoundingClientRect())"
            sizes = page.run(f"{boxes}.flatMap(({{ width, height }}) => [width, height])")
            assert min(sizes, default=24) >= 24  # a finger hits them
        assert page.run("document.documentElement.scrollWidth") <= width


def read(page: Page, text: str) -> None:
    """Type a text into the field of the open view, and let the model read it, by keyboard."""
    page.run("document.querySelector('.view textarea').select()")
    page.type(text)
    page.press("Enter", CONTROL)
    page.wait_for("document.querySelector('.view .status').textContent !== 'Reading…'")


READ_TEXT = (
    "[...document.querySelectorAll('#text .token')].map((item) => item.textContent).join('')"
)


def test_view_says_what_it_left_out_and_shows_nothing_that_nobody_typed(open_page: Open) -> None:
    page = open_page()
    open_view(page, "attention")
    read(page, "caf\u00e9 \u200d\0\U0001f600")
    page.wait_for(f"{READ_TEXT} === 'cafe␣'")
    assert page.text(".view .status").startswith(
        "The model does not know \u00e9 U+200D U+0000 \U0001f600, so a plain form took"
    )
    is_empty = "document.querySelector('.reading-body').children.length === 0"
    assert not page.run(is_empty)
    read(page, "\U0001f600")
    page.wait_for(is_empty)
    assert page.text(".view .status").endswith("Nothing is left to read.")
    read(page, "")
    page.wait_for(is_empty)
    assert page.text(".view .status") == "There is no text to read: type one."


def test_examples_above_a_field_are_read_at_a_click(open_page: Open) -> None:
    page = open_page()
    open_view(page, "lens")
    chips = "document.querySelectorAll('.examples button')"
    assert page.run(f"[...{chips}].map((chip) => chip.textContent)") == [
        EXAMPLES[0].replace("\n", " "),
        EXAMPLES[1],
    ]
    page.point(f"{chips}[0]", click=True)
    page.wait_for(
        f"{READ_TEXT} === {json.dumps(EXAMPLES[0].replace(' ', '␣').replace(chr(10), '⏎'))}"
    )
    assert page.run("document.getElementById('reading-text').value") == EXAMPLES[0]
    open_view(page, "attention")
    page.wait_for(f"{READ_TEXT}.startsWith('a␣read')")


MARKED = CharTokenizer([*"abcdefgh \n", END_OF_TEXT, ANSWER, TURN])
END = MARKED.stoi[END_OF_TEXT]
LINE_END = CHARS.stoi["\n"]


def open_items(
    visit: Open, tmp_path: Path, tokenizer: CharTokenizer, example: str = "", **sample: Any
) -> tuple[Page, GPT]:
    """Open the page of a model of items that samples with `sample`."""
    model = sharp_model(std=0.1, vocab_size=tokenizer.vocab_size, block_size=64)
    file = tmp_path / "items.html"
    words = PageWords("A title", "a note", example)
    page = render_model_page(model, tokenizer, "float32", SampleConfig(**sample), words)
    file.write_text(page, encoding="utf-8")
    return visit(f"{file.as_uri()}#write"), model


def test_page_of_a_list_writes_whole_items_one_after_another(visit: Open, tmp_path: Path) -> None:
    sample = {"begin_id": LINE_END, "end_id": LINE_END, "max_new_tokens": 200, "temperature": 0.8}
    page, model = open_items(visit, tmp_path, CHARS, "ab", seed=7, **sample)
    page.wait_for(DONE)
    assert page.text(".status").startswith("20 items of")
    assert page.run("document.getElementById('prompt').value") == ""
    text = write(page, "ab", count=3, temperature=0.8, seed=11)
    marks = {"begin_id": LINE_END, "end_id": LINE_END}
    items = []
    for seed in (11, 12, 13):
        written = generate(
            model, CHARS, "ab", max_new_tokens=200, temperature=0.8, seed=seed, **marks
        )
        items.append(f"ab{written}\n")
    assert text == "\n" + "".join(items)
    open_view(page, "picture")
    read = page.run("document.getElementById('reading-text').value")
    assert "".join(items).endswith(read)
    assert read.endswith(items[-1])


def test_chosen_token_changes_its_item_and_those_after_it(visit: Open, tmp_path: Path) -> None:
    sample = {"begin_id": LINE_END, "end_id": LINE_END, "max_new_tokens": 200, "temperature": 0.8}
    page, _ = open_items(visit, tmp_path, CHARS, seed=7, **sample)
    text = write(page, "ab", count=3, temperature=0.8, seed=11)
    first, second, third = text[1:].splitlines()
    place = 1 + len(first) + 1 + 2  # the first token of the second item that is not its beginning
    page.point(f"document.querySelectorAll('.written .token')[{place}]", click=True)
    page.point("document.querySelector('.pairs li:not(.came) button')", click=True)
    page.wait_for("document.querySelector('.picked') !== null")
    page.wait_for(DONE)
    changed = page.run(WRITTEN)[1:].splitlines()
    assert [changed[0], changed[2]] == [first, third]
    assert changed[1][:2] == "ab"
    assert changed[1][2] != second[2]


def test_page_of_pairs_puts_a_question_into_the_template(visit: Open, tmp_path: Path) -> None:
    sample = {"begin_id": END, "end_id": END, "stop": (TURN,), "temperature": 0.0}
    page, model = open_items(visit, tmp_path, MARKED, f"ab{SIGNS[ANSWER]}c", **sample)
    page.wait_for(DONE)
    assert page.run("document.getElementById('prompt').value") == "ab"
    text = write(page, "fed", count=40, temperature=0)
    question = f"fed{ANSWER}"
    answer = generate(model, MARKED, question, max_new_tokens=40, **sample)
    begin = SIGNS[END_OF_TEXT] + "fed" + SIGNS[ANSWER] + answer
    assert text.rstrip("".join(SIGNS.values())) == begin.rstrip("".join(SIGNS.values()))
    assert not set(page.run("document.body.innerText")) & set(SIGNS)
    page.run("document.getElementById('prompt').value = ''")
    page.point("document.getElementById('write-button')", click=True)
    assert page.text(".status") == "Ask the model something."


def test_focus_stays_in_the_page_while_it_writes(open_page: Open) -> None:
    """The bars are drawn anew at each token, and a button that ends a text is disabled."""
    page = open_page(hurry=1)
    page.wait_for(DONE)
    lost = "document.activeElement === document.body"
    page.run("document.querySelector('.written .token[tabindex=\"0\"]').focus()")
    page.run(f"losses = 0; setInterval(() => {{ losses += {lost}; }}, 1)")
    write_again = "document.querySelector('.writer').requestSubmit()"
    page.run(write_again)
    page.wait_for("document.querySelectorAll('.written .token').length > 20")
    page.run("document.querySelector('.pairs button').focus()")
    page.wait_for(DONE)
    assert page.run("document.activeElement.closest('.pairs') !== null")
    page.run(write_again)
    page.run("document.getElementById('stop').focus()")
    page.wait_for(DONE)
    assert page.run("document.activeElement.id") == "write-button"
    assert page.run("losses") == 0


def test_reload_keeps_what_was_typed(open_page: Open) -> None:
    page = open_page()
    write(page, "kept", count=5)
    page.send("Page.reload")
    page.wait_for(f"document.getElementById('prompt')?.value === 'kept' && {DONE}")
    assert page.run("document.getElementById('count').value") == "5"
