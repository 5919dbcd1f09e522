"""From YAML and overrides to a `Config`, or to an error with a line for each problem."""

import difflib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpt.config.sections import SECTIONS, Config, CrossCheckError
from gpt.config.strict_yaml import (
    MAX_CHARACTERS,
    Document,
    Key,
    YAMLSyntaxError,
    dump,
    parse,
    parse_value,
)
from gpt.config.suggestions import did_you_mean
from gpt.system.environment import no_device
from gpt.system.errors import ConfigError
from gpt.system.files import read_file

Finding = tuple[Key, str]
"""The key that a problem is about, and a sentence."""


def read_yaml(path: Path) -> str:
    """Return the text of a configuration file, unparsed.

    Raises:
        ConfigError: it is missing, unreadable or longer than a configuration can be.
    """
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
    # Without their suffixes, which would make all names look alike.
    names = {other.stem: other for other in path.parent.glob("*.y*ml")}
    near = difflib.get_close_matches(path.stem, names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


@dataclass(frozen=True)
class Places:
    """Where each value of a configuration was given, to name that place in messages.

    Attributes:
        origin: names the configuration, such as its file.
        document: knows the lines of the keys; empty where there is no file.
        given: the keys whose values were replaced.
        giver: names what has replaced them, such as "command line".
    """

    origin: str
    document: Document = field(default_factory=lambda: Document({}))
    given: Set[Key] = frozenset()
    giver: str = ""

    def place_of(self, key: Key) -> str:
        """Return where a key was given: `file:line`, or what has replaced its value."""
        sections_of_document = self.document.data
        is_given = key[:2] in self.given
        is_section_given = any(each[0] == key[0] for each in self.given)
        is_new_section = len(key) == 1 and is_section_given and key[0] not in sections_of_document
        if is_given or is_new_section:
            return self.giver
        return _at_line(self.origin, self.document.line_of(key))


def parse_config(text: str, origin: str, overrides: Sequence[str] = ()) -> Config:
    """Parse and check the text of a configuration file, with `section.key=value` overrides.

    Raises:
        ConfigError: the text is no YAML mapping, or anything in it or the overrides is wrong. The
            message holds one line per problem, each with the line of the file that `origin` names.
    """
    document, problems = parse_document(text, origin)
    given, problems_of_overrides = _read_overrides(overrides)
    return compose(document, origin, given, "command line", [*problems, *problems_of_overrides])


def parse_document(text: str, origin: str) -> tuple[Document, list[str]]:
    """Parse a YAML mapping; return it with a line for each key that is given twice.

    Raises:
        ConfigError: the text is not a YAML mapping; the message names `origin` and the line.
    """
    try:
        document = parse(text)
    except YAMLSyntaxError as error:
        raise ConfigError(f"{_at_line(origin, error.line)}: {error}") from None
    problems = []
    for key, line in document.duplicates:
        first = document.lines[key]
        problems.append(
            f"{_at_line(origin, line)}: {_dotted(key)}: is given twice, first on line {first}"
        )
    return document, problems


def compose(
    document: Document, origin: str, given: Mapping[Key, Any], giver: str, problems: Sequence[str]
) -> Config:
    """Return the configuration of a document in which some values are replaced.

    Args:
        origin: names the document in messages.
        given: the replacing values, by section and key.
        giver: names where they come from in messages.
        problems: lines that were found before, and are reported with the others.
    """
    sections: dict[str, Any] = {}
    for name, section in document.data.items():
        if section is None:  # YAML has null for `section:` with nothing below it
            sections[name] = {}
        elif isinstance(section, Mapping):
            sections[name] = dict(section)
        else:
            sections[name] = section  # which is no section, as the check will say
    for (name, key), value in given.items():
        section = sections.setdefault(name, {})
        if isinstance(section, dict):
            section[key] = value
    places = Places(origin, document, given.keys(), giver)
    return build_config(sections, origin, places, problems)


def build_config(
    sections: Mapping[str, Any],
    origin: str,
    places: Places | None = None,
    problems: Sequence[str] = (),
) -> Config:
    """Check the sections of a configuration, and build it.

    Args:
        origin: names the configuration in messages.
        places: where the values were given; None: `origin` is all that is known.
        problems: lines that were found before.

    Raises:
        ConfigError: anything is wrong. The message holds one line per problem, with its place.
    """
    places = places or Places(origin)
    config: Config | None = None
    findings: list[Finding] = []
    try:
        config = Config.model_validate(sections)
    except ValidationError as error:
        findings = _all_findings(error, sections)
    lines = list(problems)
    lines += [f"{places.place_of(key)}: {_dotted(key)}: {words}" for key, words in findings]
    if len(lines) > 1:
        lines = [f"{origin} has {len(lines)} problems:", *(f"  {line}" for line in lines)]
    if lines:
        raise ConfigError("\n".join(lines))
    assert config is not None
    return config


def _all_findings(error: ValidationError, sections: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with sections, also what pydantic has not looked for after an error.

    It compares keys with one another, see `cross_checks`, only where it knows all of them. So the
    sections are validated once more without the unknown keys.
    """
    findings = explain(error)
    unknown = {entry["loc"] for entry in error.errors() if entry["type"] == "extra_forbidden"}
    if unknown:
        try:
            Config.model_validate(_without(unknown, sections))
        except ValidationError as second:
            findings += explain(second)
    return list(dict.fromkeys(findings))  # each once, in their order


def _without(unknown: Set[tuple[int | str, ...]], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections without what was rejected, so that the rest can be validated.

    Args:
        unknown: the places (section,) or (section, key) that pydantic has rejected.
    """
    known: dict[str, Any] = {}
    for name, section in sections.items():
        if (name,) in unknown:
            continue
        known[name] = section
        if isinstance(section, dict):
            keys = [key for key in section if (name, key) not in unknown]
            known[name] = {key: section[key] for key in keys}
    return known


def dump_config(config: Config, only_given: bool = False) -> str:
    """Return a configuration as YAML that loads again to the same values.

    `only_given` leaves out the keys that neither the file nor an override gave.
    """
    return dump(config.model_dump(mode="json", exclude_unset=only_given))


def _read_overrides(overrides: Sequence[str]) -> tuple[dict[Key, Any], list[str]]:
    """Return the values of `section.key=value` overrides by section and key, and what is wrong."""
    given: dict[Key, Any] = {}
    problems = []
    for override in overrides:
        name, equals, value = override.partition("=")
        section, dot, key = name.strip().partition(".")
        has_name = dot and section and key
        if not (equals and has_name):
            hint = "" if dot else did_you_mean((section,))
            problems.append(
                f"command line: {override!r} is not of the form section.key=value, for example "
                f"train.max_steps=500{hint}"
            )
            continue
        place = f"command line: {_dotted((section, key))}"
        if not value.strip():  # often a variable of a shell that is not set
            problems.append(f"{place}: has no value; write null for none")
            continue
        try:
            given[section, key] = parse_value(value)
        except YAMLSyntaxError as error:
            problems.append(f"{place}: {error}")
    return given, problems


def explain(error: ValidationError, *section: str) -> list[Finding]:
    """Return what is wrong with the values of a configuration, or of one `section`."""
    findings: list[Finding] = []
    for entry in error.errors(include_url=False):
        key = (*section, *map(str, entry["loc"]))
        cause = entry.get("ctx", {}).get("error")
        if isinstance(cause, CrossCheckError):
            for name, message in cause.problems:
                findings.append(((*key, *name.split(".")), message))
        else:
            findings.append((key[:2], _sentence(key[:2], entry)))
    # Each once, in their order: pydantic reports every branch of a union.
    return list(dict.fromkeys(findings))


def _sentence(key: Key, details: ErrorDetails) -> str:
    """Return what is wrong with a value, in the place of pydantic's message."""
    value = details["input"]
    choices = _choices(key)
    match details["type"]:
        case "extra_forbidden":
            return f"unknown key{did_you_mean(key)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"expected keys below this section, got {value!r}"
        case "literal_error" | "bool_type" if choices:
            problem = f"{value!r}, expected one of {', '.join(choices)}"
        case "string_type":
            problem = f"{value!r}, expected text; put it in quotes"
        case "tuple_type":
            problem = f"{value!r}, expected a list, in brackets"
        case "missing":  # an element of a tuple, since every key has a default
            problem = f"{list(value)}, which has too few values"
        case "too_long":
            problem = f"{list(value)}, which has too many values"
        case "string_pattern_mismatch":  # of a device, the only key with a pattern
            problem = f"{value!r}, {no_device(value)}"
        case _:
            problem = f"{value!r}, {_in_own_words(details['msg'])}"
    return f"got {problem}"


def _in_own_words(message: str) -> str:
    """Return a message of pydantic as it continues a sentence of this package."""
    words = message.removeprefix("Value error, ").replace("Input should be", "expected")
    return words[0].lower() + words[1:]


def _choices(key: Key) -> list[str]:
    """Return the words that the value of a key can be; none if it is free."""
    if len(key) != 2 or key[0] not in SECTIONS:
        return []
    section, name = key
    fields = SECTIONS[section].model_fields
    return _words(fields[name].annotation) if name in fields else []


def _words(kind: Any) -> list[str]:
    """Return the words that a type allows, also as a part of another type such as `X | None`."""
    if kind is bool:
        return ["true", "false"]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    words = []
    for part in get_args(kind):
        words += _words(part)
    return words


def _dotted(key: Key) -> str:
    """Return the key as it is written, or escaped where it would break the line or the terminal."""
    name = ".".join(key)
    return name if name.isprintable() else repr(name)


def _at_line(origin: str, line: int | None) -> str:
    return f"{origin}:{line}" if line else origin
