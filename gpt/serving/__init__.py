"""Serve many requests at a time with one engine, whose batch they join and leave at every step."""

from gpt.serving.engine import ServingEngine
from gpt.serving.engine_core import EngineStats
from gpt.serving.request import EngineClosedError, QueueFullError, Request

__all__ = ["EngineClosedError", "EngineStats", "QueueFullError", "Request", "ServingEngine"]
