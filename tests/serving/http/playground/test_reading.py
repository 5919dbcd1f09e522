"""The playground's other views in a browser: what a model does with a text, how a run learned, and
one that trains.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from browser import CONTROL, Page
from gpt.checkpoint import RunFolder, step_files
from gpt.data.bpe import learn_bpe
from gpt.extras.inspection.views.attention import attention_view, without_heads
from gpt.extras.inspection.views.continuation import continuation_view
from gpt.extras.inspection.views.snapshots import read_snapshot
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.extras.inspection.views.tokens import labels_of
from http_server import CharModel, Serve, make_loaded, real_engine
from tiny import CORPUS, sharp_model

TEXT = "It was the best of rooms"
Open = Callable[..., Page]
IDLE = "/^(Only .*)?$/.test(document.querySelector('.view .status').textContent)"
"""Nothing is computed, or only the end of the text was."""


def read(page: Page, view: str, text: str = TEXT) -> None:
    """Open a view, type a text, and let the model of `char_model` read it, by keyboard."""
    page.wait_for("document.querySelector('#model option') !== null")
    choose_model(page, "first")
    page.run(f"location.hash = '#{view}'")
    page.wait_for(f"document.querySelector('.view-{view} textarea') !== null")
    page.run(f"document.querySelector('.view-{view} textarea').select()")
    page.type(text)
    page.press("Enter", CONTROL)
    page.wait_for(
        f"document.querySelector('.view-{view} .reading-body').children.length > 1 && {IDLE}"
    )


def choose_model(page: Page, name: str) -> None:
    model = "document.getElementById('model')"
    page.run(f"{model}.value = '{name}'; {model}.dispatchEvent(new Event('change'))")
    # its example is then read
    page.wait_for("!document.getElementById('facts').textContent.startsWith('Loading')")


def different_words(text: str, whole: list[str], left: list[str]) -> list[str]:
    """Return up to three words of each continuation, from the first one that differs."""
    texts = []
    for written in (whole, left):
        signed = text + "".join(written)
        texts.append(signed.replace("␣", " ").replace("⏎", " "))
    parting = next(place for place in range(len(texts[0])) if texts[0][place] != texts[1][place])
    begin = texts[0].rfind(" ", 0, parting) + 1
    return [" ".join(each[begin:].split()[:3]) for each in texts]


def test_heads_are_ablated_by_keyboard_and_by_mouse(open_page: Open, char_model: CharModel) -> None:
    """What is shown beside each other is what both models give.

    Giving all heads back shows the first one again.
    """
    model, tokenizer = char_model
    ids = torch.tensor(tokenizer.encode(TEXT).tolist())
    page = open_page("attention")
    read(page, "attention")
    done = "document.querySelector('.ablation .status').textContent === ''"
    page.point("document.querySelectorAll('#heads .thumbnail')[0]", click=True)
    page.press("x")
    page.wait_for(f"!document.querySelector('.effects').hidden && {done}")
    assert page.run("document.getElementById('ablate').checked")
    page.point("document.querySelectorAll('#heads .thumbnail')[5]", click=True)
    assert not page.run("document.getElementById('ablate').checked")
    page.point("document.getElementById('ablate')", click=True)
    page.wait_for(f"document.querySelectorAll('.chip').length === 2 && {done}")
    edits = without_heads([(0, 0), (1, 1)])
    whole, left = (surprisal(model, ids, edits=given).mean_bits for given in ({}, edits))
    change = f"{left - whole:+.3f}".replace("-", "\N{MINUS SIGN}")
    written = {}
    for part, given in (("with-all", {}), ("without", edits)):
        written[part] = continuation_view(model, tokenizer, ids, 48, given)["labels"]
        shown = (
            f"[...document.querySelectorAll('.{part} .continued')].map((item) => item.textContent)"
        )
        assert page.run(shown) == written[part]
    quoted = page.run("[...document.querySelectorAll('.effect em')].map((item) => item.innerText)")
    assert quoted == different_words(TEXT, written["with-all"], written["without"])
    assert page.text(".effect") == f"{change} bits: {quoted[0]} became {quoted[1]}"
    titles = page.run("[...document.querySelectorAll('.compared h3')].map((h) => h.textContent)")
    assert titles == [
        f"With all heads: {whole:.3f} bits per character",
        f"Without 2 heads: {left:.3f} bits per character",
    ]
    # It stands where the reader has clicked, in the window, and above the matrix.
    places = (
        "['ablate', 'box'].map((id) => document.getElementById(id).getBoundingClientRect().top)"
    )
    checkbox, matrix = page.run(places)
    effect = page.run("document.querySelector('.effect').getBoundingClientRect().bottom")
    assert checkbox < effect < matrix
    assert effect < 900
    page.point("document.querySelector('.clear')", click=True)
    page.wait_for(f"document.querySelector('.effects').hidden && {done}")
    assert page.run("document.querySelectorAll('.ablated-head').length") == 0
    whole_layer = attention_view(model, tokenizer, ids)["weights"][1, 1]
    page.point("document.querySelectorAll('#text .token')[22]", click=True)
    assert page.text("#readout").endswith(f": {100 * whole_layer[22].max():.1f}%")


def test_tokens_of_the_end_of_a_text_are_read_and_counted(open_page: Open, serve: Serve) -> None:
    tokenizer = learn_bpe([CORPUS], 320)
    model = sharp_model(vocab_size=tokenizer.vocab_size, block_size=48)
    status = "document.querySelector('.view .status').textContent"
    with serve(real_engine, loaded=make_loaded(model, tokenizer)) as served:
        page = open_page("attention", served)
        for text in (CORPUS[:60], CORPUS[:200]):
            ids = tokenizer.encode(text).tolist()
            labels = labels_of(tokenizer, ids[-48:])
            read(page, "attention", text)
            assert page.run("document.querySelectorAll('#text .token').length") == len(labels)
            assert page.run(status) == (
                "Only the last 48 tokens are read." if len(ids) > 48 else ""
            )
        page.point("document.querySelectorAll('#heads .thumbnail')[0]", click=True)
        page.press("x")
        page.wait_for("!document.querySelector('.effects').hidden")
        bits = surprisal(model, torch.tensor(ids[-48:])).mean_bits
        assert f"With all heads: {bits:.3f} bits per token" in page.text(".compared h3")


def test_view_says_what_it_left_out_of_a_text(open_page: Open) -> None:
    page = open_page("lens")
    status = "document.querySelector('.view .status').textContent"
    shown = (
        "[...document.querySelectorAll('#text .token')].map((item) => item.textContent).join('')"
    )
    page.wait_for("document.querySelector('#model option') !== null")
    choose_model(page, "first")
    for text, left, message in (
        (
            "\u041f the k\u00e9y",
            "␣the␣key",
            "The model does not know \u041f \u00e9, so a plain form",
        ),
        ("\u041f\u200d", "", "The model does not know \u041f U+200D, so a plain form"),
    ):
        page.run("document.querySelector('.view textarea').select()")
        page.type(text)
        page.press("Enter", CONTROL)
        page.wait_for(f"{status}.startsWith({json.dumps(message)})")
        assert page.run(shown) == left


PART = "document.querySelector('[data-part={}]')"
AT = PART.format("sample-at") + "?.textContent"
STATE = PART.format("state") + "?.textContent"


def test_run_is_looked_at_along_a_slider(trained: Path, serve: Serve, visit: Open) -> None:
    with serve(folder=trained / "runs") as served:
        page = visit(f"{served.url}/#start", hurry=1)
        is_paused = f"{PART.format('play')}?.textContent === 'Play'"
        played = f"{AT}?.startsWith('step 6 · training loss ') && {is_paused}"
        page.wait_for(played)
        # it has played by itself, as it does once
        assert any("/snapshots/0?" in address for address in page.requests)
        assert page.run("document.querySelectorAll('.map-token').length") == len(set(CORPUS))
        assert page.run("document.querySelector('.growth-heads').width") == 2 * 17 - 1
        where = "document.querySelector('.map-token').style.transform"
        last = json.dumps(page.run(where))
        page.run(f"{PART.format('map')}.focus()")
        page.press("ArrowRight")
        assert page.run("document.querySelectorAll('.map-token.near').length") == 4
        page.run(f"{PART.format('sample-step')}.focus()")
        for _ in range(6):
            page.press("ArrowLeft")
        page.wait_for(f"{AT} === 'step 0' && {where} !== {last}")
        page.point(PART.format("play"), click=True)
        page.wait_for(f"{played} && {where} === {last}")


def test_snapshots_that_come_slowly_are_all_played(
    trained: Path, tmp_path: Path, serve: Serve, visit: Open
) -> None:
    for name in ("tiny", "other"):
        shutil.copytree(trained / "runs" / "tiny", tmp_path / name)
    with serve(folder=tmp_path) as served:
        page = visit(f"{served.url}/#start", hurry=25)  # a frame each 18 milliseconds
        played = f"{AT}?.startsWith('step 6 ') && {PART.format('play')}.textContent === 'Play'"
        page.wait_for(f"{PART.format('runs')}?.options.length === 2 && {played}")
        page.run(
            "{ const ask = fetch; window.fetch = async (...request) => {"
            "await new Promise((done) => setTimeout(done, 60)); return ask(...request); } }"
        )
        page.run(
            f"shown = []; new MutationObserver(() => shown.push({AT}.match(/[0-9]+/)[0]))"
            f".observe({PART.format('sample-at')}, {{ childList: true }})"
        )
        chosen = PART.format("runs")
        another = f"[...{chosen}.options].find((option) => !option.selected).value"
        page.run(f"{chosen}.value = {another}; {chosen}.dispatchEvent(new Event('change'))")
        page.wait_for("shown.length === 1")  # the last snapshot of the other run
        page.point(PART.format("play"), click=True)
        steps = list(step_files(RunFolder(tmp_path / "tiny").snapshots))
        page.wait_for(f"shown.length > 1 && {played}")
        assert page.run("shown.map(Number)") == [steps[-1], *steps]


def test_training_run_is_followed_and_another_can_be_chosen(
    trained: Path, tmp_path: Path, serve: Serve, visit: Open
) -> None:
    for name in ("tiny", "other"):
        shutil.copytree(trained / "runs" / "tiny", tmp_path / name)
    run = RunFolder(tmp_path / "tiny")
    lines = run.metrics.read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= 2]
    run.metrics.write_text("".join(kept))
    (tmp_path / "other" / "metrics.jsonl").touch()
    run.lock()
    try:
        with serve(folder=tmp_path) as served:
            page = visit(f"{served.url}/#start", width=400, dark=True, hurry=25)
            # the one that trains is chosen
            page.wait_for(f"{STATE}?.startsWith('training: step 2 of 6')")
            run.metrics.write_text("".join(lines))
            page.wait_for(f"{STATE}.startsWith('training: step 6 of 6')")
            run.metrics.write_text("".join(kept))  # as going on from an earlier checkpoint does
            page.wait_for(f"{STATE}.startsWith('training: step 2 of 6')")
            chosen = PART.format("runs")
            page.run(f"{chosen}.value = 'other'; {chosen}.dispatchEvent(new Event('change'))")
            best = json.loads((tmp_path / "other" / "best.json").read_text())["val_loss"]
            page.wait_for(f"{STATE}.startsWith('best validation loss {best:.2f} nats per token')")
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
    finally:
        run.unlock()


def test_first_screen_follows_the_chosen_model_with_its_run(
    trained: Path, tmp_path: Path, serve: Serve, visit: Open
) -> None:
    for name in ("tiny", "other"):
        shutil.copytree(trained / "runs" / "tiny", tmp_path / name)
    shutil.rmtree(tmp_path / "other" / "snapshots")
    (tmp_path / "tiny" / "metrics.jsonl").touch()
    run = RunFolder(tmp_path / "tiny")
    texts = {step: read_snapshot(file) for step, file in step_files(run.snapshots).items()}
    with serve(real_engine, folder=tmp_path) as served:
        page = visit(f"{served.url}/")
        chosen = PART.format("runs")
        shown = "document.querySelector('.story-text')?.textContent"
        model = "document.getElementById('model')"
        choose = "{}.value = '{}'; {}.dispatchEvent(new Event('change'))"
        stages = "document.querySelector('.stages')"
        # the run that was written to last is shown, as it was at each stage
        page.wait_for(f"{model}?.options.length === 2 && !{stages}.hidden")
        page.run(choose.format(model, "other", model))
        page.wait_for(f"{chosen}?.value === 'other' && {stages}.hidden && {shown}.length > 50")
        page.run(choose.format(model, "tiny", model))
        page.wait_for(f"{chosen}.value === 'tiny' && !{stages}.hidden")
        page.point("document.querySelector('.stages button')", click=True)
        first = (texts[0].prompt or "") + texts[0].sample
        page.wait_for(f"{shown} === {json.dumps(first)}")
