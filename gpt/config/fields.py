"""Fields of settings: the name of a part of a table, and one for each sampling filter, a plugin's included."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from gpt.errors import ConfigError
from gpt.filters import FILTERS, Filter
from gpt.parts import names_of, with_plugins

Model = TypeVar("Model", bound=BaseModel)

_CLASSES: list[tuple[type[BaseModel], str, bool]] = []


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


def all_filters() -> dict[str, Filter]:
    """Return the filters of the package and of plugins, in the order in which they are applied."""
    return with_plugins("FILTERS", FILTERS)


def with_filter_fields(after: str, optional: bool = False) -> Callable[[type[Model]], type[Model]]:
    """Decorate a class to which each filter's field is added.

    Args:
        after: the field that they follow.
        optional: they may be None, and are by default.
    """

    def decorate(cls: type[Model]) -> type[Model]:
        _CLASSES.append((cls, after, optional))
        _set_fields(cls, after, optional)
        return cls

    return decorate


def renew_filter_fields() -> None:
    """Give every decorated class the fields of the present plugins; classes that hold one are then to be rebuilt."""
    for cls, after, optional in _CLASSES:
        _set_fields(cls, after, optional)


def _set_fields(cls: type[BaseModel], after: str, optional: bool) -> None:
    own = {name: field for name, field in cls.model_fields.items() if name in cls.__annotations__}
    if both := own.keys() & all_filters().keys():
        raise ConfigError(f"FILTERS: {both.pop()} is a name of {cls.__name__} already; choose another")
    fields = {}
    for name, field in own.items():
        fields[name] = field
        if name == after:
            fields.update({filter_name: _field(part, optional) for filter_name, part in all_filters().items()})
    cls.model_fields.clear()
    cls.model_fields.update(fields)
    cls.model_rebuild(force=True)


def _field(part: Filter, optional: bool) -> FieldInfo:
    kind = type(part.off)
    made = FieldInfo.from_annotated_attribute(kind, part.field)
    if not optional:
        return made
    bounded = FieldInfo.from_annotation(made.rebuild_annotation() | None)
    bounded.default, bounded.description = None, made.description
    return bounded
