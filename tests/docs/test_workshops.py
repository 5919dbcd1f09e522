"""The workshops of the book: what their sentences say of the numbers below them, and that their
checks find the usual mistakes.
"""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import pytest

import gpt
from docs.site.chapters import CHAPTERS, read, tag

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # a page may wait for another's process
PAGES = {path.stem: path for path in CHAPTERS}
MISTAKES = [
    ("class MyAttention", "/ math.sqrt(q.size(-1))", ""),  # scores of another scale
    ("class MyAttention", ".triu(1)", ".triu(2)"),  # the next character is seen
    ("class MyAttention", "softmax(dim=-1)", "softmax(dim=-2)"),
    ("class MyNorm", "+ self.eps", ""),
    ("class MyMLP", "math.sqrt(2)", "1.0"),
    ("class MyBlock", "self.mlp(self.ln_2(x))", "self.mlp(x)"),
    ("class MyGPT", "self.lm_head.weight = self.wte.weight", "pass"),
    ("class MyGPT", "self.lm_head(self.ln_f(x))", "self.lm_head(x)"),
    ("def my_loss", "logits = logits - logits.amax(dim=-1, keepdim=True)", "pass"),
    # pairs of neighbors are turned
    ("class TodaysGPT", "a, b = x.chunk(2, dim=-1)", "a, b = x[..., ::2], x[..., 1::2]"),
    ("class TodaysGPT", "b * cos + a * sin", "b * cos - a * sin"),
]
"""A definition in a solution, a part of it, and a mistake in place of that part."""


def outputs_of(chapter: nbformat.NotebookNode) -> str:
    """Return all that the cells of a chapter have printed."""
    outputs = [output for cell in chapter.cells for output in cell.get("outputs", [])]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def numbers(pattern: str, text: str) -> list[float]:
    """Return the number in the only group of a pattern, wherever it is found."""
    found = [float(number) for number in re.findall(pattern, text, re.MULTILINE)]
    assert found, f"no {pattern} in {text}"
    return found


def sources_without_training(definition: str, part: str, replacement: str) -> Iterator[str]:
    """Yield the cells of the capstone that train nothing, with a part of a solution replaced."""
    for cell in read(PAGES["your_own_gpt"]).cells:
        source = cell.source
        trains = any(sign in source for sign in ("def train(", "by_mine", "written = gpt."))
        if cell.cell_type != "code" or tag(cell) == "exercise" or trains:
            continue
        if tag(cell) == "solution" and definition in source:
            assert part in source, f"{part!r} is not in the solution of {definition}"
            source = source.replace(part, replacement)
        yield source


def run_capstone(definition: str, part: str, replacement: str) -> None:
    """Run the solutions and the checks of the capstone, with a part of a solution replaced."""
    tokenizer = gpt.CharTokenizer(map(chr, range(32, 132)))
    # The cells that are left out have prepared a text, of which the last check reads a window.
    train = (np.arange(1000) % tokenizer.vocab_size).astype(np.uint8)
    names: dict[str, Any] = {"tokenizer": tokenizer, "dataset": SimpleNamespace(train=train)}
    for source in sources_without_training(definition, part, replacement):
        exec(source, names)


def test_capstone_accepts_its_solutions() -> None:
    run_capstone("class MyGPT", "self.ln_f", "self.ln_f")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake[0]}, {mistake[1]}")
def test_capstone_finds_a_mistake(mistake: tuple[str, str, str]) -> None:
    with pytest.raises(AssertionError):
        run_capstone(*mistake)


def test_capstone_trains_like_the_package(executed) -> None:  # type: ignore[no-untyped-def]
    printed = outputs_of(executed(PAGES["your_own_gpt"]))
    rows = re.findall(r"^ *\d+ +([\d.]+) +([\d.]+) bits$", printed, re.MULTILINE)
    assert len(rows) == 6
    for theirs, mine in rows:
        assert float(mine) == pytest.approx(float(theirs), abs=0.01)


def test_byte_pairs_are_those_of_the_library(executed) -> None:  # type: ignore[no-untyped-def]
    printed = outputs_of(executed(PAGES["byte_pairs"]))
    assert re.search(r"^256 merges and [\d,]+ ids are the same$", printed, re.MULTILINE)
    characters, few, many, longer = numbers(r"^(?:characters|byte pairs).* ([\d.]+)$", printed)
    assert many < few < characters
    assert many < longer < characters


def test_sweep_shows_what_the_page_says(executed) -> None:  # type: ignore[no-untyped-def]
    printed = outputs_of(executed(PAGES["scaling"]))
    low_rate = numbers(r"^ +(?:16|64|128) +([\d.]+) +[\d.]+ +[\d.]+$", printed)
    high_rate = numbers(r"^ +(?:16|64|128) +[\d.]+ +[\d.]+ +([\d.]+)$", printed)
    assert low_rate == sorted(low_rate, reverse=True)
    assert low_rate[0] > high_rate[0]  # the narrow model wants a high rate
    assert low_rate[-1] < high_rate[-1]
    means = numbers(r"^ +\d+ +[\d,]+(?: +[\d.]+){3} +([\d.]+) +[\d.]+$", printed)
    assert means == sorted(means, reverse=True)
    widths = numbers(r"^\de[+]\d+ operations: (\d+)$", printed)
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_gpt2_is_the_one_of_transformers(executed) -> None:  # type: ignore[no-untyped-def]
    printed = outputs_of(executed(PAGES["gpt2"]))
    assert "transformers: logits differ by at most" in printed
    assert "and the ids of a text are the same" in printed
    assert "transformer.h.0.attn.c_attn.weight   (96, 288)" in printed
    scores = re.findall(r"^block \d: +([\d. ]+)$", printed, re.MULTILINE)
    assert len(scores) == 3
    assert max(float(score) for row in scores for score in row.split()) < 0.2  # no head copies


def test_patients_show_their_symptoms(executed) -> None:  # type: ignore[no-untyped-def]
    printed = outputs_of(executed(PAGES["clinic"]))
    nothing, frequencies, pairs = numbers(
        r"^(?:knowing nothing|frequencies|pairs): +([\d.]+)", printed
    )
    (healthy,) = numbers(r"last check ([\d.]+) bits$", printed.partition("\nnorms")[0])
    assert healthy < pairs < frequencies < nothing
    assert numbers(r"^steps 200 to 219: ([\d.]+) bits", printed)[0] > pairs  # 1 is stuck
    assert numbers(r"^last check: ([\d.]+) bits", printed)[0] < 0.2  # 2 copies
    assert numbers(r"^patient 3 on another page: ([\d.]+)", printed)[0] > healthy + 1
    first = numbers(r"^ 240 +([\d.]+) +[\d.]+ +[\d.]+", printed)[0]
    colleague = numbers(r"^ 240 +[\d.]+ +[\d.]+ +([\d.]+)", printed)[0]
    assert first > colleague + 0.3  # 4 has a bad start
    evaluations = numbers(r"^evaluation \d: ([\d.]+)", printed)
    assert len(set(evaluations)) == 3  # 5 drops parts at random
    treated = numbers(r"^after the treatment, evaluation \d: ([\d.]+)", printed)
    assert len(set(treated)) == 1
    assert treated[0] < min(evaluations)
    rising = [numbers(rf"^ *{step} +([\d.]+) +[\d.]+$", printed)[-1] for step in (60, 120, 240)]
    assert rising == sorted(rising)  # 6 goes back to knowing nothing
    assert numbers(r"^step 60: ([\d.]+) bits$", printed)[0] < 0.2
