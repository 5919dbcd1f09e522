"""YAML as people expect it: `3e-4` is a number, duplicate keys are found, and the line of every key is known."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str, ...]
MAX_CHARACTERS = 1 << 20
"""Length of the longest text that is parsed, which takes a hundred times its memory."""


@dataclass
class Document:
    """A parsed YAML mapping.

    Attributes:
        data: the mapping as plain Python values.
        lines: 1-based line of each key, by its path from the top.
        duplicates: paths that are given more than once, with the line of the repetition.
    """

    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)
    duplicates: list[tuple[Path, int]] = field(default_factory=list)


class YAMLSyntaxError(Exception):
    """The text is not YAML, or not a mapping; `line` is 1-based."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    """SafeLoader with the numbers and booleans of YAML 1.2: `1e-3` is a float, `no` is a string.

    Tags and aliases are refused: a configuration does not need them, and with them a few lines could
    build objects, refer to themselves or expand to gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            what = "an alias" if isinstance(event, yaml.AliasEvent) else "a tag"
            raise yaml.MarkedYAMLError(
                problem=f"{what} is not allowed here; write the value itself", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)


_TAG = "tag:yaml.org,2002:"
_SCALARS = {  # the pattern and the first characters of each
    "bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "int": (r"^[-+]?(?:0|[1-9][0-9_]*)$", "-+0123456789"),
    "float": (
        r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
}
_REPLACED = {_TAG + kind for kind in (*_SCALARS, "timestamp")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for kind, (pattern, first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + kind, re.compile(pattern), list(first))


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes every string that `_Loader` or YAML 1.1 would read as another type."""


_Dumper.yaml_implicit_resolvers = {
    first: [*yaml.SafeDumper.yaml_implicit_resolvers.get(first, []), *_Loader.yaml_implicit_resolvers.get(first, [])]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
}


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Escape control characters: PyYAML does not read all of them back as it writes them."""
    return dumper.represent_scalar(_TAG + "str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)


def dump(data: dict[str, Any]) -> str:
    """Return the YAML text that `parse` reads as `data`."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def parse(text: str) -> Document:
    """Parse one YAML mapping.

    Raises:
        YAMLSyntaxError: the text is not YAML, holds a tag or an alias, is not a mapping, or is too long.
    """
    if len(text) > MAX_CHARACTERS:
        raise YAMLSyntaxError(f"it has more than {MAX_CHARACTERS:,} characters", None)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Document({})
        if not isinstance(node, yaml.MappingNode):
            raise YAMLSyntaxError("expected 'section: ...' lines", node.start_mark.line + 1)
        document = Document({})
        _record_keys(node, (), document)
        document.data = loader.construct_document(node)
    except _CANNOT_READ as error:
        raise _syntax_error(error) from error
    return document


def parse_value(text: str) -> Any:
    """Parse the right side of a `key=value` override.

    Raises:
        YAMLSyntaxError: the text is not a YAML value.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except _CANNOT_READ as error:
        raise _syntax_error(error) from error


_CANNOT_READ = (yaml.YAMLError, ValueError, RecursionError)
"""Errors of PyYAML: the last two for a number of thousands of digits and for hundreds of nested brackets."""


def _syntax_error(error: Exception) -> YAMLSyntaxError:
    if isinstance(error, RecursionError):
        return YAMLSyntaxError("brackets or lists are nested too deeply", None)
    if isinstance(error, ValueError):
        return YAMLSyntaxError("a number has too many digits", None)
    if not isinstance(error, yaml.MarkedYAMLError):
        return YAMLSyntaxError(" ".join(str(error).split()), None)
    mark = error.problem_mark or error.context_mark
    problem = " ".join(str(error.problem or error.context or "not YAML").split())
    return YAMLSyntaxError(problem, mark.line + 1 if mark else None)


def _record_keys(node: yaml.MappingNode, path: Path, document: Document) -> None:
    for key_node, value_node in node.value:
        key_path = (*path, str(key_node.value))
        line = key_node.start_mark.line + 1
        if key_path in document.lines:
            document.duplicates.append((key_path, line))
        else:
            document.lines[key_path] = line
        if isinstance(value_node, yaml.MappingNode):
            _record_keys(value_node, key_path, document)
