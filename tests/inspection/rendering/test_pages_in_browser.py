"""The pages as a browser shows them: by keyboard, mouse and finger, at every width, and in the
frame of a notebook.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from browser import Page
from gpt.data.tokenizers import CharTokenizer
from gpt.extras.inspection.rendering import pages
from gpt.extras.inspection.rendering.pages import render_page
from gpt.extras.inspection.views.picture import picture_view
from gpt.extras.inspection.views.tokens import View
from tiny import sharp_model

LABELS = ["a", "␣", "<b>", "⏎", "</script>", "z"]
SIZE = len(LABELS)
TEXT = "the key,\nthe door"
CHARS = CharTokenizer(TEXT)


def attention() -> View:
    """Two layers of three heads.

    Head 1 of layer 1 gives the token before 0.75 and the first 0.25.
    """
    weights = torch.eye(SIZE).expand(2, 3, SIZE, SIZE).clone()
    before = torch.diag(torch.full((SIZE - 1,), 0.75), -1)
    before[:, 0] += 0.25
    before[0, 0] = 1.0
    weights[1, 1] = before
    return {"labels": LABELS, "weights": weights}


def lens() -> View:
    """Three rows; the last one is right about every token but the first that comes."""
    right = [*LABELS[1:], None]
    guesses = [["z"] * SIZE, ["a"] * SIZE, ["q", *right[1:-1], "q"]]
    return {
        "labels": LABELS,
        "rows": ["embeddings", "block 0", "block 1"],
        "top": [[[(guess, 0.5), ("q2", 0.125)] for guess in row] for row in guesses],
        "next": right,
        "next_probability": [
            [*[0.25] * (SIZE - 1), None],
            [*[0.375] * (SIZE - 1), None],
            [*[0.5] * (SIZE - 1), None],
        ],
    }


def longer(value: object, word: str) -> object:
    """Return labels, wherever they are, with the word in place of 'k'."""
    if isinstance(value, (list, tuple)):
        return [longer(entry, word) for entry in value]
    return word if word and value == "k" else value


def picture(word: str = "", **options: object) -> View:
    model = sharp_model(vocab_size=CHARS.vocab_size, block_size=len(TEXT), **options)
    view = picture_view(model, CHARS, torch.tensor(CHARS.encode(TEXT).tolist()))
    return view | {key: longer(view[key], word) for key in ("labels", "lens", "top")}


VIEWS = {"attention": attention, "lens": lens, "picture": picture}
HELPERS = """
const found = {};
const read = (id) => document.getElementById(id).textContent;
const press = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })
);
const overByMouse = { bubbles: true, pointerType: "mouse" };
const hover = (item) => item.dispatchEvent(new PointerEvent("pointerover", overByMouse));
const entries = (id) => [...document.getElementById(id).children].map((item) => [
  item.querySelector(".name").textContent, item.querySelector(".value").textContent, item.className,
]);
"""
Show = Callable[..., Page]


@pytest.fixture
def show(tmp_path: Path, visit: Callable[..., Page]) -> Show:
    """Open the page of a kind of view."""

    def open_page(kind: str, view: View | None = None, **options: object) -> Page:
        file = tmp_path / "page.html"
        file.write_text(
            render_page(kind, view or VIEWS[kind](), "A title", "a note"), encoding="utf-8"
        )
        return visit(file.as_uri(), **{"width": 1000, **options})

    return open_page


def found_by(page: Page, actions: str) -> View:
    """What `actions` put into `found`."""
    return page.run(f"(() => {{ {HELPERS}\n{actions}\nreturn found; }})()")


def test_attention_shows_every_head_and_the_chosen_row(show: Show) -> None:
    actions = """
    const inks = (canvas, ...places) => {
      const pixels = canvas.getContext("2d").getImageData(0, 0, 6, 6).data;
      return places.map(([x, y]) => [...pixels.slice(4 * (6 * y + x), 4 * (6 * y + x) + 4)]);
    };
    found.start = [read("matrix-title"), read("readout"), read("summary")];
    found.pixels = inks(document.getElementById("canvas"), [4, 5], [0, 5], [5, 4], [5, 5]);
    found.thumbnail = inks(document.querySelectorAll(".thumbnail canvas")[4], [4, 5])[0];
    const thumbnails = document.querySelectorAll(".thumbnail");
    const [one, other, below] = [0, 1, 3].map((head) => thumbnails[head].offsetTop);
    found.grid = [one === other, below > one];
    found.names = [...document.querySelectorAll(".thumbnail")].map((button) => button.textContent);
    const tokens = [...document.querySelectorAll(".token")];
    found.ablation = document.getElementById("ablation").hidden;
    tokens[3].click();
    found.clicked = [read("readout"), tokens.map((token) => token.className)];
    hover(tokens[0]);
    found.hovered = read("readout");
    press("ArrowRight");
    const frame = document.getElementById("plot").getBoundingClientRect();
    const at = (column, row) => ({
      bubbles: true, pointerType: "mouse",
      clientX: frame.left + ((column + 0.5) * frame.width) / 6,
      clientY: frame.top + ((row + 0.5) * frame.height) / 6,
    });
    document.getElementById("plot").dispatchEvent(new PointerEvent("pointermove", at(4, 2)));
    found.pointed = read("readout");
    document.getElementById("plot").dispatchEvent(new PointerEvent("click", at(0, 2)));
    found.kept = read("readout");
    found.still = document.getElementById("plot").getBoundingClientRect().top === frame.top;
    document.getElementById("plot").focus();
    press("ArrowDown"); press("ArrowRight"); press("ArrowRight");
    found.keys = read("readout");
    document.querySelectorAll(".thumbnail")[4].focus();
    press("ArrowUp"); press("ArrowRight"); press("ArrowRight");
    found.head = [read("matrix-title"), read("readout")];
    """
    found = found_by(show("attention"), actions)
    assert found["ablation"]  # is hidden: there is nobody to compute it
    assert found["grid"] == [True, True]  # heads across, layers down
    assert found["start"][:2] == [
        "Layer 1, head 1: previous",
        "From 'z' at 5 to '</script>' at 4: 75.0%",
    ]
    assert found["start"][2].startswith(
        "On average 80.0% of its weight is on the previous token; "
        "uniform attention would have 29.0%"
    )
    assert found["names"] == [*["itself\n0.0 back"] * 4, "previous\n1.5 back", "itself\n0.0 back"]
    strong, weak, hidden, nothing = found["pixels"]
    assert hidden == [0, 0, 0, 0]
    assert strong[3] == weak[3] == nothing[3] == 255
    assert sum(strong[:3]) < sum(weak[:3]) < sum(nothing[:3])
    assert found["thumbnail"] == strong
    readout, classes = found["clicked"]
    assert readout == "From '⏎' at 3 to '<b>' at 2: 75.0%"
    assert classes == [
        "token",
        "token",
        "token pointed",
        "token looking",
        "token later",
        "token later",
    ]
    assert found["hovered"] == "From '⏎' at 3 to 'a' at 0: 25.0%"
    assert found["pointed"] == "From '<b>' at 2 to '</script>' at 4: hidden, it comes later"
    assert found["still"]
    assert found["kept"] == "From '<b>' at 2 to 'a' at 0: 25.0%"
    assert found["keys"] == "From '⏎' at 3 to '<b>' at 2: 75.0%"
    assert found["head"] == ["Layer 0, head 2: itself", "From '⏎' at 3 to '<b>' at 2: 0.0%"]


@pytest.mark.parametrize("kind", ["attention", "lens"])
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (400, False)])
def test_no_page_breaks_a_rule_of_accessibility(
    kind: str, width: int, dark: bool, show: Show
) -> None:
    assert show(kind, width=width, height=800, dark=dark).violations() == []


@pytest.mark.parametrize("kind", VIEWS)
def test_frame_is_as_high_as_its_content_at_any_width(
    kind: str, tmp_path: Path, visit: Callable[..., Page]
) -> None:
    frame_html = pages.Page(kind, "A title", "a note", VIEWS[kind]())._repr_html_()
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!DOCTYPE html><body><h1>Cells</h1>{frame_html}</body>", encoding="utf-8")
    shown = visit(notebook.as_uri(), width=1000)
    frame = "document.querySelector('iframe')"
    content = f"{frame}.contentDocument.documentElement"
    fits = f"{content}.offsetHeight > 300 && {frame}.clientHeight - {content}.offsetHeight === 2"
    shown.wait_for(fits)
    assert shown.run(f"{content}.scrollWidth <= {frame}.clientWidth")
    if kind == "picture":  # what comes next is in sight, without scrolling inside the frame
        bars = f"{content}.querySelector('.bars').getBoundingClientRect()"
        assert shown.run(f"{bars}.height > 100 && {bars}.bottom <= {frame}.clientHeight")
        assert shown.run(f"{content}.querySelector('.picture-flow .bars') === null")
    shown.run(f"{frame}.style.width = '500px'")
    shown.wait_for(f"{frame}.clientWidth === 500 && {fits}")
    # The heading has the size of the document in the frame, not that of the notebook around it.
    assert shown.run("getComputedStyle(document.querySelector('h1')).fontSize") == "32px"
    assert shown.requests == [notebook.as_uri()]


CHOSEN = (
    "[...document.querySelectorAll('.picture-line .token')].findIndex((item) => item.ariaCurrent)"
)
ABOUT = "document.querySelector('.about h2').textContent"
PART = "document.querySelector('.picture-flow [aria-current] .name').firstChild.textContent"


def test_picture_opens_where_the_guess_changes(show: Show) -> None:
    view = picture()
    guesses = [[("a", 0.5)] * len(TEXT) for _ in view["lens"]]
    for row, guess in enumerate("xyz"):
        guesses[row][5] = (guess, 0.5)
    assert show("picture", view | {"lens": guesses}).run(CHOSEN) == 5


def test_arrow_keys_choose_the_token_and_the_part_of_a_picture(show: Show) -> None:
    page = show("picture")
    assert (page.run(CHOSEN), page.run(PART)) == (len(TEXT) - 1, "text")
    assert page.text(".ids .value") == f"id {CHARS.encode('r').tolist()[0]}"
    bars = page.text(".bars")
    page.run("document.querySelector('.part').focus()")
    page.press("ArrowLeft")
    assert page.run(CHOSEN) == len(TEXT) - 2
    assert page.text(".ids .value") == f"id {CHARS.encode('o').tolist()[0]}"
    assert page.text(".bars") != bars
    for _ in range(5):
        page.press("ArrowDown")
    assert page.run(PART) == "attention"
    assert "a query of 'o' with the keys of the 16 characters so far" in page.text(".about p")
    page.press("ArrowDown")
    assert page.run(ABOUT) == "layer 0, head 0"
    tokens = "[...document.querySelectorAll('.picture-line .token')]"
    assert page.run(f"{tokens}.map((item) => Boolean(item.style.backgroundColor))") == [
        True
    ] * 16 + [False]


OUTLINED = "document.querySelector('.toured')"
CARDS = {
    "Your text": ("text", ".part.ids"),
    "Numbers": ("embedding", ".part"),
    "The stream": ("stream", ".part.stream"),
    "One head looks back": ("head", ".looking-head"),
    "The MLP": ("MLP", ".part"),
    "The bars": ("logits", ".bars"),
}
"""The cards of the tour: the part that each chooses, and the selector of what it outlines."""


@pytest.mark.parametrize("width", [1280, 400])
def test_tour_leads_through_the_model(width: int, show: Show) -> None:
    page = show("picture", width=width, height=800)
    assert page.run("document.querySelector('.block').open")
    page.point("document.querySelector('.tour-card')", click=True)
    for number, (title, (part, outlined)) in enumerate(CARDS.items(), start=1):
        assert page.text("[data-part=card-title]") == title
        assert page.text("[data-part=card-place]") == f"{number} of 6"
        assert page.run(PART).startswith(part)
        assert page.run(f"{OUTLINED}.matches('{outlined}')")
        assert page.run("document.querySelectorAll('.toured').length") == 1
        place = f"{OUTLINED}.getBoundingClientRect()"
        assert page.run(f"{place}.top >= 0 && {place}.bottom <= innerHeight")
        # The middle of the outlined part is not covered by the head or by the panel.
        middle = f"{place}.x + {place}.width / 2, {place}.y + {place}.height / 2"
        assert page.run(f"{OUTLINED}.contains(document.elementFromPoint({middle}))")
        assert page.run("document.activeElement.closest('.card') !== null")
        if number < len(CARDS):
            page.press("Enter")  # the focus is on Next
    assert page.violations() == []
    page.press("Enter")  # ends the tour
    assert page.run(f"{OUTLINED} === null && document.querySelector('.card').hidden")
    assert page.run("document.activeElement.textContent").startswith("6. The bars")


def test_chosen_head_looks_back_over_the_full_width(show: Show) -> None:
    view = picture()
    page = show("picture", view)
    page.point("document.querySelectorAll('.head')[2]", click=True)
    token = len(TEXT) - 1
    weights = view["weights"][0, 2, token]
    key = int(weights.argmax())
    most = f"{100 * float(weights[key]):.1f}%"
    caption = page.text(".looking-head .hint")
    assert caption.startswith(f"Head 2 looks back from 'r' to '{view['labels'][key]}' with {most}")
    canvas = "document.querySelector('.wide-arcs')"
    head = "document.querySelector('.head-tiles').clientWidth"
    assert page.run(f"{canvas}.clientWidth > 0.9 * {head}")
    drawn = f"{canvas}.toDataURL()"
    before = page.run(drawn)
    page.press("ArrowLeft")
    assert page.run(drawn) != before


def test_guess_after_a_stage_is_that_of_the_lens_after_it(show: Show) -> None:
    view = picture()
    page = show("picture", view)
    for name, row in (("guess after text", 0), ("guess after block 0", 1), ("logits", 2)):
        stage = name.removeprefix("guess after ")
        page.run(
            f"document.querySelector('[data-name=\"{stage}\"] .part').scrollIntoView("
            "{ block: 'start' }); scrollBy(0, -300)"
        )
        page.wait_for(f"document.querySelector('.stage').textContent === '{name}'")
        token, probability = view["lens"][row][len(TEXT) - 1]
        assert page.text("[data-part=guess]") == f"{token}{100 * probability:.1f}%"
