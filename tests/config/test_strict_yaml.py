"""The YAML that a configuration may be written in."""

from pathlib import Path
from typing import Any

import pytest

from gpt.config.strict_yaml import YAMLSyntaxError, dump, parse, parse_value

NUMBERS = [
    ("3e-4", 3e-4),
    ("1e-3", 1e-3),
    ("1E5", 1e5),
    ("-2.5e+3", -2500.0),
    (".5", 0.5),
    ("5.", 5.0),
    ("+.5", 0.5),
    ("0", 0),
    ("-0", 0),
    ("+7", 7),
    ("1_000", 1000),
    ("1_000.5", 1000.5),
    (".inf", float("inf")),
    ("-.inf", float("-inf")),
    ("08", 8.0),
    ("010", 10.0),  # never octal
]
WORDS = ["yes", "no", "on", "off", "y", "n", "Yes", "1e", "e5", "0x1F", "0o17", "1:30", "2024-01-01", "1.2.3", "."]


@pytest.mark.parametrize(("written", "value"), NUMBERS)
def test_a_number_is_what_people_mean_by_it(written: str, value: float) -> None:
    read = parse(f"a: {written}\n").data["a"]
    assert read == value
    assert type(read) is type(value)
    assert parse_value(written) == value


@pytest.mark.parametrize("word", WORDS)
def test_a_word_stays_a_word(word: str) -> None:
    assert parse(f"a: {word}\n").data == {"a": word}
    assert parse_value(word) == word


@pytest.mark.parametrize(
    ("written", "value"),
    [("true", True), ("False", False), ("TRUE", True), ("null", None), ("~", None), ("", None)],
)
def test_truth_and_nothing_have_few_spellings(written: str, value: bool | None) -> None:
    assert parse(f"a: {written}\n").data["a"] is value
    assert parse_value(written) is value


def test_every_key_has_its_line() -> None:
    document = parse("# first\nmodel:\n\n  n_layer: 2  # here\n  n_head: 2\nrun: {seed: 1,\n  name: x}\n")
    assert document.lines == {
        ("model",): 2,
        ("model", "n_layer"): 4,
        ("model", "n_head"): 5,
        ("run",): 6,
        ("run", "seed"): 6,
        ("run", "name"): 7,
    }


def test_a_key_that_stands_three_times_is_told_twice_with_each_line() -> None:
    document = parse("a:\n  b: 1\n  b: 2\n  c: 3\n  b: 4\n")
    assert document.duplicates == [(("a", "b"), 3), (("a", "b"), 5)]
    assert document.lines["a", "b"] == 2


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing but a comment\n", "\ufeff"])
def test_a_text_without_keys_is_an_empty_mapping(text: str) -> None:
    assert parse(text).data == {}


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
    ],
)
def test_what_is_not_such_yaml_is_refused_with_its_line(text: str, line: int | None, problem: str) -> None:
    with pytest.raises(YAMLSyntaxError) as caught:
        parse(text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.line == line


@pytest.mark.parametrize("value", ["[1", "'x", "!!int 3", "*x", "[" * 2000, "1" * 5000, "a: b: c", "1\n---\n2"])
def test_an_override_that_is_not_a_yaml_value_is_refused_in_one_line(value: str) -> None:
    with pytest.raises(YAMLSyntaxError) as caught:
        parse_value(value)
    assert "\n" not in str(caught.value)


def test_a_python_tag_is_refused_and_nothing_is_run(tmp_path: Path) -> None:
    """A file with such a tag may come with somebody else's checkpoint."""
    for tag in ("!!python/object/apply:pathlib.Path.touch [{}]", "!!python/object/new:os.system ['touch {}']"):
        written = tag.format(tmp_path / "was-run")
        for read, text in ((parse, f"run:\n  name: {written}\n"), (parse_value, written)):
            with pytest.raises(YAMLSyntaxError, match="a tag is not allowed here"):
                read(text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value",
    ["3e-4", "1e5", "08", "007", "1_0", ".5", "yes", "true", "null", "~", "", "0x1F", "0o7", "1:30", "2024-01-01", "=",
     "<<", "a: b", "# a", " a ", "\n", "\r\n", "\x85", "\u2028", "\ufeff", "é𝄞", "*a", "!a", "- a", "x" * 300,
     1e-5, 1e22, 1e-300, 0.1, 10**18, 0, True, None, ["a", "1e5"], []],
)  # fmt: skip
def test_what_is_dumped_reads_as_the_same_value_of_the_same_type(value: Any) -> None:
    read = parse(dump({"a": {"b": value}})).data["a"]["b"]
    assert read == value
    assert type(read) is type(value)


def test_a_text_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(YAMLSyntaxError, match="more than 1,048,576 characters"):
        parse("a: b\n" + "#" * (1 << 20))
