"""The components that a configuration names, such as `model.mlp: swiglu`.

The types of the keys that take them check the names.
"""

from functools import partial
from pkgutil import resolve_name
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gpt.config.ranges import PositiveFloat

SHIPPED = {
    "model.mlp": ["gelu", "gelu_tanh", "relu", "relu2", "swiglu"],
    "model.norm": ["layernorm", "rmsnorm"],
    "model.position": ["learned", "sinusoidal", "rope"],
    "optim.name": ["adamw", "muon"],
    "optim.schedule": ["cosine", "wsd", "constant"],
    "train.loss_terms": ["z_loss"],
}
"""The names of the package's own components, by the key that takes them.

They are checked without an import of torch, which takes seconds. Editors complete them.
"""
TABLES = {
    "model.mlp": ["gpt.model.layers:ACTIVATIONS", "gpt.model.layers:MLPS"],
    "model.norm": ["gpt.model.layers:NORMS"],
    "model.position": ["gpt.model.positions:POSITIONS"],
    "optim.name": ["gpt.training.optimizers:OPTIMIZERS"],
    "optim.schedule": ["gpt.training.schedule:SCHEDULES"],
    "train.loss_terms": ["gpt.training.objective:LOSS_TERMS"],
}
"""The dicts that hold the components, those of plugins too.

They are texts, since this module is imported by the modules that define them.
"""


def names_of(key: str) -> list[str]:
    """Return the names that a key of `TABLES` takes."""
    names: list[str] = []
    for table in TABLES.get(key, []):
        names.extend(resolve_name(table))
    return names


def _check_component(name: str, key: str) -> str:
    """Return the name of a component; ValueError: neither the package nor a plugin has it."""
    if name in SHIPPED[key]:
        return name
    known = names_of(key)
    if name not in known:
        raise ValueError(f"expected one of {', '.join(known)}")
    return name


def _component_of(key: str) -> tuple[AfterValidator, Any]:
    """Return what makes a text the type of a key: its check, and the names for the schema."""
    check = AfterValidator(partial(_check_component, key=key))
    return check, Field(json_schema_extra={"enum": [*SHIPPED[key]]})


MLPName = Annotated[str, *_component_of("model.mlp")]
NormName = Annotated[str, *_component_of("model.norm")]
PositionName = Annotated[str, *_component_of("model.position")]
OptimizerName = Annotated[str, *_component_of("optim.name")]
ScheduleName = Annotated[str, *_component_of("optim.schedule")]


def _check_terms(terms: dict[str, float]) -> dict[str, float]:
    for name in terms:
        _check_component(name, "train.loss_terms")
    return terms


LossTerms = Annotated[dict[str, PositiveFloat], AfterValidator(_check_terms)]
"""Weights of loss terms, by name."""
