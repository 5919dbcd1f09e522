"""Read and write YAML as people expect it: `3e-4` is a number, and a repeated key is found.

The line of every key is recorded for messages.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

Key = tuple[str, ...]
"""A path of keys from the top of a document."""
MAX_CHARACTERS = 1 << 20
"""Length of the longest text that is parsed: parsing takes a hundred times the text's memory."""


@dataclass
class Document:
    """A parsed YAML mapping.

    Attributes:
        data: the values, in nested dicts.
        lines: the 1-based line of each key; that of the first one if the key is repeated.
        duplicates: the keys that are given more than once, each with the line of a repetition.
    """

    data: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)
    duplicates: list[tuple[Key, int]] = field(default_factory=list)

    def line_of(self, key: Key) -> int | None:
        """Return the line of a key, or of the innermost key around it that has a line, or None."""
        for length in range(len(key), 0, -1):
            outer_key = key[:length]
            if outer_key in self.lines:
                return self.lines[outer_key]
        return None


class YAMLSyntaxError(Exception):
    """The text is not YAML, or not a mapping; `line` is 1-based, or None if it is not known."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    """SafeLoader with the numbers and booleans of YAML 1.2: `1e-3` is a float, `no` is a string.

    Tags and aliases are refused: a configuration does not need them, and a few lines with them
    could build objects, refer to themselves or expand to gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Build the node of the next value; raise an error if it has a tag or is an alias."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias or event.tag is not None:
            construct = "an alias" if is_alias else "a tag"
            raise yaml.MarkedYAMLError(
                problem=f"{construct} is not allowed here; write the value itself",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)


_TAG = "tag:yaml.org,2002:"
"""The beginning of the names that YAML gives its types."""
_SCALARS = {
    "bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "int": (r"^[-+]?(?:0|[1-9][0-9_]*)$", "-+0123456789"),
    "float": (
        r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
}
"""The types that YAML 1.2 reads in another way than YAML 1.1, each with the pattern of its values.

The pattern is followed by the characters with which such a value begins: PyYAML tries only the
patterns that are registered for the first character of a value.
"""
_REPLACED = {_TAG + kind for kind in (*_SCALARS, "timestamp")}
"""The types whose patterns of YAML 1.1 are left out; without its pattern, a date is a string."""

# The class gets a table of its own, since the inherited table belongs to PyYAML.
_Loader.yaml_implicit_resolvers = {}
for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
    kept = [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    _Loader.yaml_implicit_resolvers[first] = kept
for kind, (expression, first_characters) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + kind, re.compile(expression), list(first_characters))


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes every string that `_Loader` or YAML 1.1 would read as another type."""


# PyYAML quotes a string that fits a pattern of its dumper: this one has those of both versions.
_Dumper.yaml_implicit_resolvers = {}
for table in (yaml.SafeDumper.yaml_implicit_resolvers, _Loader.yaml_implicit_resolvers):
    for first, resolvers in table.items():
        _Dumper.yaml_implicit_resolvers.setdefault(first, []).extend(resolvers)


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Represent a text, in double quotes if it has characters that cannot be printed.

    These characters are escaped in double quotes. In other styles PyYAML writes some that it does
    not read back.
    """
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(data: dict[str, Any]) -> str:
    """Return the YAML text that `parse` reads as `data`."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def parse(text: str) -> Document:
    """Parse one YAML mapping.

    Raises:
        YAMLSyntaxError: the text is not YAML, has a tag or an alias, is not a mapping, or is too
            long.
    """
    if len(text) > MAX_CHARACTERS:
        raise YAMLSyntaxError(f"it has more than {MAX_CHARACTERS:,} characters", None)
    document = Document({})
    with _syntax_errors():
        loader = _Loader(text)
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            # Error messages name the line of a key, and repeated keys. () is the path of the root.
            _record_keys(node, (), document)
            document.data = loader.construct_document(node)
        elif node is not None:  # an empty text has no node, and counts as an empty mapping
            raise YAMLSyntaxError("expected 'section: ...' lines", node.start_mark.line + 1)
    return document


def parse_value(text: str) -> Any:
    """Parse the value of an override; raise YAMLSyntaxError if it is not a YAML value."""
    with _syntax_errors():
        return yaml.load(text, Loader=_Loader)  # runs no code, since `_Loader` is a SafeLoader


@contextmanager
def _syntax_errors() -> Iterator[None]:
    """Turn every exception that PyYAML raises for a wrong text into a YAMLSyntaxError."""
    try:
        yield
    except RecursionError:  # PyYAML calls itself for each level of nesting
        raise YAMLSyntaxError("brackets or lists are nested too deeply", None) from None
    except (ValueError, OverflowError) as error:
        # PyYAML passes an escape such as \UFFFFFFFF to `chr`, which raises either error, and digits
        # to `int`, which raises a ValueError for more than 4,300 of them.
        is_escape = isinstance(error, OverflowError) or "chr()" in str(error)
        if is_escape:
            raise YAMLSyntaxError("an escape sequence names no character", None) from None
        raise YAMLSyntaxError("a number has too many digits", None) from None
    except yaml.MarkedYAMLError as error:
        # PyYAML may state only the problem or only its context.
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not YAML"
        line = mark.line + 1 if mark else None  # PyYAML counts lines from 0
        # Splitting and joining puts a message of several lines on a single line.
        raise YAMLSyntaxError(" ".join(problem.split()), line) from error
    except yaml.YAMLError as error:
        raise YAMLSyntaxError(" ".join(str(error).split()), None) from error


def _record_keys(node: yaml.MappingNode, above: Key, document: Document) -> None:
    """Record in a document the line of every key in a mapping, and the keys that are repeated.

    PyYAML itself takes the last value of a repeated key without an error.

    Args:
        above: the key that has this mapping as its value; () for the whole document.
    """
    for key_node, value_node in node.value:
        key = (*above, str(key_node.value))
        line = key_node.start_mark.line + 1
        if key in document.lines:
            document.duplicates.append((key, line))
        document.lines.setdefault(key, line)  # a repeated key keeps its first line
        if isinstance(value_node, yaml.MappingNode):
            _record_keys(value_node, key, document)
