"""Load a `Config` from a YAML file and overrides; all problems are reported at once."""

import difflib
import hashlib
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpt.config.recipes import find_config
from gpt.config.sections import Config, CrossCheckError, is_of_name
from gpt.config.strict_yaml import MAX_CHARACTERS, Document, YAMLSyntaxError, dump, parse, parse_value
from gpt.config.suggestions import did_you_mean, section_class
from gpt.system.errors import ConfigError

Finding = tuple[tuple[str, ...], str]
"""The key that a problem is about, and a sentence."""
NAME_BYTES = 200
"""Most bytes of a name that is made from a text: a file's may have 255 with all that is added to it."""
_NOT_READ = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that YAML refuses, drops or takes for the end of a line, unless they are escaped."""
_ENDING = re.compile(r"\.[A-Za-z]\w{0,7}$")


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, the name its file suggests for the run, and the folder of that file."""

    config: Config
    default_name: str
    folder: Path | None = None

    @property
    def name(self) -> str:
        """Return the run's name: `run.name`, or else that of the configuration file, see `to_name`."""
        return self.config.run.name or self.default_name


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration file, or a recipe by its name, and apply `section.key=value` overrides.

    Raises:
        ConfigError: the file is missing or unreadable, or anything in it or the overrides is wrong;
            the message holds one line per problem.
    """
    path = find_config(path)
    text = read_yaml(path, "configuration", "my.yaml")
    return LoadedConfig(parse_config(text, str(path), overrides), to_name(path.stem), path.parent)


def override(key: str, value: Any) -> str:
    """Return the override of a key by a value as JSON has it; YAML reads its text as it is, whatever is in it."""
    readable = json.dumps(value, ensure_ascii=False)
    return f"{key}={_NOT_READ.sub(lambda found: json.dumps(found[0])[1:-1], readable)}"


def to_name(text: str) -> str:
    """Return a name for a run, or part of a file's, that is like a text: see `is_of_name`.

    A long name ends with a hash.
    """
    return _cleaned(text) or "run"


def name_of_text(path: str | Path) -> str:
    """Return a name that is like that of a text: a file without its ending, a folder, or the folder of `*.txt`."""
    absolute = os.path.abspath(path)  # noqa: PTH100  # without .., which Path.absolute keeps
    *folders, file = Path(absolute).parts
    name = file if os.path.isdir(absolute) else _ENDING.sub("", file) or file  # noqa: PTH112  # a pattern can be long
    return next(filter(None, map(_cleaned, (name, *reversed(folders)))), "run")


def _cleaned(text: str) -> str:
    """Return the name without a fallback; empty where a text has no letter, digit or emoji."""
    text = unicodedata.normalize("NFC", text)
    name = re.sub("-+", "-", "".join(each if is_of_name(each) else "-" for each in text)).strip("-._")
    name = "".join(itertools.dropwhile(lambda each: not is_of_name(each, first=True), name))
    if len(name.encode()) > NAME_BYTES:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name.encode()[: NAME_BYTES - 9].decode(errors='ignore')}-{digest}"
    return name


def read_yaml(path: Path, kind: str, example: str) -> str:
    """Return the text of a YAML file.

    Messages name the `kind` of what it holds, and the path of an `example`.

    Raises:
        ConfigError: it is missing or unreadable.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CHARACTERS + 1)
        if len(content) > MAX_CHARACTERS:
            raise ConfigError(f"{path} has more than {MAX_CHARACTERS:,} bytes; a {kind} file is not so long")
        return content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such {kind} file{_similar_file(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give a YAML file, for example {example}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def parse_document(text: str, origin: str) -> tuple[Document, list[str]]:
    """Parse a YAML mapping; return it with a line for each key that is given twice.

    Raises:
        ConfigError: the text is not a YAML mapping; the message names `origin` and the line.
    """
    try:
        document = parse(text)
    except YAMLSyntaxError as error:
        raise ConfigError(f"{at_line(origin, error.line)}: {error}") from None
    return document, [
        f"{at_line(origin, line)}: {dotted(key)}: is given twice, first on line {document.lines[key]}"
        for key, line in document.duplicates
    ]


def parse_config(text: str, origin: str, overrides: Sequence[str] = ()) -> Config:
    """Parse and check the text of a configuration file; `origin` names it in messages.

    Raises:
        ConfigError: see `load_config`.
    """
    document, problems = parse_document(text, origin)
    data = {key: dict(value or {}) if isinstance(value, dict | None) else value for key, value in document.data.items()}
    from_command_line = _apply_overrides(data, overrides, problems)

    def place(key: tuple[str, ...]) -> str:
        return "command line" if key in from_command_line else at_line(origin, line_of(key, document))

    return checked(data, origin, problems, place)


def checked(data: dict[str, Any], origin: str, problems: list[str], place: Callable[[tuple[str, ...]], str]) -> Config:
    """Return the configuration of some sections.

    Args:
        origin: names them as a whole in the message.
        problems: lines that were found before.
        place: returns where a key was given.

    Raises:
        ConfigError: there are problems; the message holds one line for each.
    """
    config, found = validated(data)
    problems = [*problems, *(f"{place(key)}: {dotted(key)}: {message}" for key, message in found)]
    if problems:
        raise ConfigError(listed(origin, problems))
    assert config is not None
    return config


def dump_config(config: Config, only_given: bool = False) -> str:
    """Return a configuration as YAML that loads again to the same values.

    `only_given` leaves out the keys that neither the file nor an override gave.
    """
    values = config.model_dump(mode="json", exclude_unset=only_given)
    return dump(values)


def line_of(key: tuple[str, ...], document: Document) -> int | None:
    """Return the line of a key, or else of the section above it."""
    return next((document.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in document.lines), None)


def _apply_overrides(data: dict[str, Any], overrides: Sequence[str], problems: list[str]) -> set[tuple[str, ...]]:
    """Write the overrides into `data` and return the keys and sections they set."""
    keys: set[tuple[str, ...]] = set()
    for override in overrides:
        name, equals, value = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            problems.append(
                f"command line: {override!r} is not of the form section.key=value, for example train.max_steps=500"
                + ("" if dot else did_you_mean((section,)))
            )
            continue
        if not value.strip():  # often a variable of a shell that is not set
            problems.append(f"command line: {dotted((section, key))}: has no value; write null for none")
            continue
        try:
            parsed = parse_value(value)
        except YAMLSyntaxError as error:
            problems.append(f"command line: {dotted((section, key))}: {error}")
            continue
        if section not in data:
            data[section] = {}
            keys.add((section,))
        target = data[section]
        if isinstance(target, dict):
            target[key] = parsed
        keys.add((section, key))
    return keys


def validated(data: dict[str, Any]) -> tuple[Config | None, list[Finding]]:
    """Return the configuration, or everything that is wrong with it.

    Unknown keys hide the checks between known ones, so those are repeated without them.
    """
    try:
        return Config.model_validate(data), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    findings = _explain(details)
    unknown = {entry["loc"] for entry in details if entry["type"] == "extra_forbidden"}
    if unknown:
        known = {
            name: {key: value for key, value in section.items() if (name, key) not in unknown}
            if isinstance(section, dict)
            else section
            for name, section in data.items()
            if (name,) not in unknown
        }
        findings += [finding for finding in validated(known)[1] if finding not in findings]
    return None, findings


def _explain(details: list[ErrorDetails]) -> list[Finding]:
    findings: dict[Finding, None] = {}  # an ordered set: a union reports each of its branches
    for entry in details:
        location = tuple(str(part) for part in entry["loc"])
        cause = entry.get("ctx", {}).get("error")
        if isinstance(cause, CrossCheckError):
            findings |= {((*location, *name.split(".")), message): None for name, message in cause.problems}
        else:
            findings[(location[:2], _sentence(location[:2], entry))] = None
    return list(findings)


def _sentence(key: tuple[str, ...], details: ErrorDetails) -> str:
    value = details["input"]
    match details["type"]:
        case "extra_forbidden":
            return f"unknown key{did_you_mean(key)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"expected keys below this section, got {value!r}"
        case "literal_error" | "bool_type" if choices_of(key):
            return f"got {value!r}, expected one of {', '.join(choices_of(key))}"
        case "string_type":
            return f"got {value!r}, expected text; put it in quotes"
        case "tuple_type":
            return f"got {value!r}, expected a list, in brackets"
        case "missing" | "too_long":
            return f"got {list(value)}, which has too {'few' if details['type'] == 'missing' else 'many'} values"
        case "string_pattern_mismatch":
            return f"got {value!r}, expected the form {details['ctx']['pattern']}"
        case _:
            message = details["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
            return f"got {value!r}, {message[0].lower()}{message[1:]}"


def choices_of(key: tuple[str, ...]) -> list[str]:
    """Return the words that a key's value can be; none if it is free."""
    if len(key) != 2:
        return []
    schema = section_class(key[0]).model_json_schema()["properties"].get(key[1], {})
    options: list[str] = []
    for part in schema.get("anyOf", [schema]):
        options += [str(word) for word in part.get("enum", [part["const"]] if "const" in part else [])]
        options += ["true", "false"] if part.get("type") == "boolean" else []
    return options


def _similar_file(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    names = {other.stem: other for other in path.parent.glob("*.y*ml")}  # suffixes make all names alike
    near = difflib.get_close_matches(path.stem, names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def dotted(key: tuple[str, ...]) -> str:
    """Return the key as it is written, or escaped where it would break the line or the terminal."""
    name = ".".join(key)
    return name if name.isprintable() else repr(name)


def at_line(origin: str, line: int | None) -> str:
    """Return a file, and the line in it if that is known."""
    return f"{origin}:{line}" if line else origin


def listed(origin: str, problems: list[str]) -> str:
    """Return the message for one or several problems."""
    if len(problems) == 1:
        return problems[0]
    return "\n".join([f"{origin} has {len(problems)} problems:", *(f"  {problem}" for problem in problems)])
