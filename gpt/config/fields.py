"""Fields of settings: the name of a part of a table, and one for each sampling filter."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from gpt.filters import FILTERS, Filter
from gpt.parts import names_of

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class OneOf:
    """Annotates a key of `gpt.parts.TABLES` that takes the names of parts, and of plugins, as `Literal` some words."""

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


def with_filter_fields(after: str, optional: bool = False) -> Callable[[type[Model]], type[Model]]:
    """Decorate a class to which each filter's field is added.

    Args:
        after: the field that they follow.
        optional: they may be None, and are by default.
    """

    def decorate(cls: type[Model]) -> type[Model]:
        fields = {}
        for name, field in cls.model_fields.items():
            fields[name] = field
            if name == after:
                fields.update({filter_name: _field(part, optional) for filter_name, part in FILTERS.items()})
        cls.model_fields.clear()
        cls.model_fields.update(fields)
        cls.model_rebuild(force=True)
        return cls

    return decorate


def _field(part: Filter, optional: bool) -> FieldInfo:
    kind = type(part.off)
    made = FieldInfo.from_annotated_attribute(kind, part.field)
    if not optional:
        return made
    bounded = FieldInfo.from_annotation(made.rebuild_annotation() | None)
    bounded.default, bounded.description = None, made.description
    return bounded
