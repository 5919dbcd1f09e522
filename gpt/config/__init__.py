"""Typed configuration: sections, strict YAML, overrides, dumping."""

from gpt.config.loading import (
    LoadedConfig,
    dump_config,
    load_config,
    load_saved_config,
    parse_config,
    parse_saved_config,
)
from gpt.config.sections import Config, DataConfig, ModelConfig, OptimConfig, RunConfig, SamplingParams, TrainConfig

__all__ = [
    "Config",
    "DataConfig",
    "LoadedConfig",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "SamplingParams",
    "TrainConfig",
    "dump_config",
    "load_config",
    "load_saved_config",
    "parse_config",
    "parse_saved_config",
]
