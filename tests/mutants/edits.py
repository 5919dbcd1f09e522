"""Small faults in a Python file: another comparison, operator, number or condition, or a statement
that is missing.
"""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PAIRS = (
    *(
        (ast.Lt, ast.LtE),
        (ast.Gt, ast.GtE),
        (ast.Eq, ast.NotEq),
        (ast.Is, ast.IsNot),
        (ast.In, ast.NotIn),
    ),
    *(
        (ast.Add, ast.Sub),
        (ast.Mult, ast.Div),
        (ast.Mod, ast.FloorDiv),
        (ast.And, ast.Or),
        (ast.BitAnd, ast.BitOr),
    ),
)
OTHER: dict[type[ast.AST], Any] = {
    one: other for pair in PAIRS for one, other in (pair, pair[::-1])
}
"""Each comparison or operator, and the one in its place."""
WORDS = (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
"""Messages and what is no behavior."""
TELLING = ("report", "warn", "debug", "info", "print", "write_line", "set_description", "update")


@dataclass(frozen=True)
class Edit:
    """One fault; `name` stays while the function does, wherever it moves in its file."""

    file: str
    name: str
    lines: range
    source: str  # the file with the fault
    old: str
    new: str

    @property
    def rank(self) -> str:
        """Digest by which edits are drawn: other edits of the file do not change which are."""
        return hashlib.sha256(f"{self.file} {self.name}".encode()).hexdigest()


def edits_of(file: str, source: str) -> list[Edit]:
    """Return every fault that can be made in a file."""
    found: list[Edit] = []
    seen = Counter[str]()
    raw = source.encode()  # syntax trees count bytes
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for scope, node, changed in _changes(ast.parse(source), ""):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = raw[begin:end].decode()
        new = changed if isinstance(changed, str) else f"({ast.unparse(changed)})"
        text = f"{raw[:begin].decode()}{new}{raw[end:].decode()}"
        name = f"{scope}: {' '.join(old.split())} -> {new}"
        seen[name] += 1
        found.append(
            Edit(
                file,
                f"{name} #{seen[name]}",
                range(node.lineno, node.end_lineno + 1),
                text,
                old,
                new,
            )
        )
    return found


def _changes(
    node: ast.AST, scope: str
) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.expr | str]]:
    """Yield each node that can be changed, the function that it is in, and what is put in its
    place.
    """
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params") or isinstance(
            node, WORDS
        ):
            continue
        children = value if isinstance(value, list) else [value]
        for child in filter(lambda each: isinstance(each, ast.AST), children):
            inner = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{scope}.{child.name}".lstrip(".")
            elif scope:  # constants of a module are mostly limits, of which another is as good
                yield from ((scope, child, changed) for changed in _in_place_of(child))
                if field == "test" and isinstance(child, ast.Name | ast.Attribute | ast.Call):
                    yield scope, child, ast.UnaryOp(ast.Not(), child)
            yield from _changes(child, inner)


def _another_number(value: bool | int | float) -> bool | int | float:
    if isinstance(value, bool):  # before int, of which bool is a subclass
        return not value
    if isinstance(value, int):
        return value + 1
    return 2 * value or 1.0


def _in_place_of(node: ast.AST) -> Iterator[ast.expr | str]:
    """Yield what may stand in the place of an expression or statement: code, or text of it."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[op]) if type(op) in OTHER:
            other.ops = [OTHER[type(op)]()]
            yield other
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OTHER:
            other.op = OTHER[type(op)]()
            if not any(
                isinstance(each, ast.Constant) and isinstance(each.value, str)
                for each in ast.walk(node)
            ):
                yield other
        case ast.UnaryOp(op=ast.Not()):
            yield other.operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield ast.Constant(_another_number(value))
        case ast.Expr(value=ast.Call(func=called)) if (
            getattr(called, "attr", getattr(called, "id", "")) not in TELLING
        ):
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield "pass"
        case ast.Continue():
            yield "pass"
