"""YAML as people expect it: `3e-4` is a number, duplicate keys are found, and the line of every key
is known.
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
"""Length of the longest text that is parsed, which takes a hundred times its memory."""


@dataclass
class Document:
    """A parsed YAML mapping.

    Attributes:
        lines: 1-based line of each key.
        duplicates: keys that are given more than once, with the line of the repetition.
    """

    data: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)
    duplicates: list[tuple[Key, int]] = field(default_factory=list)

    def line_of(self, key: Key) -> int | None:
        """Return the line of a key, or else of the section above it."""
        return next(
            (self.lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.lines), None
        )


class YAMLSyntaxError(Exception):
    """The text is not YAML, or not a mapping; `line` is 1-based."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


class _Loader(yaml.SafeLoader):
    """SafeLoader with the numbers and booleans of YAML 1.2: `1e-3` is a float, `no` is a string.

    Tags and aliases are refused: a configuration does not need them, and with them a few lines
    could build objects, refer to themselves or expand to gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.tag is not None:
            what = "an alias" if isinstance(event, yaml.AliasEvent) else "a tag"
            raise yaml.MarkedYAMLError(
                problem=f"{what} is not allowed here; write the value itself",
                problem_mark=event.start_mark,
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
    first: [
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
        *_Loader.yaml_implicit_resolvers.get(first, []),
    ]
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

    Raises: YAMLSyntaxError: the text is not YAML, holds a tag or an alias, is not a mapping, or is
        too long.
    """
    if len(text) > MAX_CHARACTERS:
        raise YAMLSyntaxError(f"it has more than {MAX_CHARACTERS:,} characters", None)
    document = Document({})
    with _syntax_errors():
        loader = _Loader(text)
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            _record_keys(node, (), document)
            document.data = loader.construct_document(node)
        elif node is not None:
            raise YAMLSyntaxError("expected 'section: ...' lines", node.start_mark.line + 1)
    return document


def parse_value(text: str) -> Any:
    """Parse the right side of a `key=value` override; YAMLSyntaxError: it is not a YAML value."""
    with _syntax_errors():
        return yaml.load(text, Loader=_Loader)


@contextmanager
def _syntax_errors() -> Iterator[None]:
    """Raise a YAMLSyntaxError for each error of PyYAML."""
    try:
        yield
    except RecursionError:
        raise YAMLSyntaxError("brackets or lists are nested too deeply", None) from None
    except ValueError:
        raise YAMLSyntaxError("a number has too many digits", None) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not YAML"
        raise YAMLSyntaxError(" ".join(problem.split()), mark.line + 1 if mark else None) from error
    except yaml.YAMLError as error:
        raise YAMLSyntaxError(" ".join(str(error).split()), None) from error


def _record_keys(node: yaml.MappingNode, above: Key, document: Document) -> None:
    for key_node, value_node in node.value:
        key = (*above, str(key_node.value))
        line = key_node.start_mark.line + 1
        if key in document.lines:
            document.duplicates.append((key, line))
        document.lines.setdefault(key, line)
        if isinstance(value_node, yaml.MappingNode):
            _record_keys(value_node, key, document)
