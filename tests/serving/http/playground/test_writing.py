"""The playground's writing view in a browser, by mouse and by keyboard."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from browser import CONTROL, Page
from http_server import Serve, Served, real_engine

Open = Callable[..., Page]
ITEM = "document.querySelectorAll('.written .token')[{}]"
VALUE = "document.getElementById('{}').value"
FACTS = "document.getElementById('facts').textContent"


def written(page: Page) -> str:
    """The text, its line ends as such."""
    tokens = "[...document.querySelectorAll('.written .token')]"
    return page.run(f"{tokens}.map((item) => item.textContent.replace('⏎', '\\n')).join('')")


def fill(page: Page, **values: object) -> None:
    page.run(
        "document.querySelectorAll('.sampling-settings details').forEach((each) => "
        "each.open = true)"
    )
    for name, value in values.items():
        page.run(f"document.getElementById('{name.replace('_', '-')}').select()")
        page.type(str(value))


def wait_until_written(page: Page) -> None:
    page.wait_for(
        "document.querySelector('.pane .status').textContent.includes('written with seed')"
    )


def write(page: Page, **values: object) -> str:
    """Fill in the form, write by keyboard alone, and return the text."""
    fill(page, **values)
    page.press("Enter", CONTROL)
    wait_until_written(page)
    return written(page)


def next_model(page: Page) -> None:
    page.run("document.getElementById('model').focus()")
    page.press("ArrowDown")


def branch(page: Page) -> None:
    """Choose another token at the place that is open."""
    page.point("document.querySelector('.pairs li:not(.came) button')", click=True)
    page.wait_for("document.querySelector('.picked') !== null")
    wait_until_written(page)


def complete(served: Served, prompt: str, **settings: object) -> dict[str, Any]:
    fixed = {"min_p": 0.0, "repetition_penalty": 1.0, "top_k": 0, "top_p": 1.0, "logprobs": 1}
    return served.post(prompt=prompt, **{**fixed, **settings}).json()["choices"][0]


def test_page_writes_the_completion_and_a_reload_keeps_the_form(
    open_page: Open, server: Served
) -> None:
    page = open_page()
    options = "document.getElementById('model').options"
    assert page.run(f"Array.from({options}, (option) => option.value)") == [
        "first", "second"
    ]  # fmt: skip
    assert write(page, prompt="It was \u00e9\u2019\u03a9", count=1)[:-1] == "It was e"
    assert "does not know \u00e9 \u2019 \u03a9, so a plain form" in page.text(".pane .status")
    text = write(page, prompt="It was", count=150, temperature=0)
    assert text == "It was" + complete(server, "It was", max_tokens=150, temperature=0.0)["text"]
    next_model(page)
    page.wait_for(f"{FACTS}.includes('in 2 layers of 4 heads')")
    settings = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 11}
    text = write(page, count=40, **settings)
    scored = complete(server, "It was", model="second", max_tokens=40, **settings)
    assert text == "It was" + scored["text"]
    bits = -sum(scored["logprobs"]["token_logprobs"]) / math.log(2) / 40
    said = (
        page.text(".pane .status")
        .partition(" bits per character; guessing blindly: 4.86.")[0]
        .split()[-1]
    )
    assert float(said) == pytest.approx(bits, abs=0.006)
    page.send("Page.reload")
    page.wait_for(
        "document.readyState === 'complete' && document.getElementById('prompt')?.value "
        "=== 'It was'"
    )
    assert [page.run(VALUE.format(name)) for name in ("temperature", "seed")] == ["0.8", "11"]


def test_text_streams_stops_at_once_and_gives_way_to_another(
    open_page: Open, manual: Served
) -> None:
    page = open_page(served=manual)
    engine = manual.engine
    engine.wait_for_request()  # it writes when it is opened
    fill(page, prompt="It")
    page.point("document.getElementById('write-button')", click=True)
    engine.wait_for_request()
    engine.wait_for_cancel()
    page.wait_for("document.querySelectorAll('.written .token.given').length === 2")
    for count in (1, 2, 3):
        engine.say("a", request=1)
        page.wait_for(
            f"document.querySelectorAll('.written .token:not(.given)').length === {count}"
        )
        assert page.run("document.getElementById('stop').disabled") is False
    page.press("Escape")
    engine.wait_for_cancel()
    assert page.run("document.getElementById('stop').disabled") is True
    assert page.text(".pane .status").startswith("3 characters written with seed 1337")
    page.press("Enter", CONTROL)
    engine.wait_for_request()
    page.point("document.getElementById('dice')", click=True)  # takes the place of the one before
    engine.wait_for_request()
    engine.wait_for_cancel()
    assert engine.cancelled == engine.requests[:3]
    seed = int(page.run(VALUE.format("seed")))
    assert [request.params.seed for request in engine.requests] == [1337, 1337, 1337, seed]
    assert seed != 1337
    engine.say("ab", "length", request=3)
    wait_until_written(page)
    assert page.text(".pane .status").startswith(f"1 character written with seed {seed}")


def test_character_shows_its_alternatives_and_branches(open_page: Open, server: Served) -> None:
    """An unlikely one stands below the ten likeliest."""
    page = open_page()
    text = write(page, prompt="It was", count=40, temperature=0.9, top_k=5)
    page.point(ITEM.format(12))
    assert page.text(".choice-title").endswith(" · character 12")
    assert page.run("document.querySelector('.looking').dataset.index") == "12"
    assert page.run("document.querySelectorAll('.pairs li').length") == 10
    assert page.run("document.querySelectorAll('.pairs li:not(.dropped)').length") <= 5
    assert page.text(".sampling") == "with temperature 0.9, top-k 5"
    assert page.text(".pairs .came").startswith(text[12].replace(" ", "␣").replace("\n", "⏎"))
    page.point(ITEM.format(12), click=True)
    begun = text[:12] + page.text(".pairs li:not(.came) button").replace("␣", " ").replace(
        "⏎", "\n"
    )
    branch(page)
    settings = {"max_tokens": 46 - len(begun), "temperature": 0.9, "top_k": 5, "seed": 1337}
    assert written(page) == begun + complete(server, begun, **settings)["text"]
    assert page.text(".choice").endswith("; you chose it.")

    write(page, prompt="It was", count=200, temperature=2, top_k=0)
    tokens = "[...document.querySelectorAll('.written .token')]"
    least = page.run(
        f"{tokens}.map((item) => Number(item.ariaLabel.match(/([\\d.]+)%$/)?.[1] ?? 100))"
        ".reduce((best, value, index, all) => (value < all[best] ? index : best), 0)"
    )
    page.point(ITEM.format(least), click=True)
    assert page.run("document.querySelectorAll('.pairs li').length") == 11
    assert page.run("document.querySelector('.pairs li:last-child').className") == "came"


# What a PerformanceObserver is told within two frames.
SHIFTS = (
    "new Promise((done) => { const found = []; "
    "const observer = new PerformanceObserver((list) => found.push(...list.getEntries())); "
    "observer.observe({ type: 'layout-shift', buffered: true }); "
    "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => "
    "done([...found, ...observer.takeRecords()].reduce((sum, { value }) => sum + value, 0))))) })"
)


@pytest.mark.parametrize("width", [1280, 400])
def test_all_is_on_one_screen_and_nothing_moves(open_page: Open, width: int) -> None:
    page = open_page(width=width, height=800)
    wait_until_written(page)
    assert page.run(SHIFTS) < 0.02
    assert page.run("scrollY") == 0
    tops = "[...document.querySelectorAll('#views a')].map((link) => link.offsetTop)"
    assert len(set(page.run(tops))) == 1
    for selector in ("#prompt", ".written", ".pairs li:nth-child(10)"):
        box = page.run(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
        assert (selector, 0 < box["top"] < box["bottom"] <= 800) == (selector, True)


def test_keyboard_alone_writes_and_branches(open_page: Open) -> None:
    page = open_page()
    page.run("document.getElementById('prompt').focus()")
    page.type("It was")
    page.press("Tab")
    assert page.run("document.activeElement.id") == "write-button"
    page.press("Enter")
    wait_until_written(page)
    for _ in range(2):  # Stop is disabled, Copy is not
        page.press("Tab")
    assert page.run("document.activeElement.closest('.written') !== null")
    place = int(page.run("document.activeElement.dataset.index")) + 2
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert page.text(".choice-title").endswith(f" {place}")
    page.press("Tab")
    assert page.run("document.activeElement.closest('.pairs') !== null")
    page.press("Enter")
    page.wait_for("document.querySelector('.picked') !== null")
    wait_until_written(page)
    assert page.run("document.activeElement.dataset.index") == str(place)


def test_key_is_asked_for_and_kept(open_page: Open, serve: Serve) -> None:
    with serve(real_engine, api_key="sesame") as served:
        page = open_page(served=served)
        for key in ("wrong", "sesame"):
            page.wait_for("document.activeElement.id === 'key'")
            page.type(key)
            page.press("Enter")
            page.wait_for("document.querySelector('#page-status.wrong, .view') !== null")
            page.run("document.getElementById('key').value = ''")
            page.run("document.getElementById('page-status').classList.remove('wrong')")
        assert len(write(page, prompt="It", count=5)) == 7
        page.send("Page.reload")
        page.wait_for("document.querySelector('.view') !== null")
        assert ["401" in line for line in page.console] == [True]  # of the wrong key
        page.console.clear()
