"""Where a run reports to: TensorBoard, a JSON lines file, sample files, the terminal."""

from gpt.training.monitor.base import Monitor, MonitorGroup
from gpt.training.monitor.console import Console
from gpt.training.monitor.files import MetricsFile, SampleFiles
from gpt.training.monitor.tensorboard import TensorBoard

__all__ = ["Console", "MetricsFile", "Monitor", "MonitorGroup", "SampleFiles", "TensorBoard"]
