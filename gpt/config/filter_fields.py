"""The parameters of the sampling filters, as fields of the models that have them.

`FILTERS` defines each field beside the filter's function. The default of a field keeps all tokens,
and a filter with this value is skipped by the sampler. Models derive from what the functions here
return, so that a filter that is added to `FILTERS` becomes a key of `sample`, an option of the
commands and a field of the server's requests.
"""

from typing import Annotated, Any

from pydantic import Field, create_model

from gpt.config.filters import FILTERS


def filter_fields() -> Any:
    """Return a model with one field for each filter, whose default keeps all tokens."""
    fields: dict[str, Any] = {}
    for name, component in FILTERS.items():
        number_type = type(component.off)  # `off` is the value with which it keeps all tokens
        # `create_model` takes each field as a pair of its type and its default.
        fields[name] = (Annotated[number_type, component.field], component.off)
    return create_model("FilterFields", **fields)


def optional_filter_fields() -> Any:
    """Return a model with one field for each filter, which is None if a request does not set it."""
    fields: dict[str, Any] = {}
    for name, component in FILTERS.items():
        number_type = type(component.off)  # `off` is the value with which it keeps all tokens
        # Pydantic ignores the default and description of a field inside a union with None. So only
        # its bounds are taken, which are in its `metadata`.
        bounded_type: Any = Annotated[number_type, *component.field.metadata]
        field = Field(None, description=component.field.description)
        fields[name] = (bounded_type | None, field)
    return create_model("OptionalFilterFields", **fields)
