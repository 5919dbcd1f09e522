"""Compare a file of the package on disk with its module in memory.

The file is compiled but not executed as a whole. Functions are compared by their compiled code, and
imports by identity. The expressions of constants and tables are computed again in a copy of the
module's namespace, and their values are compared.
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
"""Hexadecimal digits of a hash: 64 bits suffice, since nobody forges a file with the same hash."""
REPLACED = "was replaced"
EDITED_LATER = "was edited after it was imported; start again"
"""Predicates of a message about a name whose value in memory is not the one in the file."""
ADDED_TO_CLASS = frozenset(
    {"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate_func__"}
    | {"__static_attributes__", "__firstlineno__", "__abstractmethods__", "_abc_impl"}
)
"""Attributes that Python adds to every class, and `abc.ABC` to its subclasses."""
ADDED_TO_DATACLASS = frozenset(
    {"__dataclass_fields__", "__dataclass_params__", "__match_args__", "__init__", "__repr__"}
    | {"__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__"}
)
"""Attributes that `dataclass` adds to a class."""
ADDED_TO_NAMED_TUPLE = frozenset(
    {"__slots__", "__match_args__", "__orig_bases__", "__new__", "__repr__", "__getnewargs__"}
    | {"_fields", "_field_defaults", "_make", "_replace", "_asdict", "__replace__"}
)
"""Attributes that `NamedTuple` adds to a class."""


@dataclass(frozen=True, eq=False)
class SourceFile:
    """A file of the package as it lies on disk.

    Attributes:
        tree: its syntax tree.
        hash: a hash of that tree, which docstrings and comments have no effect on.
        codes: the compiled code of functions and methods, by their qualified names.
    """

    path: Path
    tree: ast.Module
    hash: str
    codes: Mapping[str, CodeType]

    @property
    def imports(self) -> list[ast.stmt]:
        return [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


class Change(NamedTuple):
    """A name whose value in a module is not the one that the file gives it."""

    name: str
    what: str  # a predicate: `REPLACED` or `EDITED_LATER`


@cache  # a process keeps the code that it imported, so that later edits do not matter to it
def read_source(path: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    digest = hashlib.sha256(repr(_as_tuples(tree)).encode()).hexdigest()
    codes = dict(_named_codes(compile(text, str(path), "exec", dont_inherit=True)))
    return SourceFile(path, tree, digest[:HASH_DIGITS], codes)


def change_in_memory(source: SourceFile, module: str) -> Change | None:
    """Return the first name whose value in a module is not the one of its file, or None.

    Args:
        module: the module's name, such as "gpt.model.gpt".
    """
    namespace = vars(import_module(module))
    comparison = _Comparison(source, namespace)
    defined_names: set[str] = set()
    for statement in source.tree.body:
        for name in _bound_names(statement):
            defined_names.add(name)
            what = comparison.change(statement, name, namespace.get(name))
            if what is not None:
                return Change(name, what)
    # The file's code looks up only names that the file defines, and built-ins. So a name that was
    # added to the module later matters only if it hides a built-in, such as `sum`.
    for name in namespace.keys() - defined_names:
        if hasattr(builtins, name) and not name.startswith("__"):
            return Change(name, REPLACED)
    return None


class _Comparison:
    """Compares the values in a module's namespace with those that its file gives them."""

    def __init__(self, source: SourceFile, namespace: Mapping[str, Any]) -> None:
        self._source = source
        self._namespace = namespace

    def change(self, statement: ast.stmt, name: str, found: Any, prefix: str = "") -> str | None:
        """Return `REPLACED` or `EDITED_LATER` if `found` is not what a statement gives a name.

        Args:
            found: the value of the name in memory.
            prefix: "Name." of the class if the statement is part of the body of a class.

        Returns:
            None if the value is the same.
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
                    return None  # other statements, such as docstrings, do not give names values
        except Exception:
            # The statement fails with the values in memory, so one of them was replaced.
            return REPLACED
        return None if is_same(found, expected) else REPLACED

    def _change_of_function(
        self, statement: ast.FunctionDef, qualified_name: str, found: Any
    ) -> str | None:
        """Return how a function in memory differs from its `def` statement, or None."""
        function = found
        # Without a decorator in the file, nothing wraps the function. A wrapper was then set later,
        # and is a replacement.
        if statement.decorator_list:
            function = _undecorated(found)
        if not isinstance(function, FunctionType):
            return REPLACED
        code = function.__code__
        if not _is_same_code(code, self._source.codes[qualified_name]):
            # Other code with the same file and name is from an earlier version of the file.
            is_from_file = code.co_filename == str(self._source.path)
            is_earlier_version = is_from_file and code.co_qualname == qualified_name
            return EDITED_LATER if is_earlier_version else REPLACED
        # Compiled code does not include the defaults of arguments, so their values are compared.
        arguments = statement.args
        found_defaults = function.__defaults__ or ()
        defaults = [self._value_of(default) for default in arguments.defaults]
        if len(found_defaults) != len(defaults) or not all(map(is_same, found_defaults, defaults)):
            return REPLACED
        found_keyword_defaults = function.__kwdefaults__ or {}
        keyword_defaults = {
            argument.arg: self._value_of(default)
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is not None  # a required argument
        }
        # `is_same` accepts additional keys in a dict, but an additional default is a change.
        if found_keyword_defaults.keys() != keyword_defaults.keys():
            return REPLACED
        return None if is_same(found_keyword_defaults, keyword_defaults) else REPLACED

    def _change_of_class(self, statement: ast.ClassDef, found: Any) -> str | None:
        """Return how a class in memory differs from its statement, or None.

        The class must have what each statement of its body gives it, and no other attributes.
        """
        if not isinstance(found, type) or found.__qualname__ != statement.name:
            return REPLACED
        allowed = set(ADDED_TO_CLASS)
        if is_dataclass(found):
            allowed |= ADDED_TO_DATACLASS
        fields: tuple[str, ...] = getattr(found, "_fields", ())
        if fields:
            # `NamedTuple` makes descriptors of the fields in the body of the class. They cannot be
            # compared with the body.
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
        # Any other attribute was set later, for example a method that hides an inherited one.
        return None if attributes.keys() <= allowed else REPLACED

    def _value_of(self, expression: ast.expr) -> Any:
        """Compute an expression of the file again, by the functions and classes in memory."""
        # The compiled module has the imports of the file and one assignment.
        assignment = ast.Assign([ast.Name("__value__", ast.Store())], expression)
        ast.fix_missing_locations(assignment)
        # The imports matter for lambdas, which are compared by their instructions: CPython compiles
        # a call such as `F.gelu(x)` differently if it sees that `F` is imported in the same file.
        statements = [*self._source.imports, assignment]
        code = compile(
            ast.Module(statements, type_ignores=[]),
            str(self._source.path),
            "exec",
            dont_inherit=True,
        )
        namespace = dict(self._namespace)  # a copy, so that `exec` does not change the module
        exec(code, namespace)
        return namespace["__value__"]


def is_same(found: Any, expected: Any) -> bool:
    """Return whether a constant, a dict or a lambda in memory equals the one of the file."""
    if found is expected:
        return True
    if type(found) is not type(expected):
        return False
    if isinstance(expected, FunctionType):
        return _is_same_code(found.__code__, expected.__code__)
    if isinstance(expected, dict):
        # Plugins may add entries to a dict of components. The order of the other entries matters:
        # sampling filters are applied in the order of their dict.
        shared_keys = [key for key in found if key in expected]
        has_same_values = all(is_same(found.get(key), value) for key, value in expected.items())
        return shared_keys == list(expected) and has_same_values
    if is_dataclass(expected):
        return is_same(vars(found), vars(expected))
    # Some values, such as fields of pydantic, equal only themselves; their `repr` is compared.
    return bool(found == expected) or repr(found) == repr(expected)


def _as_tuples(node: Any) -> Any:
    """Return a syntax tree as nested tuples that are the same in every version of Python.

    Docstrings are left out. So are empty fields: later versions have more fields, which are empty
    for code that earlier versions can parse. `ast.dump` shows them, so its text is not the same in
    every version.
    """
    if isinstance(node, ast.AST):
        fields = [(name, _as_tuples(value)) for name, value in ast.iter_fields(node)]
        filled = [(name, value) for name, value in fields if value not in (None, ())]
        return type(node).__name__, *filled
    if isinstance(node, list):
        return tuple(_as_tuples(element) for element in node if not _is_docstring(element))
    return node


def _is_docstring(node: Any) -> bool:
    """Return whether a statement is only a string: a docstring, or the text below a constant."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _named_codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Yield the qualified name and the code of each function that compiled code defines.

    Functions inside of functions and of classes are included.
    """
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _named_codes(constant)


def _bound_names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module or a class defines or imports.

    For an assignment to an attribute or to several names, its source text is returned. It equals no
    name in memory, so that such a statement counts as a change.
    """
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case ast.Assign(targets=targets):
            return [ast.unparse(target) for target in targets]
        case ast.AnnAssign(target=target, value=ast.expr()):  # `x: int` alone defines nothing
            return [ast.unparse(target)]
    return []


def _imported_name(aliases: list[ast.alias], name: str) -> str:
    """Return the original name of what an import statement imports as `name`."""
    return next(alias.name for alias in aliases if (alias.asname or alias.name) == name)


def _undecorated(found: Any) -> Any:
    """Return the function that a decorator was applied to, such as the getter of a property."""
    if isinstance(found, property):
        return found.fget
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    # When the first optimizer of a class is made, torch wraps the method `step` of the class, and
    # marks the wrapper by this attribute. `step` may have a decorator of its own below.
    if getattr(found, "hooked", False):
        found = found.__wrapped__
    return getattr(found, "__wrapped__", found)


def _is_same_code(code: CodeType, expected: CodeType) -> bool:
    return _without_lines(code) == _without_lines(expected)


def _without_lines(code: CodeType) -> CodeType:
    """Return code without line numbers, which an added comment changes."""
    constants = []
    for constant in code.co_consts:
        # The code of an inner function is a constant of the outer one.
        is_code = isinstance(constant, CodeType)
        constants.append(_without_lines(constant) if is_code else constant)
    return code.replace(co_firstlineno=1, co_linetable=b"", co_consts=tuple(constants))
