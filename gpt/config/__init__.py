"""The sections of a typed configuration.

`gpt.config.loading` reads them from strict YAML, with overrides, and writes them.
"""

from gpt.config.sections import (
    Config,
    DataConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SampleConfig,
    SamplingParams,
    TrainConfig,
)

__all__ = [
    "Config",
    "DataConfig",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "SampleConfig",
    "SamplingParams",
    "TrainConfig",
]
