"""The picture of a text, and what a page says about a model."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from export.node import SOURCES, run_page
from gpt.checkpoint import Loaded, load_trained
from gpt.config.composing import compose_config
from gpt.config.sources import load_config
from gpt.extras.about import About, about_loaded, command_of, corpus_name
from gpt.extras.export import card
from gpt.extras.export.card import card_pieces, color_of, place_pieces, render_card
from gpt.extras.inspection.views.surprisal import surprisal
from gpt.extras.snapshot_text import TEXT_CHARACTERS
from gpt.generation.generator import generate
from gpt.system.errors import GPTError
from tiny import CORPUS


@pytest.fixture
def loaded(trained: Path) -> Loaded:
    return load_trained(trained / "runs" / "tiny", trained / "runs", torch.device("cpu"))


def test_card_has_the_text_of_the_model_and_its_surprise(loaded: Loaded) -> None:
    prompt = "It was the"
    pieces = list(card_pieces(loaded, prompt))
    sample = loaded.config.sample
    text = generate(
        loaded.model,
        loaded.tokenizer,
        prompt,
        max_new_tokens=TEXT_CHARACTERS,
        temperature=sample.temperature,
        seed=sample.seed,
    )
    assert "".join(piece.text for piece in pieces).rstrip("\n") == (prompt + text).rstrip("\n")
    assert [piece.is_given for piece in pieces[:11]] == [True] * 10 + [False]
    ids = torch.from_numpy(loaded.tokenizer.encode(prompt + text[:3]))
    expected = surprisal(loaded.model, ids).bits.tolist()
    assert pieces[0].bits is None
    assert [piece.bits for piece in pieces[1 : len(ids)]] == pytest.approx(expected, abs=1e-4)


def test_card_is_a_picture_of_the_size_that_other_sites_show(
    loaded: Loaded, tmp_path: Path
) -> None:
    content = render_card(loaded)
    assert content == render_card(loaded)
    (tmp_path / "card.png").write_bytes(content)
    with Image.open(tmp_path / "card.png") as image:
        assert image.size == (1200, 630)
        colors = image.convert("RGB").getcolors(1 << 24)
    assert max(count for count, _ in colors) > 1200 * 630 / 3  # white
    assert len(colors) > 100


def test_missing_matplotlib_is_said_in_one_line(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(GPTError, match=r"pip install 'glassgpt\[plot\]'"):
        render_card(loaded)


def test_colors_are_those_of_the_pages() -> None:
    source = (SOURCES / "colors.js").read_text(encoding="utf-8")
    (ramp,) = re.findall(r'LIGHT_SURPRISE = toRamp\(\s*"([^"]+)"\s*\)', source)
    assert ramp.replace("#", "").split() == card.RAMP
    for bits in (0.0, 0.3, 4.0, 7.9, 30.0):
        code = f"""
        globalThis.matchMedia = () => ({{ matches: false, addEventListener() {{}} }});
        return colorOfBits({bits});
        """
        found = run_page("", code)
        assert [round(255 * channel) for channel in color_of(bits)] == pytest.approx(found, abs=1)


def test_pieces_are_placed_in_lines_that_a_card_has_room_for() -> None:
    def place(*texts: str) -> list[tuple[str, int, int]]:
        pieces = [card.Piece(text, None, False) for text in texts]
        return [(piece.text, column, row) for piece, column, row in place_pieces(iter(pieces))]

    assert place("\n", "a", "b", "\n", "c") == [("a", 0, 0), ("b", 1, 0), ("c", 0, 1)]
    assert place("word", "\n\n", "two\nlines") == [("word", 0, 0), ("two", 0, 2), ("lines", 0, 3)]
    columns = int((card.WIDTH - 2 * card.MARGIN) / card.CELL)
    wide = place(*["ab"] * columns)
    assert max(column for _, column, _ in wide) == columns // 2 * 2 - 2
    assert len(place(*["a\n"] * 100)) == (card.HEIGHT - 3 * card.MARGIN) // card.LINE


def test_about_says_what_the_run_learned_from_and_how_well(loaded: Loaded) -> None:
    about = about_loaded(loaded)
    assert about.parameters == sum(parameter.numel() for parameter in loaded.model.parameters())
    assert (about.corpus, about.characters) == ("corpus.txt", len(CORPUS) * 30)
    assert about.headline.startswith("A computer learned to write from corpus.txt in ")
    assert about.choices == pytest.approx(2.718281828 ** loaded.state["val_loss"])
    assert "processor core" in (about.hardware or "")
    assert "data.path=corpus.txt" in (about.command or "")
    train = loaded.config.train.model_copy(update={"init_from": "other"})
    tuned_config = loaded.config.model_copy(update={"train": train})
    tuned = Loaded(loaded.model, loaded.tokenizer, tuned_config, loaded.folder, loaded.state)
    assert about_loaded(tuned).headline == "A computer learned to write from corpus.txt"
    imported = Loaded(loaded.model, loaded.tokenizer, loaded.config, loaded.folder, {"step": 0})
    assert about_loaded(imported) == About(about.parameters, "character", about.vocab_size)
    assert about_loaded(imported).headline == f"{about.parameters:,} numbers that learned to write"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "9 numbers."),
        ({"corpus": "a.txt"}, "9 numbers learned from a.txt."),
        (
            {"corpus": "b", "characters": 1_115_394, "seconds": 89.6, "hardware": "2 cores"},
            "9 numbers learned from 1.1 million characters of b in 90 seconds on 2 cores.",
        ),
        (
            {"corpus": "b", "characters": 999, "seconds": 0.2},
            "9 numbers learned from 999 characters of b in 1 second.",
        ),
        ({"corpus": "b", "characters": 464_501, "seconds": 7300.0}, "460 thousand|2 hours"),
        ({"corpus": "b", "characters": 99_600, "seconds": 150.0}, "100 thousand|3 minutes"),
        ({"corpus": "b", "characters": 2_000_000_000, "seconds": 1.0}, "2 billion|1 second"),
    ],
)
def test_pages_and_pictures_say_the_same_of_a_model(
    values: dict[str, object], expected: str
) -> None:
    about = About(parameters=9, token="character", vocab_size=3, **values)  # type: ignore[arg-type]
    for part in expected.split("|"):
        assert part in about.sentence
    fields = json.dumps({**about.__dict__, "vocab_size": 3})
    code = f"return describeMaking({{ about: {fields} }});"
    assert run_page("", code) == about.sentence


def test_command_is_that_of_the_recipe_and_names_no_folder() -> None:
    def command(recipe: str, **keywords: object) -> str | None:
        return command_of(compose_config(recipe, keywords).config)

    assert command("shakespeare") == "gpt train --config shakespeare"
    place = {"name": "other", "dir": "/home/ada/runs"}
    assert command("shakespeare_sprint", run=place) == "gpt train --config shakespeare_sprint"
    files = {"source": "file", "path": ["/home/ada/a.txt", "/home/ada/b c.txt"]}
    changed = command("quickstart", data=files, optim={"decay_steps": None, "betas": [0.9, 0.98]})
    assert changed == (
        "gpt train --config quickstart data.source=file 'data.path=[a.txt, b c.txt]' "
        "optim.decay_steps=null 'optim.betas=[0.9, 0.98]'"
    )
    config = compose_config("quickstart", {"data": files}).config
    assert corpus_name(config) == "a.txt, b c.txt"
    changed_text = changed.removeprefix("gpt train --config quickstart ")
    again = load_config("quickstart", shlex.split(changed_text)).config
    assert again.data.path == ("a.txt", "b c.txt")
    assert again.optim.decay_steps is None
