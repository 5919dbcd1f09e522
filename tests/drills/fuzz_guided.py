"""Fuzzing that is guided by coverage, with libFuzzer: an input that reaches new code is kept, and changed further.

`python -m drills.fuzz_guided NAME EXECUTIONS FOLDER` attacks a target in a process of its own: its imports have to be
instrumented, and libFuzzer ends the process on a failure.
"""

import random
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from drills.frame import Tally
from patience import PATIENCE

if __name__ == "__main__":
    import atheris

    with atheris.instrument_imports(include=["yaml", "gpt.config", "gpt.data", "gpt.generation.text"]):
        from drills import fuzz_properties
        from drills.fuzz_files import attack_tokenizer

LONGEST = 200
"""Bytes of an input."""
SECONDS = 10
"""After which one input is a hang."""


class Chance(random.Random):
    """Chance that an input decides: libFuzzer changes its bytes where other decisions led to new code."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._bytes = iter(data)

    def getrandbits(self, count: int) -> int:
        """Return an integer of so many bits; 0 after the end of the input."""
        return int.from_bytes(bytes(next(self._bytes, 0) for _ in range((count + 7) // 8))) & ((1 << count) - 1)

    def random(self) -> float:
        """Return a number from 0 to 1."""
        return next(self._bytes, 0) / 256


def attack_texts(data: bytes) -> None:
    """Encode a text, and decode ids that are of no text."""
    tokenizer = fuzz_properties.TOKENIZERS[data[0] % 3 if data else 0]
    fuzz_properties.a_text_is_decoded_as_it_was_encoded(data[1:].decode("utf-8", errors="surrogateescape"), tokenizer)
    fuzz_properties.streamed_ids_are_the_text_of_all(list(data[1:]), tokenizer)


def attack_tokenizer_files(data: bytes) -> None:
    """Build a tokenizer from a damaged description, and use it."""
    attack_tokenizer(Chance(data))


def attack_yaml(data: bytes) -> None:
    """Parse a text as a file and as a value; what can be read is written, and read again."""
    text = data.decode("utf-8", errors="surrogateescape")
    fuzz_properties.text_is_yaml_or_a_syntax_error(text)
    fuzz_properties.what_was_read_is_written_and_read_again(text)


def attack_stop_strings(data: bytes) -> None:
    """Look for strings in a text, both of few letters."""
    text, *stop = "".join("abé\n"[byte % 4] for byte in data).split("\n")
    fuzz_properties.the_text_ends_before_the_first_stop_string(text, [string for string in stop if string])


TARGETS: dict[str, Callable[[bytes], None]] = {
    "texts": attack_texts,
    "tokenizer files": attack_tokenizer_files,
    "YAML": attack_yaml,
    "stop strings": attack_stop_strings,
}
TAGS = ("!!int", "!!float", "!!bool", "!!binary", "!!timestamp", "!!omap", "!!set", "%TAG ! a", "%YAML 1.1")
WORDS = (*TAGS, "---", "...", "<<: ", "&a", "*a", "? ", "\\u00", "|2-", ".inf", ".nan", "0x1", "2001-01-01", "é")
"""Pieces of YAML and of UTF-8 that chance would not find soon."""


def guide(folder: Path, tally: Tally, executions: int) -> None:
    """Attack each target a fixed number of times, or count those that are not possible without the extra `fuzz`."""
    for name in TARGETS:
        if find_spec("atheris") is None:
            tally.count("kinds of them not possible here")
            continue
        command = [sys.executable, "-m", "drills.fuzz_guided", name, str(executions), str(folder)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            tally.count("hangs")
            tally.check(False, f"{name}, guided by coverage: not done after {PATIENCE:g} s")
            continue
        tally.count("guided by coverage", executions)
        if ended.returncode:
            tally.count("hangs" if "timeout after" in ended.stderr else "tracebacks")
            tally.check(False, f"{name}, guided by coverage: {(ended.stdout + ended.stderr)[-2500:]}")


def main(name: str, executions: int, folder: Path) -> None:
    """Attack a target; the process ends with another exit code than 0 if it fails."""
    words = folder / "words.txt"
    escaped = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in WORDS)
    words.write_text("".join(f'"{word}"\n' for word in escaped), encoding="ascii")
    limits = (f"-max_len={LONGEST}", f"-timeout={SECONDS}", "-rss_limit_mb=4096", "-len_control=5", "-seed=1")
    places = (f"-dict={words}", f"-artifact_prefix={folder}/", "-verbosity=0")
    atheris.Setup([sys.argv[0], f"-atheris_runs={executions}", *limits, *places], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
