"""The playground's writing views in a browser: by mouse, by keyboard, and side by side."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from browser import CONTROL, Page
from http_server import Serve, Served, add_run, real_engine
from interop.node import run_page

Open = Callable[..., Page]
ITEM = "document.querySelectorAll('.written .token')[{}]"


def written(page: Page, pane: int = 0) -> str:
    """The text of a pane, its line ends as such."""
    tokens = f"[...document.querySelectorAll('.pane')[{pane}].querySelectorAll('.written .token')]"
    return page.run(f"{tokens}.map((item) => item.textContent.replace('⏎', '\\n')).join('')")


def fill(page: Page, **values: object) -> None:
    for name, value in values.items():
        page.run(f"document.getElementById('{name.replace('_', '-')}').select()")
        page.type(str(value))


def wait_until_written(page: Page) -> None:
    said = "[...document.querySelectorAll('.pane .status')].map((status) => status.textContent)"
    page.wait_for(f"{said}.every((text) => text.includes('written with seed'))")


def write(page: Page, **values: object) -> str:
    """Fill in the form, write by keyboard alone, and return the text."""
    fill(page, **values)
    page.press("Enter", CONTROL)
    wait_until_written(page)
    return written(page)


def complete(served: Served, model: str, prompt: str, **settings: object) -> str:
    fixed = {"min_p": 0.0, "repetition_penalty": 1.0, "top_k": 0, "top_p": 1.0}
    answer = served.post(model=model, prompt=prompt, **{**fixed, **settings})
    return answer.json()["choices"][0]["text"]


def test_it_writes_what_the_completions_endpoint_writes_by_any_model(open_page: Open, two_models: Served) -> None:
    """And a reload keeps the form, as another view does."""
    page = open_page()
    first, second = page.run("[...document.getElementById('model').options].map((option) => option.value)")
    assert {first, second} == {"first", "second"}
    assert first == two_models.models.first
    text = write(page, prompt="It was", count=150, temperature=0)
    assert text == "It was" + complete(two_models, first, "It was", max_tokens=150, temperature=0.0)
    page.run("document.getElementById('model').focus()")
    page.press("ArrowDown")
    page.wait_for("document.getElementById('facts').textContent.includes('in 2 layers of 4 heads')")
    settings = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 11}
    text = write(page, count=40, **settings)
    assert text == "It was" + complete(two_models, second, "It was", max_tokens=40, **settings)
    page.send("Page.reload")
    page.wait_for("document.readyState === 'complete' && document.getElementById('prompt')?.value === 'It was'")
    assert page.run("document.getElementById('temperature').value") == "0.8"
    page.run("location.hash = '#compare'")
    page.wait_for("document.querySelector('.view-compare') !== null")
    assert page.run("document.getElementById('seed').value") == "11"


def test_a_model_that_was_trained_meanwhile_can_be_chosen_and_may_have_any_name(
    open_page: Open, serve: Serve, tmp_path: Path
) -> None:
    add_run(tmp_path, "old")
    with serve(real_engine, folder=tmp_path) as served:
        page = open_page("compare", served=served)
        assert "one model only" in page.run("document.querySelector('.view-compare').textContent")
        add_run(tmp_path, "50% of what? #1")
        page.run("location.hash = '#write'")
        page.wait_for("document.getElementById('model').options.length === 2")
        assert page.run("document.getElementById('model').value") == "old"
        page.run("document.getElementById('model').focus()")
        page.press("ArrowDown")
        page.wait_for("document.getElementById('model').value !== 'old'")
        page.wait_for("document.getElementById('facts').textContent.includes('parameters')")
        assert len(write(page, prompt="It", count=5)) == 7


def test_text_streams_stops_at_once_and_gives_way_to_another(open_page: Open, serve: Serve) -> None:
    with serve() as manual:
        page = open_page(served=manual)
        fill(page, prompt="It")
        page.point("document.getElementById('write-button')", click=True)
        manual.engine.wait_for_request()
        page.wait_for("document.querySelectorAll('.written .token.given').length === 2")
        for count in (1, 2, 3):
            manual.engine.say("a")
            page.wait_for(f"document.querySelectorAll('.written .token:not(.given)').length === {count}")
            assert page.run("document.getElementById('stop').disabled") is False
        page.press("Escape")
        manual.engine.wait_for_cancel()
        assert page.run("document.getElementById('stop').disabled") is True
        assert page.text(".pane .status").startswith("3 characters written with seed 1337")
        page.press("Enter", CONTROL)
        manual.engine.wait_for_request()
        page.point("document.getElementById('another')", click=True)  # takes the place of the one before
        manual.engine.wait_for_request()
        manual.engine.wait_for_cancel()
        assert manual.engine.cancelled == manual.engine.requests[:2]
        assert [request.params.seed for request in manual.engine.requests] == [1337, 1337, 1338]
        manual.engine.say("ab", "length", request=2)
        wait_until_written(page)
        assert page.text(".pane .status").startswith("1 character written with seed 1338")


def test_a_character_shows_its_alternatives_and_branches(open_page: Open, two_models: Served) -> None:
    """An unlikely one stands below the ten likeliest."""
    page = open_page()
    text = write(page, prompt="It was", count=40, temperature=0.9, top_k=5)
    page.point(ITEM.format(12))
    assert page.text(".choice-title").endswith(" (12)")
    assert page.run("document.querySelectorAll('.pairs li').length") == 10
    assert page.run("document.querySelectorAll('.pairs li:not(.dropped)').length") <= 5
    assert page.text(".sampling") == "temperature 0.9, top-k 5"
    came = page.run("document.querySelector('.pairs .came').textContent")
    assert came.startswith(text[12].replace(" ", "␣").replace("\n", "⏎"))
    page.point(ITEM.format(12), click=True)
    other = page.text(".pairs li:not(.came) button").replace("␣", " ").replace("⏎", "\n")
    page.point("document.querySelector('.pairs li:not(.came) button')", click=True)
    page.wait_for("document.querySelector('.picked') !== null")
    wait_until_written(page)
    branch = text[:12] + other
    settings = {"max_tokens": 46 - len(branch), "temperature": 0.9, "top_k": 5, "seed": 1337}
    assert written(page) == branch + complete(two_models, two_models.models.first, branch, **settings)
    assert page.text(".choice").endswith("; you chose it.")

    write(page, prompt="It was", count=200, temperature=2, top_k=0)
    tokens = "[...document.querySelectorAll('.written .token')]"
    least = page.run(
        f"{tokens}.map((item) => Number(item.ariaLabel.split(', probability ')[1]?.replace('<', '') ?? 1))"
        ".reduce((best, value, index, all) => (value < all[best] ? index : best), 0)"
    )
    page.point(ITEM.format(least), click=True)
    assert page.run("document.querySelectorAll('.pairs li').length") == 11
    assert page.run("document.querySelector('.pairs li:last-child').className") == "came"
    sampled = page.run("[...document.querySelectorAll('.pairs .sampled')].map((value) => value.textContent)")
    assert 0 < float(sampled[-1].replace("<", "")) <= float(sampled[-2])


def test_it_is_used_by_keyboard_alone(open_page: Open) -> None:
    page = open_page()
    page.run("document.getElementById('prompt').focus()")
    page.type("It was")
    for _ in range(7):
        page.press("Tab")
    assert page.run("document.activeElement.id") == "write-button"
    page.press("Enter")
    wait_until_written(page)
    for _ in range(2):  # Stop is disabled, Next seed is not
        page.press("Tab")
    assert page.run("document.activeElement.closest('.written') !== null")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert page.text(".choice-title").endswith("(8)")
    page.press("Tab")
    assert page.run("document.activeElement.closest('.pairs') !== null")
    page.press("Enter")
    page.wait_for("document.querySelector('.picked') !== null")
    wait_until_written(page)
    assert page.run("document.activeElement.dataset.index") == "8"


def test_two_models_write_side_by_side_with_one_seed(open_page: Open, two_models: Served) -> None:
    page = open_page("compare")
    left = write(page, prompt="It was", count=60, temperature=0.8, seed=3)
    right = written(page, 1)
    chosen = page.run("[...document.querySelectorAll('.pane select')].map((select) => select.value)")
    assert sorted(chosen) == ["first", "second"]
    for name, text in zip(chosen, (left, right), strict=True):
        assert text == "It was" + complete(two_models, name, "It was", max_tokens=60, temperature=0.8, seed=3)
    assert left != right
    parting = next(index for index, (one, other) in enumerate(zip(left, right, strict=True)) if one != other)
    marked = page.run("[...document.querySelectorAll('.parting')].map((item) => Number(item.dataset.index))")
    assert marked == [parting, parting]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(["It", " was"], ["", "I", "t", " ", "wa", "r"], [1, 5]), (["It", " was"], ["I", "t"], [None, None])],
)
def test_texts_part_where_their_characters_do_whatever_their_tokens_are(
    first: list[str], second: list[str], expected: list[int | None]
) -> None:
    passages = [{"tokens": [{"text": text} for text in texts]} for texts in (first, second)]
    marks = f"{json.dumps(passages)}.map((passage) => ({{ ...passage, mark: (index) => found.push(index) }}))"
    assert run_page("", f"const found = []; markParting({marks}); return found;") == expected


def test_a_character_that_the_model_does_not_know_is_named(open_page: Open) -> None:
    page = open_page()
    fill(page, prompt="It \u0416")
    page.press("Enter", CONTROL)
    page.wait_for("document.querySelector('.pane .status.wrong') !== null")
    assert "\u0416" in page.text(".pane .status")
    assert ["400" in line for line in page.console] == [True]  # the browser itself notes every refused request
    page.console.clear()


def test_the_key_is_asked_for_and_kept(open_page: Open, serve: Serve) -> None:
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
