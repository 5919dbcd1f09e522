"""Print questions and answers as JSON lines: sets on which learning from answers is measured.

    python -m benchmarks.pairs arithmetic > arithmetic.jsonl

The days and the order of all are random, by a fixed seed.
"""

import argparse
import ast
import calendar
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

SEED = 1
NUM_DATES = 3_000
MAX_AMOUNT = 400
MAX_SUMMARY = 80
"""Characters of the longest first line of a docstring that is an answer."""
UNITS = (("km", "m", 1000), ("m", "cm", 100), ("cm", "mm", 10), ("kg", "g", 1000))
ONES = (
    *("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def arithmetic() -> Iterator[tuple[str, str]]:
    """Yield all sums of two numbers of at most two digits."""
    for first in range(100):
        for second in range(100):
            yield f"{first}+{second}", str(first + second)


def dates() -> Iterator[tuple[str, str]]:
    """Yield days from 1900 to 2099, in digits and in words."""
    draw = random.Random(SEED)
    for _ in range(NUM_DATES):
        day = date(1900, 1, 1) + timedelta(days=draw.randrange(73_000))
        month = calendar.month_name[day.month]
        month_and_day = f"{day.day} {month}"
        yield day.isoformat(), f"{month_and_day}, {_year_in_words(day.year)}"


def _year_in_words(year: int) -> str:
    century, rest = divmod(year, 100)
    if century == 20 and rest < 10:
        return f"two thousand {ONES[rest]}".strip()
    if rest == 0:
        return f"{_in_words(century)} hundred"
    if rest < 10:
        return f"{_in_words(century)} oh {ONES[rest]}"
    return f"{_in_words(century)} {_in_words(rest)}"


def _in_words(number: int) -> str:
    """Return a number below 100 in words."""
    if number < len(ONES):
        return ONES[number]
    tens, ones = divmod(number, 10)
    return f"{TENS[tens]}-{ONES[ones]}".rstrip("-")


def conversions() -> Iterator[tuple[str, str]]:
    """Yield lengths and weights in one unit and in another, by powers of ten."""
    for number in range(1, MAX_AMOUNT):
        for large, small, factor in UNITS:
            yield f"{number} {large} in {small}", f"{number * factor} {small}"
            yield f"{number * factor} {small} in {large}", f"{number} {large}"


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield functions and classes of the standard library, and the first lines of their docstrings.

    What a name does can hardly be known from other names: this set shows how well answers are
    written, by their loss, and not how many are right.
    """
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            docstring = ast.get_docstring(node) or ""
            summary = docstring.partition("\n")[0]
            is_sentence = summary.endswith(".") and summary.isascii()
            if is_sentence and len(summary) <= MAX_SUMMARY:
                yield f"what does {file.stem}.{node.name} do", summary


SETS = {
    "arithmetic": arithmetic,
    "dates": dates,
    "conversions": conversions,
    "docstrings": docstrings,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Print questions and answers as JSON lines.")
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--as-text", action="store_true", help="lines of running text instead")
    arguments = parser.parse_args()
    pairs = list(SETS[arguments.set]())
    random.Random(SEED).shuffle(pairs)
    for prompt, answer in pairs:
        if arguments.as_text:
            print(f"{prompt} {answer}")
        else:
            print(json.dumps({"prompt": prompt, "answer": answer}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
