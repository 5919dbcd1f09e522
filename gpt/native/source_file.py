"""A file of the package as it lies on disk, and whether its module in memory is the same.

The file is compiled and never executed as a whole: functions are compared by their code, imports by
identity, and tables with what their expressions give in the module itself.
"""

import ast
import builtins
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

HASH_DIGITS = 16
"""Hexadecimal digits of a hash: 64 bits are enough, since nobody looks for two files that agree."""
REPLACED = "was replaced"
EDITED_LATER = "was edited after it was imported; start again"
"""What a message says of a name in memory that the file on disk does not have like that."""
ADDED_TO_CLASS = frozenset(
    {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate_func__"}
    | {"__static_attributes__", "__firstlineno__", "__abstractmethods__", "_abc_impl"}
)
"""Attributes that Python gives to a class, and `abc.ABC` to one that is derived from it."""
ADDED_TO_DATACLASS = frozenset(
    {"__dataclass_fields__", "__dataclass_params__", "__match_args__", "__init__", "__repr__"}
    | {"__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__"}
)
"""Attributes that `dataclass` gives to a class."""
ADDED_TO_NAMED_TUPLE = frozenset(
    {"__slots__", "__match_args__", "__orig_bases__", "__new__", "__repr__", "__getnewargs__"}
    | {"_fields", "_field_defaults", "_make", "_replace", "_asdict", "__replace__"}
)
"""Attributes that `NamedTuple` gives to a class."""


@dataclass(frozen=True, eq=False)
class SourceFile:
    """A file of the package as it lies on disk.

    Attributes:
        tree: its syntax tree.
        hash: a hash of that tree without docstrings, on which they and comments have no effect.
        codes: compiled functions and methods, by their qualified names.
    """

    path: Path
    tree: ast.Module
    hash: str
    codes: Mapping[str, CodeType]

    @property
    def imports(self) -> list[ast.stmt]:
        return [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


class Change(NamedTuple):
    """A name of a module that does not have the value that the file gives it."""

    name: str
    what: str  # a predicate: `REPLACED` or `EDITED_LATER`


@cache  # a later edit on disk is not in memory either, and is read by the next process
def read_source(path: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    digest = hashlib.sha256(repr(_as_tuples(tree)).encode()).hexdigest()
    codes = dict(_named_codes(compile(text, str(path), "exec", dont_inherit=True)))
    return SourceFile(path, tree, digest[:HASH_DIGITS], codes)


def change_in_memory(source: SourceFile, module: str) -> Change | None:
    """Return the first name of a module that does not have the value of its file, or None."""
    namespace = vars(import_module(module))
    comparison = _Comparison(source, namespace)
    defined: set[str] = set()
    for statement in source.tree.body:
        for name in _bound_names(statement):
            defined.add(name)
            what = comparison.change(statement, name, namespace.get(name))
            if what is not None:
                return Change(name, what)
    # The code of the file looks up no other names in memory, unless one hides a built-in.
    for name in namespace.keys() - defined:
        if hasattr(builtins, name) and not name.startswith("__"):
            return Change(name, REPLACED)
    return None


class _Comparison:
    """Compares what a module has in memory with what the statements of its file give."""

    def __init__(self, source: SourceFile, namespace: Mapping[str, Any]) -> None:
        self._source = source
        self._namespace = namespace

    def change(self, statement: ast.stmt, name: str, found: Any, prefix: str = "") -> str | None:
        """Return how `found` differs from what a statement gives a name, or None.

        Args:
            prefix: "Class." where the statement stands in the body of a class.
        """
        try:
            match statement:
                case ast.FunctionDef():
                    return self._change_of_function(statement, prefix + name, found)
                case ast.ClassDef():
                    return self._change_of_class(statement, found)
                case ast.Import(names=aliases):
                    expected: Any = import_module(_imported_name(aliases, name))
                case ast.ImportFrom(module=str(origin), names=aliases):
                    expected = getattr(import_module(origin), _imported_name(aliases, name))
                case ast.Assign(value=expression) | ast.AnnAssign(value=ast.expr() as expression):
                    expected = self._value_of(expression)
                case _:
                    return None  # other statements, such as docstrings, give no name a value
        except Exception:
            # The statement does not even run with what is in memory now.
            return REPLACED
        return None if is_same(found, expected) else REPLACED

    def _change_of_function(
        self, statement: ast.FunctionDef, qualified_name: str, found: Any
    ) -> str | None:
        """Return how a function in memory differs from its `def`, or None.

        Its code is compared, and then the values of its defaults.
        """
        function = _undecorated(found) if statement.decorator_list else found
        if not isinstance(function, FunctionType):
            return REPLACED
        code = function.__code__
        if not _is_same_code(code, self._source.codes[qualified_name]):
            # Code of the same file and name is that of an earlier version of the file.
            is_from_file = code.co_filename == str(self._source.path)
            is_former = is_from_file and code.co_qualname == qualified_name
            return EDITED_LATER if is_former else REPLACED
        # Defaults are no part of the code, so that they are compared one by one.
        arguments = statement.args
        defaults = tuple(self._value_of(each) for each in arguments.defaults)
        if (function.__defaults__ or ()) != defaults:
            return REPLACED
        keyword_defaults = {
            argument.arg: self._value_of(default)
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None
        }
        if (function.__kwdefaults__ or {}) != keyword_defaults:
            return REPLACED
        return None

    def _change_of_class(self, statement: ast.ClassDef, found: Any) -> str | None:
        """Return how a class in memory differs from its statement, or None.

        Each statement of its body is compared, and then no other attribute may be there.
        """
        if not isinstance(found, type) or found.__qualname__ != statement.name:
            return REPLACED
        allowed = set(ADDED_TO_CLASS)
        if is_dataclass(found):
            allowed |= ADDED_TO_DATACLASS
        fields: tuple[str, ...] = getattr(found, "_fields", ())
        if fields:
            # The fields of a named tuple became descriptors, and their defaults those of its
            # constructor, so that the class has no longer what its body gave them.
            allowed |= ADDED_TO_NAMED_TUPLE.union(fields)
        attributes = vars(found)
        for part in statement.body:
            for name in _bound_names(part):
                if name in fields:
                    continue
                allowed.add(name)
                prefix = f"{statement.name}."
                what = self.change(part, name, attributes.get(name), prefix)
                if what is not None:
                    return what
        # Anything else was set later: a method that hides an inherited one, or a descriptor.
        return None if attributes.keys() <= allowed else REPLACED

    def _value_of(self, expression: ast.expr) -> Any:
        """Compute an expression of the file again, from the functions and classes in memory."""
        assignment = ast.Assign([ast.Name("__value__", ast.Store())], expression)
        ast.fix_missing_locations(assignment)
        # The imports are compiled with it: CPython calls a function of an imported module by other
        # instructions, and lambdas are compared by their instructions.
        statements = [*self._source.imports, assignment]
        code = compile(
            ast.Module(statements, type_ignores=[]),
            str(self._source.path),
            "exec",
            dont_inherit=True,
        )
        namespace = dict(self._namespace)  # a copy: the module itself stays as it is
        exec(code, namespace)
        return namespace["__value__"]


def is_same(found: Any, expected: Any) -> bool:
    """Return whether a constant, a table or a lambda in memory is what its file gives."""
    if found is expected:
        return True
    if type(found) is not type(expected):
        return False
    if isinstance(expected, FunctionType):
        return _is_same_code(found.__code__, expected.__code__)
    if isinstance(expected, dict):
        # A plugin may have added entries. The order matters too, since filters are applied in it.
        order = [key for key in found if key in expected]
        same_values = all(is_same(found.get(key), value) for key, value in expected.items())
        return order == list(expected) and same_values
    if is_dataclass(expected):
        return is_same(vars(found), vars(expected))
    # Fields of pydantic have no equality, but their `repr` has all that they hold.
    return bool(found == expected) or repr(found) == repr(expected)


def _as_tuples(node: Any) -> Any:
    """Return a syntax tree as tuples, without docstrings, which all versions of Python agree on.

    `ast.dump` differs between versions: later ones have more fields, which are empty in code that
    earlier versions can read. Empty fields are left out here.
    """
    if isinstance(node, ast.AST):
        fields = [(name, _as_tuples(value)) for name, value in ast.iter_fields(node)]
        filled = [(name, value) for name, value in fields if value not in (None, ())]
        return type(node).__name__, *filled
    if isinstance(node, list):
        return tuple(_as_tuples(each) for each in node if not _is_docstring(each))
    return node


def _is_docstring(node: Any) -> bool:
    """Return whether a statement is a text alone: a docstring, also one below a constant."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _named_codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Yield the functions that compiled code defines, those of its classes too, by name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _named_codes(constant)


def _bound_names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module or a class defines or imports.

    An assignment to an attribute or to several names gives its source text, which no name equals.
    """
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case ast.Assign(targets=targets):
            return [ast.unparse(target) for target in targets]
        case ast.AnnAssign(target=target, value=ast.expr()):  # without a value it defines nothing
            return [ast.unparse(target)]
    return []


def _imported_name(aliases: list[ast.alias], name: str) -> str:
    """Return what a module itself calls the thing that is imported as `name`."""
    return next(alias.name for alias in aliases if (alias.asname or alias.name) == name)


def _undecorated(found: Any) -> Any:
    """Return the function of a property, or the one inside what a decorator returned."""
    if isinstance(found, property):
        return found.fget
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    return getattr(found, "__wrapped__", found)


def _is_same_code(code: CodeType, expected: CodeType) -> bool:
    return _without_lines(code) == _without_lines(expected)


def _without_lines(code: CodeType) -> CodeType:
    """Return code without line numbers, which a comment above it changes."""
    constants = [
        _without_lines(each) if isinstance(each, CodeType) else each for each in code.co_consts
    ]
    return code.replace(co_firstlineno=1, co_linetable=b"", co_consts=tuple(constants))
