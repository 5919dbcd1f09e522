"""The page at /docs: the server's OpenAPI document as plain HTML, which needs nothing from another site."""

from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; background: Canvas }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font-family: ui-monospace, monospace }
table { border-collapse: collapse; display: block; overflow-x: auto }
td, th { border: 1px solid #8886; padding: 0.2rem 0.6rem; text-align: left; vertical-align: top }
"""


def reference_page(document: dict[str, Any]) -> str:
    """Return a page that describes the endpoints of an OpenAPI document, and the bodies they take and return."""
    title, description = document["info"]["title"], document["info"]["description"]
    endpoints = "".join(
        _endpoint(method.upper(), path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><main><h1>{escape(title)}</h1><p>{escape(description)} "
        f'The same for programs: <a href="openapi.json">openapi.json</a>.</p><h2>Endpoints</h2>{endpoints}'
        f"<h2>Bodies</h2>{schemas}</main></html>"
    )


def _endpoint(method: str, path: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    takes = f" Takes {_type(body)}." if body else ""
    return f"<h3><code>{method} {escape(path)}</code></h3><p>{escape(operation.get('description', ''))}{takes}</p>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{'' if field in required else ' (optional)'}<td>{_type(value)}"
        f"<td>{escape(value.get('description', ''))}"
        for field, value in schema.get("properties", {}).items()
    )
    head = "<tr><th>field<th>type<th>meaning"
    about = escape(schema.get("description", ""))
    return f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{about}</p><table tabindex="0">{head}{rows}</table>'


def _type(schema: dict[str, Any]) -> str:
    """Return the type of a value, in words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"] if part.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return " or ".join(escape(repr(value)) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return " ".join([escape(str(schema.get("type", "any"))), *_range(schema)])


def _range(schema: dict[str, Any]) -> Iterator[str]:
    words = {"minimum": "≥", "exclusiveMinimum": "&gt;", "maximum": "≤", "exclusiveMaximum": "&lt;"}
    for key, word in words.items():
        if key in schema:
            yield f"{word} {schema[key]:g}"
