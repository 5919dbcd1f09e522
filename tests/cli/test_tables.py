import argparse
import json

import pytest

from gpt.cli.tables import add_format_options, human_bytes, human_count, print_view
from gpt.inspection.rendering.tables import Table

TABLE = Table("Fruit", ("kind", "count"), [("apple", "1"), ("  fig", "1,000")], "<>", "Eat them.")


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_format_options(parser)
    return parser.parse_args(options)


def test_a_view_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_view(parse(), "A title", lambda: [TABLE], {})
    assert capsys.readouterr().out == (
        "A title\n\nFruit\nkind   count\n-----  -----\napple      1\n  fig  1,000\nEat them.\n"
    )
    print_view(parse("--markdown"), "A title", lambda: [TABLE], {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "## A title"
    assert lines[2] == "**Fruit**"
    assert lines[-1] == "Eat them."
    assert lines[3] == lines[-2] == ""  # a table stands between empty lines


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> list[Table]:
        raise AssertionError("no table is printed")

    print_view(parse("--json"), "A title", fail, {"total": 3})
    assert json.loads(capsys.readouterr().out) == {"total": 3}


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (7, "7"), (0.5, "0.50"), (999, "999"), (1000, "1.00 k"), (124_439_808, "124 M"), (999_999, "1.00 M")],
)
def test_a_count_has_three_digits(number: float, text: str) -> None:
    assert human_count(number) == text


def test_a_count_may_have_a_unit() -> None:
    assert human_count(312e12, "FLOP") == "312 TFLOP"
    assert human_count(2000e9, "B") == "2.00 TB"
    assert human_count(5, "B") == "5 B"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (5, "5 B"),
        (1023, "1.00 KiB"),
        (1024, "1.00 KiB"),
        (1_572_864, "1.50 MiB"),
        (10 << 20, "10.0 MiB"),
        (475 << 20, "475 MiB"),
        (5 << 50, "5,120 TiB"),
    ],
)
def test_bytes_have_three_digits(number: int, text: str) -> None:
    assert human_bytes(number) == text
