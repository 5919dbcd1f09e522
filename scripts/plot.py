import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # works from a checkout that is not installed

from gpt.cli.start import start

start("gpt.cli.plot")
