"""Serve many requests at a time with one engine, whose batch they join and leave at every step."""

from gpt.extras.serving.engine_thread import EngineThread
from gpt.generation.engine import EngineStats
from gpt.generation.sequence import EngineClosedError, QueueFullError, Request

__all__ = ["EngineClosedError", "EngineStats", "EngineThread", "QueueFullError", "Request"]
