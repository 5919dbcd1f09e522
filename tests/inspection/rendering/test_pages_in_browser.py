"""The pages as a browser shows them: by keyboard, mouse and finger, at every width, and in the frame of a notebook."""

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
    """Two layers of three heads; head 1 of layer 1 gives the token before 0.75 and the first 0.25."""
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
        "next_probability": [[*[0.25] * (SIZE - 1), None], [*[0.375] * (SIZE - 1), None], [*[0.5] * (SIZE - 1), None]],
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
const hover = (item) => item.dispatchEvent(new PointerEvent("pointerover", { bubbles: true, pointerType: "mouse" }));
const entries = (id) => [...document.getElementById(id).children].map((item) => [
  item.querySelector(".name").textContent, item.querySelector(".value").textContent, item.className,
]);
"""
SCREEN = {"height": 900, "deviceScaleFactor": 1, "mobile": False}
Show = Callable[..., Page]


@pytest.fixture
def show(tmp_path: Path, visit: Callable[..., Page]) -> Show:
    """Open the page of a kind of view."""

    def open_page(kind: str, view: View | None = None, **options: object) -> Page:
        file = tmp_path / "page.html"
        file.write_text(render_page(kind, view or VIEWS[kind](), "A title", "a note"), encoding="utf-8")
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
    const [one, other, below] = [0, 1, 3].map((head) => document.querySelectorAll(".thumbnail")[head].offsetTop);
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
      clientX: frame.left + ((column + 0.5) * frame.width) / 6, clientY: frame.top + ((row + 0.5) * frame.height) / 6,
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
    assert found["start"][:2] == ["Layer 1, head 1: previous", "From 'z' at 5 to '</script>' at 4: 0.750"]
    assert found["start"][2].startswith(
        "On average 0.800 of its weight is on the previous token; uniform attention would have 0.290"
    )
    assert found["names"] == [*["itself"] * 4, "previous", "itself"]
    strong, weak, hidden, nothing = found["pixels"]
    assert hidden == [0, 0, 0, 0]
    assert strong[3] == weak[3] == nothing[3] == 255
    assert sum(strong[:3]) < sum(weak[:3]) < sum(nothing[:3])
    assert found["thumbnail"] == strong
    readout, classes = found["clicked"]
    assert readout == "From '⏎' at 3 to '<b>' at 2: 0.750"
    assert classes == ["token", "token", "token pointed", "token looking", "token later", "token later"]
    assert found["hovered"] == "From '⏎' at 3 to 'a' at 0: 0.250"
    assert found["pointed"] == "From '<b>' at 2 to '</script>' at 4: hidden, it comes later"
    assert found["still"]
    assert found["kept"] == "From '<b>' at 2 to 'a' at 0: 0.250"
    assert found["keys"] == "From '⏎' at 3 to '<b>' at 2: 0.750"
    assert found["head"] == ["Layer 0, head 2: itself", "From '⏎' at 3 to '<b>' at 2: 0.000"]


def test_lens_shows_its_table_and_the_candidates(show: Show) -> None:
    actions = """
    const lines = [...document.querySelectorAll("#lens-table tr")];
    found.table = lines.map((line) => [...line.children].map((cell) => cell.lastChild?.textContent ?? ""));
    found.came = lines.map((line) => [...line.children].map((cell) => cell.classList.contains("came")));
    const cells = [...document.querySelectorAll('#lens-table .cell[role="gridcell"]')];
    cells[2 * 6 + 1].click();
    found.clicked = [read("details-title"), read("readout"), entries("top"), entries("rows")];
    press("ArrowUp"); press("ArrowLeft"); press("ArrowLeft");
    found.moved = read("details-title");
    hover(cells[5]);
    found.last = [read("details-title"), read("readout"), document.getElementById("rows").checkVisibility()];
    document.getElementById("lens-table").dispatchEvent(new PointerEvent("pointerleave"));
    found.left = read("details-title");
    """
    found = found_by(show("lens"), actions)
    right = LABELS[1:]
    assert found["table"] == [
        ["text", *LABELS],
        ["embeddings", *["z"] * SIZE],
        ["block 0", *["a"] * SIZE],
        ["block 1", "q", *right[1:], "q"],
        ["came next", *right, ""],
    ]
    assert [sum(line) for line in found["came"]] == [0, 1, 0, SIZE - 2, 0]
    assert found["clicked"] == [
        "block 1, after '␣' at 1",
        "The next token is '<b>': 1.00 bits, a probability of 50.0%, in this row.",
        [["<b>", "50.0%", "came"], ["q2", "12.5%", ""]],
        [["embeddings", "25.0%", ""], ["block 0", "37.5%", ""], ["block 1", "50.0%", "chosen"]],
    ]
    assert found["moved"] == found["left"] == "block 0, after 'a' at 0"
    assert found["last"] == ["embeddings, after 'z' at 5", "The text ends here, so there is no next token.", False]


ONE = {"labels": ["a"], "rows": ["x"], "top": [[[("b", 1.0)]]], "next": [None], "next_probability": [[None]]}


@pytest.mark.parametrize(
    ("kind", "view", "words"),
    [
        ("lens", ONE, "The text ends here, so there is no next character."),
        (  # the type that it comes in has no smaller one
            "lens",
            lens() | {"next_probability": [[0.0] * SIZE] * 3},
            ": more than 100 bits, a probability of <0.1%, in this row.",
        ),
    ],
)
def test_page_reads_out_extremes(kind: str, view: View, words: str, show: Show) -> None:
    assert show(kind, view).text("#readout").endswith(words)


def test_matrix_settles_at_every_width(show: Show) -> None:
    """The letters at its edges, which grow with its cells, leave them the room that they were given."""
    page = show("attention", {"labels": list("abcdefgh" * 3), "weights": torch.eye(24)[None, None]}, width=400)
    cells = """(async () => {
      const sizes = [];
      for (let frame = 0; frame < 12; frame++) {
        await new Promise(requestAnimationFrame);
        sizes.push(document.getElementById("matrix").style.getPropertyValue("--cell"));
      }
      return sizes.slice(4);
    })()"""
    for width in (396, 422, 450):
        page.send("Emulation.setDeviceMetricsOverride", {"width": width, **SCREEN})
        assert len(set(page.run(cells))) == 1


@pytest.mark.parametrize("width", [1280, 400])
def test_matrix_of_128_characters_fits_and_follows_a_finger(width: int, show: Show) -> None:
    """Which drags the choice and not the page."""
    weights = torch.rand(1, 2, 128, 128).tril()
    view: View = {"labels": list("abcdefgh" * 16), "weights": weights / weights.sum(-1, keepdim=True)}
    page = show("attention", view, width=width, height=800)
    page.run("document.getElementById('box').scrollIntoView()")
    box = "(({ scrollWidth, clientWidth, scrollHeight, clientHeight }) => "
    fits = "[scrollWidth <= clientWidth, scrollHeight <= clientHeight, clientHeight < innerHeight])"
    assert page.run(f"{box}{fits}(document.getElementById('box'))") == [True] * 3
    plot = "document.getElementById('plot').getBoundingClientRect()"
    left, top, side, scrolled = page.run(f"(({{ left, top, width }}) => [left, top, width, scrollY])({plot})")
    places = [(5, 20), (15, 60), (27, 100)]  # columns and rows
    at = [{"x": left + (column + 0.5) * side / 128, "y": top + (row + 0.5) * side / 128} for column, row in places]
    page.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    page.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": at[:1]})
    for place in at[1:]:
        page.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [place]})
    page.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for("document.getElementById('readout').textContent.startsWith(\"From 'e' at 100 to 'd' at 27\")")
    assert page.run("scrollY") == scrolled


@pytest.mark.parametrize("kind", ["attention", "lens"])
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (400, False)])
def test_no_page_breaks_a_rule_of_accessibility(kind: str, width: int, dark: bool, show: Show) -> None:
    assert show(kind, width=width, height=800, dark=dark).violations() == []


@pytest.mark.parametrize("kind", VIEWS)
def test_frame_is_as_high_as_its_content_at_any_width(kind: str, tmp_path: Path, visit: Callable[..., Page]) -> None:
    frame_html = pages.Page(kind, "A title", "a note", VIEWS[kind]())._repr_html_()
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!DOCTYPE html><body><h1>Cells</h1>{frame_html}</body>", encoding="utf-8")
    shown = visit(notebook.as_uri(), width=1000)
    frame = "document.querySelector('iframe')"
    content = f"{frame}.contentDocument.documentElement"
    fits = f"{content}.offsetHeight > 300 && {frame}.clientHeight - {content}.offsetHeight === 2"
    shown.wait_for(fits)
    assert shown.run(f"{content}.scrollWidth <= {frame}.clientWidth")
    shown.run(f"{frame}.style.width = '500px'")
    shown.wait_for(f"{frame}.clientWidth === 500 && {fits}")
    assert shown.run("getComputedStyle(document.querySelector('h1')).fontSize") == "32px"  # not that of the page
    assert shown.requests == [notebook.as_uri()]


CHOSEN = "[...document.querySelectorAll('.picture-line .token')].findIndex((item) => item.ariaCurrent)"
PLACES = (
    "[...document.querySelectorAll('.part, .head, .bars, .picture-about')]"
    ".map((item) => [item.offsetTop, item.offsetHeight])"
)
ABOUT = "document.querySelector('.picture-about h2').textContent"
STAGE = "document.querySelector('.picture-flow [aria-current]').closest('.picture-stage').dataset.name"
EDGE = "document.querySelector('{}').getBoundingClientRect().{}"
PART = "document.querySelector('.picture-flow [aria-current] .name').firstChild.textContent"
GUESS = "document.querySelector('.picture-guess').textContent"


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
    assert "a query of 'o' with the keys of the 16 characters so far" in page.text(".picture-about p")
    page.press("ArrowDown")
    assert page.run(ABOUT) == "layer 0, head 0"
    tokens = "[...document.querySelectorAll('.picture-line .token')]"
    assert page.run(f"{tokens}.map((item) => Boolean(item.style.backgroundColor))") == [True] * 16 + [False]


@pytest.mark.parametrize("width", [400, 1000])
def test_nothing_in_a_picture_moves_where_labels_are_long_and_the_chosen_token_is_seen(width: int, show: Show) -> None:
    page = show("picture", picture("representation"), width=width)
    places = page.run(PLACES)
    for token in range(len(TEXT)):
        page.run(f"document.querySelectorAll('.picture-line .token')[{token}].click()")
        assert page.run(PLACES) == places
        for item, box in ((".ids .chosen", ".ids .middle"), (".picture-line [aria-current]", ".picture-line")):
            left, right = ([page.run(EDGE.format(part, side)) for part in (item, box)] for side in ("left", "right"))
            assert left[0] >= left[1] - 0.5
            assert right[0] <= right[1] + 0.5
    assert page.run("document.documentElement.scrollWidth") <= width


def test_blocks_of_a_picture_are_folded_and_open_on_the_way_down(show: Show) -> None:
    page = show("picture", picture(n_layer=10))
    opened = "[...document.querySelectorAll('.block')].map((block) => block.open)"
    assert page.run(opened) == [True] + [False] * 9
    page.run("document.querySelectorAll('.picture-stage')[1].querySelector('.picture-stage > .stream').click()")
    assert page.run(ABOUT) == "after block 0"
    page.press("ArrowDown")
    assert page.run(opened) == [True] * 2 + [False] * 8
    assert page.run(ABOUT) == "norm, block 1"


def test_picture_tells_its_story_while_it_is_scrolled(show: Show) -> None:
    page = show("picture")
    assert page.run(GUESS).startswith("text, so far")
    page.run("document.querySelectorAll('.block')[1].querySelector('.addition').scrollIntoView({ block: 'center' })")
    page.wait_for(f"{GUESS}.startsWith('block 1, so far')")
    page.wait_for(f"{STAGE} === 'block 1' && {ABOUT}.includes('1')")
    page.run("scrollTo(0, document.body.scrollHeight)")
    page.wait_for(f"{GUESS}.startsWith('logits') && {STAGE} === 'logits' && {ABOUT} === {PART}")
    page.run("document.querySelector('.part').click()")
    page.run("scrollTo(0, 0)")
    page.wait_for(f"!{GUESS}.startsWith('logits')")
    page.run("scrollTo(0, document.body.scrollHeight)")
    page.wait_for(f"{STAGE} === 'logits' && {ABOUT} === {PART}")
