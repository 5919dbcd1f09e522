"""A list from the command line: trained on by its name, sampled and evaluated in whole items."""

import json
from pathlib import Path

import pytest

from cli.conftest import Call, Refuse
from gpt.cli.sample_items import KNOWN
from gpt.config.sources import load_config

FIRSTS = ("Bel", "Dor", "Kam", "Lin", "Mar", "Nol", "Pet", "Ros", "Sim", "Tor")
MIDDLES = ("a", "e", "i", "o", "u", "an", "en", "in", "on", "un")
LASTS = ("bert", "dina", "fred", "gard", "mund")
NAMES = sorted(first + middle + last for first in FIRSTS for middle in MIDDLES for last in LASTS)
QUICK = "train.max_steps=4 train.eval_interval=2 model.n_layer=1"


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of names.txt, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def trained_on_names(names: Path, run: Call) -> Path:
    run(f"train names.txt {QUICK}")
    return names


def test_list_is_recognized_and_said_in_one_line(names: Path, run: Call) -> None:
    err = run(f"train names.txt {QUICK}").err
    assert err.count("names.txt: a list, each line of which is read as an item") == 1
    config = load_config(Path("names.yaml")).config
    assert config.data.items == "lines"
    assert config.model.block_size == 64
    saved = load_config(Path("runs/names/config.yaml")).config
    assert saved.sample.begin_id == saved.sample.end_id == 0  # the line end is the first character


def test_list_can_be_read_as_running_text(names: Path, run: Call) -> None:
    err = run(f"train names.txt data.items=none {QUICK}").err
    assert "read as an item" not in err
    assert load_config(Path("names.yaml")).config.data.items == "none"


@pytest.mark.usefixtures("trained_on_names")
def test_samples_are_twenty_whole_items(run: Call) -> None:
    lines = run("sample --checkpoint names").out.splitlines()
    assert len(lines) == 20
    assert len(run("sample --checkpoint names --num-samples 3").out.splitlines()) == 3


@pytest.mark.usefixtures("trained_on_names")
def test_items_of_the_training_text_are_marked_and_left_out(
    run: Call, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run("sample --checkpoint names --seed 1").out.splitlines()
    assert KNOWN not in plain  # an empty sample is not in the training text
    known = frozenset({plain[3], plain[5]})
    monkeypatch.setattr("gpt.checkpoint.corpus.training_items", lambda dataset: known)
    marked = run("sample --checkpoint names --seed 1").out.splitlines()
    assert [line.endswith(KNOWN) for line in marked] == [line in known for line in plain]
    rows = run("sample --checkpoint names --seed 1 --json").rows
    assert [row["known"] for row in rows] == [line in known for line in plain]
    new = run("sample --checkpoint names --seed 1 --new --num-samples 4").out.splitlines()
    assert new == [line for line in plain if line and line not in known][:4]


@pytest.mark.usefixtures("trained_on_names")
def test_model_that_only_repeats_its_text_has_no_new_items(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Everything(frozenset[str]):
        def __contains__(self, item: object) -> bool:
            return True

    monkeypatch.setattr("gpt.checkpoint.corpus.training_items", lambda dataset: Everything())
    error = refuse("sample --checkpoint names --seed 1 --new --num-samples 1")
    assert "0 new items in 100 samples; raise --temperature" in error


def test_evaluations_of_a_part_read_whole_items(names: Path, run: Call) -> None:
    run(f"train names.txt {QUICK} train.eval_max_tokens=1")
    row = json.loads(Path("runs/names/metrics.jsonl").read_text().splitlines()[-1])
    assert row["val/loss"] > 0


@pytest.mark.usefixtures("trained_on_names")
def test_item_begins_with_its_prompt(run: Call) -> None:
    rows = run("sample --checkpoint names --prompt Bel --num-samples 2 --json").rows
    assert [row["prompt"] for row in rows] == ["Bel", "Bel"]
    lines = run("sample --checkpoint names --prompt Bel --num-samples 2").out.splitlines()
    assert [line.removesuffix(KNOWN) for line in lines] == ["Bel" + row["text"] for row in rows]


@pytest.mark.usefixtures("trained_on_names")
def test_evaluation_says_the_loss_of_an_item_and_what_is_new(run: Call) -> None:
    found = run("evaluate --checkpoint names").json
    assert found["items"] == 50
    assert found["loss_per_item"] == pytest.approx(found["loss"] * found["tokens"] / 50)
    assert found["samples"] == 1000
    assert 900 < found["new_samples"] <= 1000


def test_only_new_samples_are_for_lists(here: Path, refuse: Refuse) -> None:
    assert "--new is for lists" in refuse("sample --prompt It --new")


def test_sorted_text_gets_one_warning(names: Path, run: Call) -> None:
    lines = [f"{name} met {other} on the way to the old mill" for name in NAMES for other in LASTS]
    Path("sorted.txt").write_text("\n".join(lines), encoding="utf-8")
    err = run(f"train sorted.txt data.items=none {QUICK}").err
    assert err.count("a sorted or grouped text") == 1


@pytest.mark.usefixtures("trained_on_names")
def test_explained_text_begins_with_the_mark_of_items(run: Call) -> None:
    found = run("explain attention --checkpoint names --prompt Bel --json").json
    assert found["labels"] == ["⏎", "B", "e", "l"]


def test_order_of_a_training_on_items_is_their_own(names: Path, run: Call) -> None:
    err = run(f"train names.txt data.order=shuffled {QUICK}").err
    assert err.count("data.order: shuffled has no effect with data.items: lines, which have") == 1


@pytest.mark.usefixtures("trained_on_names")
def test_protocol_without_effect_on_items_is_refused(run: Call, refuse: Refuse) -> None:
    for options in ("--protocol sliding", "--protocol sliding --stride 4"):
        error = refuse(f"evaluate --checkpoint names {options}")
        assert "protocol sliding has no effect with data.items: lines; each item is" in error
    run("evaluate --checkpoint names --protocol sliding --text-file names.txt")


@pytest.mark.usefixtures("trained_on_names")
def test_model_of_items_warns_that_a_file_is_read_as_running_text(run: Call) -> None:
    (warning,) = (
        line
        for line in run("evaluate --checkpoint names --text-file names.txt").err.splitlines()
        if line.startswith("warning: ")
    )
    assert "(data.items: lines), but names.txt is scored as running text" in warning
    assert "without --text-file each item of the corpus is evaluated by itself" in warning
    assert "warning: " not in run("evaluate --checkpoint names").err
