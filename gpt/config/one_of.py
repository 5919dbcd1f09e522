"""A key whose value is the name of a part."""

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from gpt.parts import names_of


@dataclass(frozen=True)
class OneOf:
    """Annotates a key that takes the names of a table of parts, and of its plugins, as `Literal` takes some words.

    Args:
        key: the key, see `gpt.parts.TABLES`.
    """

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": names_of(self.key), "type": "string"}

    def _check(self, value: Any) -> str:
        names = names_of(self.key)
        if not isinstance(value, str) or value not in names:
            *first, last = map(repr, names)
            raise PydanticKnownError("literal_error", {"expected": f"{', '.join(first)} or {last}"})
        return value
