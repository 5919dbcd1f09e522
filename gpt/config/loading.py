"""Load a `Config` from YAML and overrides, or raise an error with a line for each problem."""

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
"""The key that a problem is about, and a sentence that describes the problem."""


def read_yaml(path: Path) -> str:
    """Return the text of a configuration file, unparsed.

    Raises:
        ConfigError: the file is missing, unreadable or longer than a configuration can be.
    """
    try:
        # A character takes a byte or more in UTF-8, so the limit in bytes holds for characters too.
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
    """Return `; did you mean ...?` with a YAML file of a similar name; "" if there is none."""
    # The names are compared without their suffixes, which would make all of them look alike.
    files_by_stem = {file.stem: file for file in path.parent.glob("*.y*ml")}
    similar_stems = difflib.get_close_matches(path.stem, files_by_stem, n=1)
    return f"; did you mean {files_by_stem[similar_stems[0]]}?" if similar_stems else ""


@dataclass(frozen=True)
class Places:
    """The places where the values of a configuration were given, for messages.

    Attributes:
        origin: the name of the configuration, such as its file.
        document: the parsed file, with the lines of its keys; empty if there is no file.
        replaced_keys: the keys, each with its section, whose values were replaced.
        replaced_by: the name of what replaced the values, such as "command line".
    """

    origin: str
    document: Document = field(default_factory=lambda: Document({}))
    replaced_keys: Set[Key] = frozenset()
    replaced_by: str = ""

    def place_of(self, key: Key) -> str:
        """Return where a key was given: `file:line`, or the name of what replaced its value.

        Args:
            key: a section alone, or with a key and perhaps with parts of the key's value.
        """
        section = key[0]
        is_replaced = key[:2] in self.replaced_keys
        # A section that the file lacks is there because keys of it were replaced.
        has_replaced_keys = any(replaced[0] == section for replaced in self.replaced_keys)
        is_new_section = len(key) == 1 and has_replaced_keys and section not in self.document.data
        if is_replaced or is_new_section:
            return self.replaced_by
        return _at_line(self.origin, self.document.line_of(key))


def parse_config(text: str, origin: str, overrides: Sequence[str] = ()) -> Config:
    """Parse and check the text of a configuration file, with `section.key=value` overrides.

    Raises:
        ConfigError: the text is not a YAML mapping, or anything in it or the overrides is wrong.
            The message holds one line per problem, with the place of the problem in `origin`.
    """
    document, problems_of_text = parse_document(text, origin)
    replacements, problems_of_overrides = _read_overrides(overrides)
    problems = [*problems_of_text, *problems_of_overrides]
    return compose(document, origin, replacements, "command line", problems)


def parse_document(text: str, origin: str) -> tuple[Document, list[str]]:
    """Parse a YAML mapping; return it with a message for each key that is given twice.

    Raises:
        ConfigError: the text is not a YAML mapping; the message names `origin` and the line.
    """
    try:
        document = parse(text)
    except YAMLSyntaxError as error:
        raise ConfigError(f"{_at_line(origin, error.line)}: {error}") from None
    problems = []
    for key, line in document.duplicates:
        first_line = document.lines[key]
        problems.append(
            f"{_at_line(origin, line)}: {_dotted(key)}: is given twice, first on line {first_line}"
        )
    return document, problems


def compose(
    document: Document,
    origin: str,
    replacements: Mapping[Key, Any],
    replaced_by: str,
    problems: Sequence[str],
) -> Config:
    """Build the configuration of a document in which some values are replaced.

    Args:
        origin: the name of the document in messages.
        replacements: the new values, by section and key.
        replaced_by: the name, in messages, of what gave the new values.
        problems: messages about problems found before, which are reported with the others.
    """
    sections: dict[str, Any] = {}
    for name, section in document.data.items():
        if section is None:  # YAML reads `section:` with nothing below it as null
            sections[name] = {}
        elif isinstance(section, Mapping):
            sections[name] = dict(section)
        else:
            sections[name] = section  # `build_config` reports that this is not a section
    for (name, key), value in replacements.items():
        section = sections.setdefault(name, {})
        if isinstance(section, dict):  # anything else is reported, as said above
            section[key] = value
    places = Places(origin, document, replacements.keys(), replaced_by)
    return build_config(sections, origin, places, problems)


def build_config(
    sections: Mapping[str, Any],
    origin: str,
    places: Places | None = None,
    problems: Sequence[str] = (),
) -> Config:
    """Check the sections of a configuration, and build it.

    Args:
        origin: the name of the configuration in messages.
        places: where the values were given; None if only `origin` is known.
        problems: messages about problems found before, which are reported with the others.

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
    messages = list(problems)
    for key, sentence in findings:
        messages.append(f"{places.place_of(key)}: {_dotted(key)}: {sentence}")
    if len(messages) == 1:
        raise ConfigError(messages[0])
    if messages:
        indented = "\n".join(f"  {message}" for message in messages)
        raise ConfigError(f"{origin} has {len(messages)} problems:\n{indented}")
    assert config is not None  # a failed validation has findings, which were raised above
    return config


def _all_findings(error: ValidationError, sections: Mapping[str, Any]) -> list[Finding]:
    """Return all that is wrong with sections whose validation has failed.

    Pydantic does not run the `cross_checks` of a section with an unknown key. So the sections are
    validated once more without their unknown keys.
    """
    findings = explain(error)
    # Pydantic calls a key that the model does not have "extra", and gives its path as "loc".
    unknown = {entry["loc"] for entry in error.errors() if entry["type"] == "extra_forbidden"}
    if unknown:
        try:
            Config.model_validate(_without(unknown, sections))
        except ValidationError as second_error:
            findings += explain(second_error)
    # Both validations report the other problems: each is kept once, in the order of the list.
    return list(dict.fromkeys(findings))


def _without(unknown: Set[tuple[int | str, ...]], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections without unknown sections and keys, so that the rest can be validated.

    Args:
        unknown: a tuple (section,) for each unknown section, (section, key) for each unknown key.
    """
    known: dict[str, Any] = {}
    for name, section in sections.items():
        if (name,) in unknown:
            continue
        known[name] = section
        if isinstance(section, dict):
            known_keys = [key for key in section if (name, key) not in unknown]
            known[name] = {key: section[key] for key in known_keys}
    return known


def dump_config(config: Config, only_given: bool = False) -> str:
    """Return a configuration as YAML from which the same values are loaded.

    Args:
        only_given: whether to leave out the keys that neither the file nor an override gave.
    """
    return dump(config.model_dump(mode="json", exclude_unset=only_given))


def _read_overrides(overrides: Sequence[str]) -> tuple[dict[Key, Any], list[str]]:
    """Return the values of `section.key=value` overrides by section and key, and the problems."""
    values: dict[Key, Any] = {}
    problems = []
    for override in overrides:
        name, equals, value = override.partition("=")
        section, dot, key = name.strip().partition(".")
        has_section_and_key = dot and section and key
        if not (equals and has_section_and_key):
            # Without a dot, the user probably left out the section of a key.
            hint = "" if dot else did_you_mean((section,))
            problems.append(
                f"command line: {override!r} is not of the form section.key=value, for example "
                f"train.max_steps=500{hint}"
            )
            continue
        place = f"command line: {_dotted((section, key))}"
        if not value.strip():  # often the shell has expanded a variable that is not set
            problems.append(f"{place}: has no value; write null for none")
            continue
        try:
            values[section, key] = parse_value(value)
        except YAMLSyntaxError as error:
            problems.append(f"{place}: {error}")
    return values, problems


def explain(error: ValidationError, *section: str) -> list[Finding]:
    """Return each problem that pydantic found in a configuration, or in one section of it.

    Args:
        section: the name of the section, if only one was validated.
    """
    findings: list[Finding] = []
    for entry in error.errors(include_url=False):
        path = (*section, *map(str, entry["loc"]))  # a section, a key, and parts of its value
        # Pydantic keeps a ValueError that a validator raised; `cross_checks` lead to one.
        cause = entry.get("ctx", {}).get("error")
        if isinstance(cause, CrossCheckError):
            # A check of the whole configuration names its keys as `section.key`.
            for key_of_problem, message in cause.problems:
                findings.append(((*path, *key_of_problem.split(".")), message))
        else:
            # An error in a part of a value, such as an element of a list, is reported for its key.
            key = path[:2]
            findings.append((key, _sentence(key, entry)))
    # Pydantic reports every branch of a union: each finding is kept once, in the order of the list.
    return list(dict.fromkeys(findings))


def _sentence(key: Key, details: ErrorDetails) -> str:
    """Return our own sentence about a wrong value, in place of pydantic's message.

    Args:
        details: an error of pydantic, whose `type` is one of its documented names.
    """
    value = details["input"]
    choices = _choices(key)
    match details["type"]:
        case "extra_forbidden":
            return f"unknown key{did_you_mean(key)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"expected keys below this section, got {value!r}"
        # A `bool` has the choices true and false.
        case "literal_error" | "bool_type" if choices:
            problem = f"{value!r}, expected one of {', '.join(choices)}"
        case "string_type":
            problem = f"{value!r}, expected text; put it in quotes"
        case "tuple_type":
            problem = f"{value!r}, expected a list, in brackets"
        case "missing":  # about an element of a tuple, since every key has a default
            problem = f"{list(value)}, which has too few values"
        case "too_long":
            problem = f"{list(value)}, which has too many values"
        case "string_pattern_mismatch":  # about run.device, the only key with a pattern
            problem = f"{value!r}, {no_device(value)}"
        case _:
            problem = f"{value!r}, {_in_own_words(details['msg'])}"
    return f"got {problem}"


def _in_own_words(message: str) -> str:
    """Return a message of pydantic in the form that continues the sentence `got VALUE, ...`."""
    words = message.removeprefix("Value error, ").replace("Input should be", "expected")
    return words[0].lower() + words[1:]


def _choices(key: Key) -> list[str]:
    """Return the words of which the value of a key is one; empty if other values are allowed."""
    if len(key) != 2 or key[0] not in SECTIONS:
        return []
    section, name = key
    fields = SECTIONS[section].model_fields
    return _words(fields[name].annotation) if name in fields else []


def _words(annotation: Any) -> list[str]:
    """Return the words that a type allows, or that the parts of a type such as `X | None` allow."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    words = []
    for part in get_args(annotation):
        words += _words(part)
    return words


def _dotted(key: Key) -> str:
    """Return a key with dots, in quotes and escaped if it has characters that cannot be printed."""
    name = ".".join(key)
    return name if name.isprintable() else repr(name)


def _at_line(origin: str, line: int | None) -> str:
    return f"{origin}:{line}" if line else origin
