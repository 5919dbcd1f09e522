"""The parameters of the sampling filters, as fields of the models that have them.

The fields are written out in `FILTERS`, beside the functions that they are parameters of: the value
that keeps all tokens is both the default of a field and what tells the sampler to skip the filter.
Models derive from what these functions return, so that a filter that is added to the table is a key
of `sample`, an option of the commands and a field of the server's requests.
"""

from typing import Annotated, Any

from pydantic import Field, create_model

from gpt.config.filters import FILTERS


def filter_fields() -> Any:
    """Return a model with one field for each filter, whose default keeps all tokens."""
    fields: dict[str, Any] = {}
    for name, component in FILTERS.items():
        number_type = type(component.off)
        fields[name] = (Annotated[number_type, component.field], component.off)
    return create_model("FilterFields", **fields)


def optional_filter_fields() -> Any:
    """Return a model with one field for each filter, whose default is None: left out."""
    fields: dict[str, Any] = {}
    for name, component in FILTERS.items():
        number_type = type(component.off)
        # Only the bounds: the whole field has a default, which pydantic ignores inside of a union.
        bounded: Any = Annotated[number_type, *component.field.metadata]
        field = Field(None, description=component.field.description)
        fields[name] = (bounded | None, field)
    return create_model("OptionalFilterFields", **fields)
