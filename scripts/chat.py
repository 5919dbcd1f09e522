import sys
from pathlib import Path

# works from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpt.cli.start import start

start("gpt.cli.chat")
