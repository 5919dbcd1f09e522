"""The view of runs as a person uses them, in a browser."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from browser import Page
from gpt.checkpoint import RunFolder
from http_server import Serve
from patience import PATIENCE
from tiny import CORPUS

PART = "document.querySelector('[data-part={}]')"
LINE = "(document.querySelector('[data-part=loss] .series.{}')?.getAttribute('d') ?? '').split(/[ML]/).length - 1"
CHANGE = "{0}.value = '{1}'; {0}.dispatchEvent(new Event('change'))"
READOUT = "document.querySelector('[data-part=loss] .readout').textContent"
Open = Callable[..., Page]


def part(page: Page, name: str) -> str:
    return page.run(PART.format(name) + ".textContent")


@pytest.fixture
def two_runs(trained: Path, tmp_path: Path) -> Path:
    """A runs folder with a finished run, `tiny`, and a longer one, `other`."""
    folder = tmp_path / "runs"
    shutil.copytree(trained / "runs" / "tiny", folder / "tiny")
    shutil.copytree(trained / "runs" / "tiny", folder / "other")
    rows = [
        {"step": step, "train/loss": 4 / step, "train/learning_rate": 0.01, "speed/seconds": step}
        | {"speed/tokens_per_second": 1000}
        for step in range(1, 5001)
    ]
    (folder / "other" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_runs_are_plotted_over_each_other_and_read_by_mouse_and_keys(two_runs: Path, serve: Serve, visit: Open) -> None:
    with serve(folder=two_runs) as served:
        page = visit(f"{served.url}/#runs")
        page.wait_for(f"{PART.format('list')}?.children.length === 2")
        page.run("[...document.querySelectorAll('.run')].find((run) => run.textContent.includes('other')).id = 'other'")
        page.run("[...document.querySelectorAll('.run')].find((run) => run.textContent.includes('tiny')).id = 'tiny'")
        page.run("document.querySelectorAll('.run input:checked').forEach((box) => box.click())")
        page.wait_for(f"{PART.format('samples')}.hidden")  # the page is shorter then, and may scroll
        page.point("document.querySelector('#tiny input')", click=True)
        page.wait_for(f"{LINE.format('training')} === 6")
        assert page.run(LINE.format("validation")) == 3
        assert page.run("document.querySelectorAll('[data-part=loss] .dot').length") == 3
        best = json.loads((two_runs / "tiny" / "best.json").read_text())["val_loss"]
        assert f"{best:.4f}" in page.run("document.querySelector('#tiny').textContent")
        samples = sorted((two_runs / "tiny" / "samples").iterdir())
        page.wait_for(f"{PART.format('sample-text')}.textContent === {json.dumps(samples[-1].read_text()[:-1])}")
        page.run(f"{PART.format('sample-step')}.focus()")
        page.press("ArrowLeft")
        page.wait_for(f"{PART.format('sample-text')}.textContent === {json.dumps(samples[-2].read_text()[:-1])}")
        assert part(page, "sample-at") == "step 3"

        page.point("document.querySelector('#other input')", click=True)
        page.wait_for("document.querySelectorAll('[data-part=loss] .series.training').length === 2")
        assert part(page, "thinned") == "Points of the training loss that are plotted: other: one of 5."
        page.run("document.querySelector('[data-part=loss] svg').focus()")
        page.press("ArrowLeft")
        assert "step 4,996" in page.run(READOUT)
        assert "other training 0.0008" in page.run(READOUT)
        page.point("document.querySelector('[data-part=loss] svg')")
        page.wait_for(f"{READOUT}.includes('training 0.001')")
        page.point(PART.format("log"), click=True)
        ticks = "[...document.querySelectorAll('[data-part=loss] .chart-tick')].map((tick) => tick.textContent)"
        page.wait_for(f"{ticks}.includes('0.01')")
        page.run(CHANGE.format(PART.format("across"), "seconds"))
        page.wait_for(
            "document.querySelector('[data-part=loss] .chart-axis').textContent.startsWith('time of training')"
        )


def test_a_run_is_followed_while_it_trains_and_from_where_it_went_on(two_runs: Path, serve: Serve, visit: Open) -> None:
    run = RunFolder(two_runs / "tiny")
    lines = run.metrics.read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= 2]
    run.metrics.write_text("".join(kept))
    run.lock()
    try:
        with serve(folder=two_runs) as served:
            page = visit(f"{served.url}/#runs", width=400, dark=True, hurry=25)
            page.wait_for(f"{LINE.format('training')} === 2")  # the one that trains is chosen
            assert "training: step" in page.run("document.querySelector('.run-facts.live').textContent")
            run.metrics.write_text("".join(lines))
            page.wait_for(f"{LINE.format('training')} === 6")
            run.metrics.write_text("".join(kept))  # as going on from an earlier checkpoint does
            page.wait_for(f"{LINE.format('training')} === 2")
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
    finally:
        run.unlock()


def test_no_two_runs_are_drawn_alike(trained: Path, tmp_path: Path, serve: Serve, visit: Open) -> None:
    for number in range(20):
        shutil.copytree(trained / "runs" / "tiny", tmp_path / f"run {number}")
    lines = "[...document.querySelectorAll('{}')].map((item) => getComputedStyle(item)).map((style) => {})"
    with serve(folder=tmp_path) as served:
        page = visit(f"{served.url}/#runs")
        page.wait_for("document.querySelectorAll('.run').length === 20")
        page.run("document.querySelectorAll('.run input:not(:checked)').forEach((box) => box.click())")
        page.wait_for("document.querySelectorAll('[data-part=loss] .series.validation').length === 20")
        for theme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": theme}]
            page.send("Emulation.setEmulatedMedia", {"features": features})
            for of, look in (
                (".series.validation", "style.stroke + style.strokeDasharray"),
                (".run .swatch", "style.backgroundColor + style.backgroundImage"),
            ):
                assert len(set(page.run(lines.format(of, look)))) == 20
            assert len(set(page.run(lines.format(".series.validation", "style.stroke")))) >= 8


def test_a_run_is_looked_at_along_a_slider(trained: Path, serve: Serve, visit: Open) -> None:
    at = PART.format("sample-at") + "?.textContent"
    with serve(folder=trained / "runs") as served:
        page = visit(f"{served.url}/#runs?step=x", hurry=25)
        page.wait_for(f"{at} === 'step 6'", PATIENCE)  # by itself
        page.wait_for(f"{LINE.format('training')} === 6 && {LINE.format('validation')} === 3", PATIENCE)
        colors = "['smooth', 'validation'].map((kind) => getComputedStyle(document.querySelector('.' + kind)).stroke)"
        assert len(set(page.run(colors))) == 2
        names = "[...document.querySelectorAll('.series-name')].map((name) => name.textContent).sort().join()"
        assert page.run(names) == "training,validation"
        drawn = PART.format("mapped") + "?.dataset.step"
        page.wait_for(f"{drawn} === '6'", PATIENCE)
        assert page.run("document.querySelectorAll('.map-token').length") == len(set(CORPUS))
        assert page.run("document.querySelector('.growth-heads').width") == 2 * 17 - 1
        where = "document.querySelector('.map-token').style.transform"
        last = json.dumps(page.run(where))
        page.run(f"{PART.format('map')}.focus()")
        page.press("ArrowRight")
        assert page.run("document.querySelectorAll('.map-token.near').length") == 4
        page.run(f"{PART.format('sample-step')}.focus()")
        for _ in range(4):
            page.press("ArrowLeft")
        page.wait_for(f"{at} === 'step 0' && {drawn} === '0' && {where} !== {last}", PATIENCE)
        page.point(PART.format("play"), click=True)
        page.wait_for(f"{at} === 'step 6' && {where} === {last}", PATIENCE)
        page.run("location.hash = '#runs?step=5'")
        page.wait_for(f"{at} === 'step 3'", PATIENCE)


def test_what_comes_last_is_shown_and_what_was_replaced_is_not(
    trained: Path, tmp_path: Path, serve: Serve, visit: Open
) -> None:
    shutil.copytree(trained / "runs" / "tiny", tmp_path / "watched")
    at, text = PART.format("sample-at") + "?.textContent", PART.format("sample-text") + "?.textContent"
    dots = "document.querySelectorAll('[data-part=loss] .dot').length"
    with serve(folder=tmp_path) as served:
        run = RunFolder(tmp_path / "watched")
        lines = run.metrics.read_text().splitlines(keepends=True)
        sample = run.samples / "step-000006.txt"
        written = sample.read_text()
        sample.unlink()  # as it is while the last evaluation lasts
        run.metrics.write_text("".join(lines[:-1]))
        run.lock()
        try:
            page = visit(f"{served.url}/#runs", hurry=25)
            page.wait_for(f"{at} === 'step 6' && {dots} === 2", PATIENCE)
            sample.write_text(written)
            page.wait_for(f"{text} === {json.dumps(written[:-1])}", PATIENCE)  # of the step that is shown already
        finally:
            run.metrics.write_text("".join(lines))
            run.unlock()
        page.wait_for(f"{dots} === 3", PATIENCE)  # with the last look, after the run's end
        whole = run.snapshot(6).read_bytes()
        run.snapshot(6).write_bytes(b"damaged")
        page.run("location.reload()")
        page.wait_for(f"{PART.format('failed')}?.textContent.includes('damaged')", PATIENCE)
        assert page.run(text) == written[:-1]
        run.snapshot(6).write_bytes(whole)
        page.point(PART.format("play"), click=True)
        page.run("document.querySelectorAll('.run input:checked').forEach((box) => box.click())")
        page.wait_for(f"{PART.format('samples')}.hidden && {PART.format('play')}.textContent === 'Play'", PATIENCE)
        assert all("/snapshots/6" in line for line in page.console)  # which the browser reports, too
        page.console.clear()
