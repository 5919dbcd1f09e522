"""From YAML and overrides to a `Config`, or to an error with a line for everything that is wrong."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpt.config.sections import SECTIONS, Config, CrossCheckError
from gpt.config.strict_yaml import MAX_CHARACTERS, Document, Key, YAMLSyntaxError, dump, parse, parse_value
from gpt.config.suggestions import did_you_mean
from gpt.system.environment import no_device
from gpt.system.errors import ConfigError
from gpt.system.files import read_file

Finding = tuple[Key, str]
"""The key that a problem is about, and a sentence."""


def read_yaml(path: Path) -> str:
    """Return the text of a configuration file; ConfigError: it is missing or unreadable."""
    try:
        return read_file(path, MAX_CHARACTERS).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file{_similar_file(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give a YAML file, for example my.yaml") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _similar_file(path: Path) -> str:
    names = {other.stem: other for other in path.parent.glob("*.y*ml")}  # suffixes make all names alike
    near = difflib.get_close_matches(path.stem, names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def parse_config(text: str, origin: str, overrides: Sequence[str] = ()) -> Config:
    """Parse and check the text of a configuration file, with `section.key=value` overrides.

    Raises:
        ConfigError: the text is no YAML mapping, or anything in it or the overrides is wrong; the message holds one
            line per problem, each with the line of the file, which `origin` names.
    """
    document, problems = parse_document(text, origin)
    given = _read_overrides(overrides, problems)
    return compose(document, origin, given, "command line", problems)


def parse_document(text: str, origin: str) -> tuple[Document, list[str]]:
    """Parse a YAML mapping; return it with a line for each key that is given twice.

    Raises:
        ConfigError: the text is not a YAML mapping; the message names `origin` and the line.
    """
    try:
        document = parse(text)
    except YAMLSyntaxError as error:
        raise ConfigError(f"{_at_line(origin, error.line)}: {error}") from None
    return document, [
        f"{_at_line(origin, line)}: {_dotted(key)}: is given twice, first on line {document.lines[key]}"
        for key, line in document.duplicates
    ]


def compose(document: Document, origin: str, given: Mapping[Key, Any], giver: str, problems: list[str]) -> Config:
    """Return the configuration of a document in which some values are replaced.

    Args:
        origin: names the document in messages.
        given: the replacing values, by section and key.
        giver: names where they come from in messages.
        problems: lines that were found before.
    """
    data = {
        key: dict(value or {}) if isinstance(value, Mapping | None) else value for key, value in document.data.items()
    }
    for (section, key), value in given.items():
        target = data.setdefault(section, {})
        if isinstance(target, dict):
            target[key] = value
    new = {(section,) for section, _ in given if section not in document.data}

    def place(key: Key) -> str:
        return giver if key[:2] in given or key in new else _at_line(origin, document.line_of(key))

    return checked(data, origin, problems, place)


def checked(data: dict[str, Any], origin: str, problems: list[str], place: Callable[[Key], str]) -> Config:
    """Return the configuration of some sections, or raise ConfigError with all problems, and where each is.

    Unknown keys hide the checks between known ones, so those are repeated without them.
    """
    findings: dict[Finding, None] = {}  # an ordered set
    while True:
        try:
            config = Config.model_validate(data)
            break
        except ValidationError as error:
            findings |= dict.fromkeys(explain(error))
            unknown = {entry["loc"] for entry in error.errors() if entry["type"] == "extra_forbidden"}
        if not unknown:
            break
        data = {
            name: {key: value for key, value in section.items() if (name, key) not in unknown}
            if isinstance(section, dict)
            else section
            for name, section in data.items()
            if (name,) not in unknown
        }
    problems = [*problems, *(f"{place(key)}: {_dotted(key)}: {message}" for key, message in findings)]
    if len(problems) > 1:
        problems = [f"{origin} has {len(problems)} problems:", *(f"  {problem}" for problem in problems)]
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def dump_config(config: Config, only_given: bool = False) -> str:
    """Return a configuration as YAML that loads again to the same values.

    `only_given` leaves out the keys that neither the file nor an override gave.
    """
    return dump(config.model_dump(mode="json", exclude_unset=only_given))


def _read_overrides(overrides: Sequence[str], problems: list[str]) -> dict[Key, Any]:
    """Return the values of `section.key=value` overrides by section and key; any other becomes a problem."""
    given: dict[Key, Any] = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            problems.append(
                f"command line: {override!r} is not of the form section.key=value, for example train.max_steps=500"
                + ("" if dot else did_you_mean((section,)))
            )
        elif not value.strip():  # often a variable of a shell that is not set
            problems.append(f"command line: {_dotted((section, key))}: has no value; write null for none")
        else:
            try:
                given[section, key] = parse_value(value)
            except YAMLSyntaxError as error:
                problems.append(f"command line: {_dotted((section, key))}: {error}")
    return given


def explain(error: ValidationError, *section: str) -> list[Finding]:
    """Return what is wrong with the values of a configuration, or of one `section`."""
    findings: dict[Finding, None] = {}  # an ordered set: a union reports each of its branches
    for entry in error.errors(include_url=False):
        key = (*section, *map(str, entry["loc"]))
        cause = entry.get("ctx", {}).get("error")
        if isinstance(cause, CrossCheckError):
            findings |= {((*key, *name.split(".")), message): None for name, message in cause.problems}
        else:
            findings[key[:2], _sentence(key[:2], entry)] = None
    return list(findings)


def _sentence(key: Key, details: ErrorDetails) -> str:
    """Return what is wrong with a value, in the place of pydantic's message."""
    value = details["input"]
    match details["type"]:
        case "extra_forbidden":
            return f"unknown key{did_you_mean(key)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"expected keys below this section, got {value!r}"
        case "literal_error" | "bool_type" if choices := _choices(key):
            return f"got {value!r}, expected one of {', '.join(choices)}"
        case "string_type":
            return f"got {value!r}, expected text; put it in quotes"
        case "tuple_type":
            return f"got {value!r}, expected a list, in brackets"
        case "missing" | "too_long":
            return f"got {list(value)}, which has too {'few' if details['type'] == 'missing' else 'many'} values"
        case "string_pattern_mismatch":
            return f"got {value!r}, {no_device(value)}"  # the only key with a pattern
        case _:
            message = details["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
            return f"got {value!r}, {message[0].lower()}{message[1:]}"


def _choices(key: Key) -> list[str]:
    """Return the words that the value of a key can be; none if it is free."""
    section, name = key if len(key) == 2 else ("", "")
    field = SECTIONS[section].model_fields.get(name) if section in SECTIONS else None
    return [] if field is None else _words(field.annotation)


def _words(kind: Any) -> list[str]:
    if kind is bool:
        return ["true", "false"]
    return list(get_args(kind)) if get_origin(kind) is Literal else [w for part in get_args(kind) for w in _words(part)]


def _dotted(key: Key) -> str:
    """Return the key as it is written, or escaped where it would break the line or the terminal."""
    name = ".".join(key)
    return name if name.isprintable() else repr(name)


def _at_line(origin: str, line: int | None) -> str:
    return f"{origin}:{line}" if line else origin
