"""The components that a configuration names, such as `model.mlp: swiglu`.

The type of a key that takes a component checks the component's name.
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

They are listed here so that they are checked without importing torch, which takes seconds. The JSON
schema lists them too, from which editors complete a name.
"""
TABLES = {
    "model.mlp": ["gpt.model.layers:ACTIVATIONS", "gpt.model.layers:MLPS"],
    "model.norm": ["gpt.model.layers:NORMS"],
    "model.position": ["gpt.model.positions:POSITIONS"],
    "optim.name": ["gpt.training.optimizers:OPTIMIZERS"],
    "optim.schedule": ["gpt.training.schedule:SCHEDULES"],
    "train.loss_terms": ["gpt.training.objective:LOSS_TERMS"],
}
"""The dicts that hold the components, as `module:name`; plugins add their components to them.

The dicts cannot be imported here, because the modules that define them import this module.
"""


def names_of(key: str) -> list[str]:
    """Return the names that a key of `TABLES` takes, with those of the loaded plugins."""
    names: list[str] = []
    for table in TABLES.get(key, []):
        names.extend(resolve_name(table))
    return names


def _check_component(name: str, key: str) -> str:
    """Return a component's name; raise ValueError if neither the package nor a plugin has it."""
    if name in SHIPPED[key]:
        return name
    known = names_of(key)
    if name not in known:
        raise ValueError(f"expected one of {', '.join(known)}")
    return name


def _component_of(key: str) -> tuple[AfterValidator, Any]:
    """Return the annotations that make `str` the type of a key.

    They are the check of a name, and the names that the JSON schema lists.
    """
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
