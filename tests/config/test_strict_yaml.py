"""The YAML that a configuration may be written in."""

from pathlib import Path
from typing import Any

import pytest

from gpt.config.strict_yaml import YAMLSyntaxError, dump, parse, parse_value

WORDS = [
    "yes",
    "no",
    "on",
    "off",
    "y",
    "n",
    "Yes",
    "1e",
    "e5",
    "0x1F",
    "0o17",
    "1:30",
    "2024-01-01",
    "1.2.3",
    ".",
]
SCALARS: dict[str, Any] = {
    "3e-4": 3e-4,
    "1e-3": 1e-3,
    "1E5": 1e5,
    "-2.5e+3": -2500.0,
    ".5": 0.5,
    "5.": 5.0,
    "+.5": 0.5,
    "0": 0,
    "-0": 0,
    "+7": 7,
    "1_000": 1000,
    "1_000.5": 1000.5,
    ".inf": float("inf"),
    "-.inf": float("-inf"),
    "08": 8.0,
    "010": 10.0,  # never octal
    "true": True,
    "False": False,
    "TRUE": True,
    "null": None,
    "~": None,
    "": None,
    **{word: word for word in WORDS},
}


@pytest.mark.parametrize(("written", "value"), SCALARS.items())
def test_scalar_is_what_people_mean_by_it(written: str, value: Any) -> None:
    for read in (parse(f"a: {written}\n").data["a"], parse_value(written)):
        assert read == value
        assert type(read) is type(value)


def test_lines_of_keys_and_of_their_repetitions_are_known() -> None:
    document = parse(
        "# first\nmodel:\n\n  n_layer: 2  # here\n  n_head: 2\nrun: {seed: 1,\n  name: x}\n"
    )
    sections = {("model",): 2, ("model", "n_layer"): 4, ("model", "n_head"): 5}
    assert document.lines == {**sections, ("run",): 6, ("run", "seed"): 6, ("run", "name"): 7}
    repeated = parse("a:\n  b: 1\n  b: 2\n  c: 3\n  b: 4\n")
    assert repeated.duplicates == [(("a", "b"), 3), (("a", "b"), 5)]
    assert repeated.lines["a", "b"] == 2


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("---\n", 2, "expected 'section: ...' lines"),
        ("\n- a\n- b\n", 2, "expected 'section: ...' lines"),
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "expected ',' or ']'"),
        ("a: 1\n\tb: 2\n", 2, "cannot start any token"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("a: 1\nb: 'x\n", 3, "unexpected end of stream"),
        ("a: 1\n? [x, y]\n: 2\n", 2, "unhashable key"),
        ("a: 1\nb: !!int '3'\n", 2, "a tag is not allowed here"),
        ("a: &x {b: *x}\n", 1, "an alias is not allowed here"),
        ("a: \x01\n", None, "special characters are not allowed"),
        ("a: " + "[" * 2000, None, "nested too deeply"),
        ("a: " + "{a: " * 2000 + "}" * 2000, None, "nested too deeply"),
        ("a: " + "1" * 5000 + "\n", None, "too many digits"),
        ('a: "\\U00110000"', None, "names no character"),
        ('a: "\\UFFFFFFFF"', None, "names no character"),
        ("a: b\n" + "#" * (1 << 20), None, "more than 1,048,576 characters"),
    ],
    ids=range(16),
)
def test_other_yaml_is_refused_with_its_line(text: str, line: int | None, problem: str) -> None:
    with pytest.raises(YAMLSyntaxError) as caught:
        parse(text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.line == line


def test_python_tag_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    """A file with such a tag may come with somebody else's checkpoint."""
    for tag in (
        "!!python/object/apply:pathlib.Path.touch [{}]",
        "!!python/object/new:os.system ['touch {}']",
    ):
        written = tag.format(tmp_path / "was-run")
        for read, text in ((parse, f"run:\n  name: {written}\n"), (parse_value, written)):
            with pytest.raises(YAMLSyntaxError, match="a tag is not allowed here"):
                read(text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value",
    ["3e-4", "1e5", "08", "007", "1_0", ".5", "yes", "true", "null", "~", "",
     "0x1F", "0o7", "1:30", "2024-01-01", "=", "<<", "a: b", "# a", " a ",
     "\n", "\r\n", "\x85", "\u2028", "\ufeff", "é𝄞", "*a", "!a", "- a", "x" * 300,
     1e-5, 1e22, 1e-300, 0.1, 10**18, 0, True, None, ["a", "1e5"], []],
)  # fmt: skip
def test_dumped_value_reads_as_the_same_of_the_same_type(value: Any) -> None:
    read = parse(dump({"a": {"b": value}})).data["a"]["b"]
    assert read == value
    assert type(read) is type(value)
