"""The pages as a browser shows them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from browser import Page
from gpt.inspection.rendering.pages import render_page
from gpt.inspection.views.tokens import View

LABELS = ["a", "␣", "<b>", "⏎", "</script>", "z"]
SIZE = len(LABELS)


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


VIEWS = {"attention": attention, "lens": lens}

HELPERS = """
const found = {};
const read = (id) => document.getElementById(id).textContent;
const current = () => [...document.querySelectorAll("[aria-current]")].map((item) => item.textContent);
const press = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })
);
const hover = (item) => item.dispatchEvent(new PointerEvent("pointerover", { bubbles: true, pointerType: "mouse" }));
const entries = (id) => [...document.getElementById(id).children].map((item) => [
  item.querySelector(".name").textContent, item.querySelector(".value").textContent, item.className,
]);
"""


PLACES = [(5, 20), (15, 60), (27, 100)]
"""Columns and rows that a finger goes over."""
Browse = Callable[..., View]


@pytest.fixture
def open_page(tmp_path: Path, visit: Callable[..., Page]) -> Browse:
    """Show the page of a kind of view, and return what `actions` put into `found`."""

    def show(kind: str, actions: str, view: View | None = None) -> View:
        file = tmp_path / "page.html"
        file.write_text(render_page(kind, view or VIEWS[kind](), "A title", "a note"), encoding="utf-8")
        return visit(file.as_uri(), width=1000).run(f"(() => {{ {HELPERS}\n{actions}\nreturn found; }})()")

    return show


def test_attention_shows_every_head_and_the_chosen_row(open_page: Browse) -> None:
    actions = """
    const inks = (canvas, ...places) => {
      const pixels = canvas.getContext("2d").getImageData(0, 0, 6, 6).data;
      return places.map(([x, y]) => [...pixels.slice(4 * (6 * y + x), 4 * (6 * y + x) + 4)]);
    };
    found.start = [read("matrix-title"), read("readout"), read("summary")];
    found.pixels = inks(document.getElementById("canvas"), [4, 5], [0, 5], [5, 4], [5, 5]);
    found.thumbnail = inks(document.querySelectorAll(".thumbnail canvas")[4], [4, 5])[0];
    found.legend = getComputedStyle(document.querySelector(".legend-bar")).backgroundImage;
    found.thumbnails = document.querySelectorAll(".thumbnail").length;
    const [one, other, below] = [0, 1, 3].map((head) => document.querySelectorAll(".thumbnail")[head].offsetTop);
    found.grid = [one === other, below > one];
    const names = [...document.querySelectorAll(".thumbnail")].map((button) => button.textContent);
    found.names = [names.slice(0, 3), names.slice(3)];
    const tokens = [...document.querySelectorAll(".token")];
    found.ablation = document.getElementById("ablation").hidden;
    tokens[3].click();
    found.clicked = [read("readout"), tokens.map((token) => token.className)];
    hover(tokens[0]);
    found.hovered = read("readout");
    press("ArrowRight");
    found.moved = read("readout");
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
    found = open_page("attention", actions)
    assert found["ablation"]  # is hidden: there is nobody to compute it
    assert found["thumbnails"] == 6
    assert found["grid"] == [True, True]  # heads across, layers down
    assert found["start"][:2] == ["Layer 1, head 1: previous", "From 'z' at 5 to '</script>' at 4: 0.750"]
    assert found["start"][2].startswith(
        "On average 0.800 of its weight is on the previous token; uniform attention would have 0.290"
    )
    assert found["names"] == [["itself"] * 3, ["itself", "previous", "itself"]]
    strong, weak, hidden, nothing = found["pixels"]
    assert hidden == [0, 0, 0, 0]
    assert strong[3] == weak[3] == nothing[3] == 255
    assert sum(strong[:3]) < sum(weak[:3]) < sum(nothing[:3])
    assert found["thumbnail"] == strong
    lowest = ", ".join(map(str, nothing[:3]))
    assert found["legend"].startswith(f"linear-gradient(to right, rgb({lowest})")
    readout, classes = found["clicked"]
    assert readout == "From '⏎' at 3 to '<b>' at 2: 0.750"
    assert classes == ["token", "token", "token pointed", "token looking", "token later", "token later"]
    assert found["hovered"] == "From '⏎' at 3 to 'a' at 0: 0.250"
    assert found["moved"] == "From '</script>' at 4 to '⏎' at 3: 0.750"
    assert found["pointed"] == "From '<b>' at 2 to '</script>' at 4: hidden, it comes later"
    assert found["still"]
    assert found["kept"] == "From '<b>' at 2 to 'a' at 0: 0.250"
    assert found["keys"] == "From '⏎' at 3 to '<b>' at 2: 0.750"
    assert found["head"] == ["Layer 0, head 2: itself", "From '⏎' at 3 to '<b>' at 2: 0.000"]


def test_lens_shows_its_table_and_the_candidates(open_page: Browse) -> None:
    actions = """
    const lines = [...document.querySelectorAll("#lens-table tr")];
    found.table = lines.map((line) => [...line.children].map((cell) => cell.lastChild?.textContent ?? ""));
    found.came = lines.map((line) => [...line.children].map((cell) => cell.classList.contains("came")));
    const cells = [...document.querySelectorAll('#lens-table .cell[role="gridcell"]')];
    found.cells = cells.length;
    cells[2 * 6 + 1].click();
    found.clicked = [read("details-title"), read("readout"), entries("top"), entries("rows")];
    press("ArrowUp"); press("ArrowLeft"); press("ArrowLeft");
    found.moved = read("details-title");
    hover(cells[5]);
    found.last = [read("details-title"), read("readout"), document.getElementById("rows").checkVisibility()];
    document.getElementById("lens-table").dispatchEvent(new PointerEvent("pointerleave"));
    found.left = read("details-title");
    """
    found = open_page("lens", actions)
    right = LABELS[1:]
    assert found["table"] == [
        ["text", *LABELS],
        ["embeddings", *["z"] * SIZE],
        ["block 0", *["a"] * SIZE],
        ["block 1", "q", *right[1:], "q"],
        ["came next", *right, ""],
    ]
    assert [sum(line) for line in found["came"]] == [0, 1, 0, SIZE - 2, 0]
    assert found["cells"] == 3 * SIZE
    title, readout, top, rows = found["clicked"]
    assert title == "block 1, after '␣' at 1"
    assert readout == "The next token is '<b>': 1.00 bits, a probability of 50.0%, in this row."
    assert top == [["<b>", "50.0%", "came"], ["q2", "12.5%", ""]]
    assert rows == [["embeddings", "25.0%", ""], ["block 0", "37.5%", ""], ["block 1", "50.0%", "chosen"]]
    assert found["moved"] == "block 0, after 'a' at 0"
    assert found["last"] == ["embeddings, after 'z' at 5", "The text ends here, so there is no next token.", False]
    assert found["left"] == found["moved"]


def test_one_token_has_a_page(open_page: Browse) -> None:
    read = 'found.said = read("readout");'
    one: View = {"labels": ["a"], "weights": torch.ones(1, 1, 1, 1)}
    assert open_page("attention", read, one)["said"] == "From 'a' at 0 to 'a' at 0: 1.000"
    one |= {"rows": ["x"], "top": [[[("b", 1.0)]]], "next": [None], "next_probability": [[None]]}
    del one["weights"]
    assert open_page("lens", read, one)["said"] == "The text ends here, so there is no next character."


def test_a_probability_of_zero_is_small(open_page: Browse) -> None:
    """The type that it comes in has no smaller one."""
    view = lens() | {"next_probability": [[0.0] * SIZE] * 3}
    said = open_page("lens", 'found.said = read("readout");', view)["said"]
    assert said.endswith(": more than 100 bits, a probability of <0.1%, in this row.")


def test_a_matrix_settles_at_every_width(tmp_path: Path, visit: Callable[..., Page]) -> None:
    """The letters at its edges, which grow with its cells, leave them the room that they were given."""
    weights = torch.eye(24)[None, None]
    view: View = {"labels": list("abcdefgh" * 3), "weights": weights}
    (tmp_path / "page.html").write_text(render_page("attention", view, "A title", ""), encoding="utf-8")
    page = visit((tmp_path / "page.html").as_uri(), width=400, height=900)
    count = """(async () => {
      const { style } = document.getElementById("matrix");
      const sizes = [];
      for (let frame = 0; frame < 12; frame++) {
        await new Promise(requestAnimationFrame);
        sizes.push(style.getPropertyValue("--cell"));
      }
      return new Set(sizes.slice(4)).size;
    })()"""
    for width in (396, 422, 450):
        page.send(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        assert page.run(count) == 1


@pytest.mark.parametrize("width", [1280, 400])
def test_a_matrix_of_128_characters_fits_and_follows_a_finger(
    width: int, tmp_path: Path, visit: Callable[..., Page]
) -> None:
    """Which drags the choice and not the page."""
    letters = "abcdefgh" * 16
    weights = torch.rand(1, 2, 128, 128).tril()
    view: View = {"labels": list(letters), "weights": weights / weights.sum(-1, keepdim=True)}
    (tmp_path / "page.html").write_text(render_page("attention", view, "A title", ""), encoding="utf-8")
    page = visit((tmp_path / "page.html").as_uri(), width=width, height=800)
    page.run("document.getElementById('box').scrollIntoView()")
    box = "(({ scrollWidth, clientWidth, scrollHeight, clientHeight }) => "
    fits = "[scrollWidth <= clientWidth, scrollHeight <= clientHeight, clientHeight < innerHeight])"
    assert page.run(f"{box}{fits}(document.getElementById('box'))") == [True] * 3
    plot = "document.getElementById('plot').getBoundingClientRect()"
    left, top, side, scrolled = page.run(f"(({{ left, top, width }}) => [left, top, width, scrollY])({plot})")
    at = [{"x": left + (column + 0.5) * side / 128, "y": top + (row + 0.5) * side / 128} for column, row in PLACES]
    page.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    page.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": at[:1]})
    for place in at[1:]:
        page.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [place]})
    page.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for("document.getElementById('readout').textContent.startsWith(\"From 'e' at 100 to 'd' at 27\")")
    assert page.run("scrollY") == scrolled


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize(("width", "dark"), [(1280, True), (400, False)])
def test_no_page_breaks_a_rule_of_accessibility(
    kind: str, width: int, dark: bool, tmp_path: Path, visit: Callable[..., Page]
) -> None:
    (tmp_path / "page.html").write_text(render_page(kind, VIEWS[kind](), "A title", "a note"), encoding="utf-8")
    assert visit((tmp_path / "page.html").as_uri(), width=width, height=800, dark=dark).violations() == []


def test_a_request_would_be_refused_and_seen(tmp_path: Path, visit: Callable[..., Page]) -> None:
    (tmp_path / "page.html").write_text(render_page("lens", lens(), "A title", ""), encoding="utf-8")
    page = visit((tmp_path / "page.html").as_uri())
    image = 'Object.assign(new Image(), { src: "http://127.0.0.1:9/", onerror: done })'
    page.run(f"new Promise((done) => document.body.append({image}))")
    assert any("Content Security Policy" in line for line in page.console)
    page.console.clear()
