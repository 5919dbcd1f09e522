"""The playground's writing view in a browser, by mouse and by keyboard."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from browser import CONTROL, Page
from gpt.checkpoint import Loaded
from gpt.system.errors import CheckpointError
from http_server import CharModel, Serve, Served, add_run, make_loaded, real_engine

Open = Callable[..., Page]
ITEM = "document.querySelectorAll('.written .token')[{}]"


def written(page: Page) -> str:
    """The text, its line ends as such."""
    tokens = "[...document.querySelectorAll('.written .token')]"
    return page.run(f"{tokens}.map((item) => item.textContent.replace('⏎', '\\n')).join('')")


def fill(page: Page, **values: object) -> None:
    for name, value in values.items():
        page.run(f"document.getElementById('{name.replace('_', '-')}').select()")
        page.type(str(value))


def wait_until_written(page: Page) -> None:
    page.wait_for("document.querySelector('.pane .status').textContent.includes('written with seed')")


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
    """And a reload keeps the form."""
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
    assert page.run("document.getElementById('seed').value") == "11"


def test_a_model_that_was_trained_meanwhile_can_be_chosen_and_may_have_any_name(
    open_page: Open, serve: Serve, tmp_path: Path
) -> None:
    add_run(tmp_path, "old")
    with serve(real_engine, folder=tmp_path) as served:
        page = open_page("attention", served=served)
        assert page.run("document.getElementById('model').options.length") == 1
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
        manual.engine.wait_for_request()  # it writes when it is opened
        fill(page, prompt="It")
        page.point("document.getElementById('write-button')", click=True)
        manual.engine.wait_for_request()
        manual.engine.wait_for_cancel()
        page.wait_for("document.querySelectorAll('.written .token.given').length === 2")
        for count in (1, 2, 3):
            manual.engine.say("a", request=1)
            page.wait_for(f"document.querySelectorAll('.written .token:not(.given)').length === {count}")
            assert page.run("document.getElementById('stop').disabled") is False
        page.press("Escape")
        manual.engine.wait_for_cancel()
        assert page.run("document.getElementById('stop').disabled") is True
        assert page.text(".pane .status").startswith("3 characters written with seed 1337")
        page.press("Enter", CONTROL)
        manual.engine.wait_for_request()
        page.point("document.getElementById('dice')", click=True)  # takes the place of the one before
        manual.engine.wait_for_request()
        manual.engine.wait_for_cancel()
        assert manual.engine.cancelled == manual.engine.requests[:3]
        seed = int(page.run("document.getElementById('seed').value"))
        assert [request.params.seed for request in manual.engine.requests] == [1337, 1337, 1337, seed]
        assert seed != 1337
        manual.engine.say("ab", "length", request=3)
        wait_until_written(page)
        assert page.text(".pane .status").startswith(f"1 character written with seed {seed}")


def test_a_character_shows_its_alternatives_and_branches(open_page: Open, two_models: Served) -> None:
    """An unlikely one stands below the ten likeliest."""
    page = open_page()
    text = write(page, prompt="It was", count=40, temperature=0.9, top_k=5)
    page.point(ITEM.format(12))
    assert page.text(".choice-title").endswith(" · character 12")
    assert page.run("document.querySelectorAll('.pairs li').length") == 10
    assert page.run("document.querySelectorAll('.pairs li:not(.dropped)').length") <= 5
    assert page.text(".sampling") == "with temperature 0.9, top-k 5"
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
        f"{tokens}.map((item) => Number(item.ariaLabel.match(/([\\d.]+)%$/)?.[1] ?? 100))"
        ".reduce((best, value, index, all) => (value < all[best] ? index : best), 0)"
    )
    page.point(ITEM.format(least), click=True)
    assert page.run("document.querySelectorAll('.pairs li').length") == 11
    assert page.run("document.querySelector('.pairs li:last-child').className") == "came"
    sampled = page.run("[...document.querySelectorAll('.pairs .sampled')].map((value) => value.textContent)")
    assert 0 < float(sampled[-1].strip("<%")) <= float(sampled[-2].strip("<%"))


def test_it_opens_on_a_text_of_the_model_with_alternatives_and_other_views_on_its_example(
    open_page: Open, two_models: Served
) -> None:
    """Which writes once, and again for another model."""
    page = open_page()
    wait_until_written(page)
    name = two_models.models.first
    example = two_models.get(f"/api/models/{name}").json()["example"]
    prompt = page.run("document.getElementById('prompt').value")
    assert prompt
    assert example.startswith(prompt)
    text = prompt + complete(two_models, name, prompt, max_tokens=300, temperature=0.8, seed=1337)
    assert written(page) == text
    assert page.run("document.querySelectorAll('.pairs li').length") >= 10
    page.run("location.hash = '#lens'")
    page.wait_for("document.querySelector('#reading-text') !== null")
    assert page.run("document.getElementById('reading-text').value") == example
    page.run("document.querySelector('.written')?.remove(); location.hash = '#write'")
    page.wait_for("document.querySelector('.view-write') !== null")
    assert page.text(".pane .status") != "Writing…"
    assert written(page) == text
    page.run("document.getElementById('model').focus()")
    page.press("ArrowDown")
    page.wait_for(f"document.querySelector('.written').textContent.replaceAll('⏎', '') !== {json.dumps(text)}")
    wait_until_written(page)
    assert written(page) != text


def test_where_a_model_cannot_be_loaded_another_writes(
    open_page: Open, serve: Serve, tmp_path: Path, char_model: CharModel
) -> None:
    add_run(tmp_path, "damaged")
    add_run(tmp_path, "good")  # the newest, which the server loads

    def load(folder: Path) -> Loaded:
        if "damaged" in folder.parts:
            raise CheckpointError("this one is damaged")
        return make_loaded(*char_model)(folder)

    with serve(real_engine, folder=tmp_path, loaded=load) as served:
        page = open_page(served=served)
        choose = "(() => {{ const model = document.getElementById('model'); model.value = '{}';"
        choose += " model.dispatchEvent(new Event('change')); }})()"
        page.run(choose.format("damaged"))
        page.wait_for("document.querySelector('#page-status.wrong') !== null")
        page.run(choose.format("good"))
        page.wait_for("document.querySelector('#page-status.wrong') === null")
        assert write(page, prompt="It was", count=5).startswith("It was")
        page.console.clear()


def move_slider(page: Page, name: str, value: float) -> None:
    slider = f"document.querySelector('#{name.replace('_', '-')} + [type=range]')"
    page.run(f"{slider}.value = {value}; {slider}.dispatchEvent(new Event('input', {{ bubbles: true }}))")


def assert_alternatives(page: Page, served: Served, place: int, **settings: float) -> None:
    """Compare the bars of a place with what the server says of the text before it."""
    asked = {"prompt": written(page)[:place], "max_tokens": 1, **settings}
    with served.http() as client:
        answer = client.post("/api/generate", json={"model": served.models.first, **asked}).text
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
    token = [token for event in events for token in event["tokens"]][-1]
    expected = {label: f"{100 * p:.1f}%" for _, label, p in token["sampled"] if p > 0.001}
    cells = "[...row.children].map((cell) => cell.textContent)"
    rows = page.run(f"[...document.querySelectorAll('.pairs li')].map((row) => {cells})")
    assert {label: said for label, _, _, said in rows[:10] if said != "never" and "<" not in said} == expected


@pytest.mark.parametrize("change", [{"temperature": 0.3}, {"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.2}])
def test_a_slider_shows_its_effect_on_the_alternatives(
    open_page: Open, two_models: Served, change: dict[str, float]
) -> None:
    page = open_page()
    wait_until_written(page)
    ((name, value),) = change.items()
    place = int(page.run("document.querySelector('.written [aria-current]').dataset.index"))
    move_slider(page, name, value)
    page.wait_for(f"document.querySelector('.sampling').textContent.includes('{value}')")
    assert_alternatives(page, two_models, place, **{"temperature": 0.8, **change})


def test_after_a_branch_with_other_settings_each_token_has_those_that_it_was_sampled_with(
    open_page: Open, two_models: Served
) -> None:
    page = open_page()
    write(page, prompt="It was", count=40, temperature=0.8, top_k=0)
    page.point(ITEM.format(30), click=True)
    move_slider(page, "temperature", 0.3)
    page.wait_for("document.querySelector('.sampling').textContent === 'with temperature 0.3'")  # drawn anew
    page.point("document.querySelector('.pairs li:not(.came) button')", click=True)
    page.wait_for("document.querySelector('.picked') !== null")
    wait_until_written(page)
    page.point(ITEM.format(12))
    assert page.text(".sampling") == "with temperature 0.8"
    assert_alternatives(page, two_models, 12, temperature=0.8)
    page.point(ITEM.format(12), click=True)
    page.wait_for("document.querySelector('.sampling').textContent === 'with temperature 0.3'")
    assert_alternatives(page, two_models, 12, temperature=0.3)


# What a PerformanceObserver is told within two frames.
SHIFTS = (
    "new Promise((done) => { const found = []; "
    "const observer = new PerformanceObserver((list) => found.push(...list.getEntries())); "
    "observer.observe({ type: 'layout-shift', buffered: true }); "
    "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => "
    "done([...found, ...observer.takeRecords()].reduce((sum, { value }) => sum + value, 0))))) })"
)


@pytest.mark.parametrize("width", [1280, 400])
def test_prompt_text_and_alternatives_are_on_one_screen_and_nothing_moves(open_page: Open, width: int) -> None:
    page = open_page(width=width, height=800)
    wait_until_written(page)
    assert page.run(SHIFTS) < 0.02
    assert page.run("scrollY") == 0
    tops = "[...document.querySelectorAll('#views a')].map((link) => link.offsetTop)"
    assert len(set(page.run(tops))) == 1
    for selector in ("#prompt", ".written", ".pairs li:nth-child(10)"):
        box = page.run(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
        assert (selector, 0 < box["top"] < box["bottom"] <= 800) == (selector, True)
    page.run("document.body.prepend(Object.assign(document.createElement('div'), { style: 'height: 300px' }))")
    assert page.run(SHIFTS) > 0.02  # one that is there is seen


def test_it_is_used_by_keyboard_alone(open_page: Open) -> None:
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


def test_bits_per_character_say_how_surprised_the_model_was_by_its_text(open_page: Open, two_models: Served) -> None:
    page = open_page()
    write(page, prompt="It was", count=60, temperature=0.8, seed=3)
    settings = {"prompt": "It was", "max_tokens": 60, "temperature": 0.8, "seed": 3, "logprobs": 1}
    scored = two_models.post(top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, **settings).json()
    bits = -sum(scored["choices"][0]["logprobs"]["token_logprobs"]) / math.log(2) / 60
    said = page.text(".pane .status")
    assert float(said.removesuffix(" bits per character.").split()[-1]) == pytest.approx(bits, abs=0.006)


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
