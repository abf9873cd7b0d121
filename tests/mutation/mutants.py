"""Every mutant of a module's source: the source with one node replaced."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from tests.mutation.operators import OPERATORS, UNREAD

SILENT = ("errstate", "require_cpu", "require_device", "check_device", "_score_copies")
"""Functions that change no result: warnings, devices, of which the suite has one, and estimates of
memory, which tests/test_bench_limits.py compares with what is taken."""

ENOUGH = 12
"""Characters of code by which a reader knows the place."""

UNORDERED = (ast.Compare, ast.For)
"""Where the order of a tuple's items does not matter: `in`, and loops over cases."""

LONG, MARGIN = 90, 24
"""Characters beyond which a line is cut, and how many stay beside what changed."""

Place = tuple[ast.AST, str, int | None]
"""A node, one of its fields, and an index where that holds a list."""

Found = Iterator[tuple[ast.AST, Sequence[Place]]]
"""Functions, and the way to a place in each."""


@dataclass(frozen=True)
class Mutant:
    """A module with one thing changed."""

    id: str
    """Where, and what was changed into what: unique, and the same as long as that code is."""
    module: str
    kind: str
    """The operator."""
    source: str


def mutants(module: str, source: str, *, without: Container[str] = ()) -> Iterator[Mutant]:
    """Every mutant of a module, each once.

    Names, annotations, messages and documentation stay as they are, as do the functions and the
    statements that mention a name in `without`.
    """
    tree = ast.parse(source)
    statements = [ast.unparse(statement) for statement in tree.body]
    seen = {"\n".join(statements)}
    ids: Counter[str] = Counter()
    for function, path in _places(tree, without):
        owner, field, index = path[-1]
        node = _get(owner, field, index)
        shown = _shown(path, node, ast.unparse(function))
        before = _text(shown or node)
        for kind, operator in OPERATORS.items():
            for new in operator(node):
                _set(owner, field, index, new)
                after = _text(shown or new)
                mutated = "\n".join(_changed(tree, statements, path))
                _set(owner, field, index, node)
                if mutated in seen:
                    continue
                seen.add(mutated)
                place = f"{module}.{_name(path)}" if _name(path) else module
                change = f"{place}: {' -> '.join(_apart(before, after))}"
                ids[change] += 1
                number = f" #{ids[change]}" * (ids[change] > 1)
                yield Mutant(change + number, module, kind, mutated)


def _changed(tree: ast.Module, statements: list[str], path: Sequence[Place]) -> list[str]:
    """The module's statements as text, the one that a place is in as it is now."""
    index = path[0][2]
    assert index is not None
    return [*statements[:index], ast.unparse(tree.body[index]), *statements[index + 1 :]]


def _places(tree: ast.Module, without: Container[str]) -> Found:
    """Each place that an operator may change, with its function and the way to it."""

    def visit(node: ast.AST, function: ast.AST, path: list[Place]) -> Found:
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "bases"):
                continue
            children = value if isinstance(value, list) else [value]
            for i, child in enumerate(children):
                if not isinstance(child, ast.AST) or _is_left(child, without):
                    continue
                here = [*path, (node, field, i if isinstance(value, list) else None)]
                inside = child if isinstance(child, ast.FunctionDef) else function
                if not (isinstance(child, ast.Tuple) and isinstance(node, UNORDERED)):
                    yield inside, here
                if not isinstance(child, ast.Raise):
                    yield from visit(child, inside, here)

    yield from visit(tree, tree, [])


def _is_left(node: ast.AST, without: Container[str]) -> bool:
    """Whether a node says nothing that a result depends on, or is to be left as it is."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.expr_context():
            return True
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.keyword(arg=name) if name in UNREAD:
            return True
        case ast.FunctionDef(name=name):
            return name in without or name in SILENT
        case ast.If(test=part):
            return _mentions(part, without)
        case ast.Assign() | ast.Expr() | ast.keyword() | ast.Call():
            return _mentions(node, without) or _mentions(getattr(node, "func", node), SILENT)
    return False


def _mentions(node: ast.AST, names: Container[str]) -> bool:
    """Whether a name or an attribute in a piece of code is one of some."""
    return any(
        (isinstance(part, ast.Name) and part.id in names)
        or (isinstance(part, ast.Attribute) and part.attr in names)
        for part in ast.walk(node)
    )


def _shown(path: Sequence[Place], node: ast.AST, function: str) -> ast.AST | None:
    """The smallest piece of code round a node that says where it is; None: the node itself.

    A statement is enough, however often it is there.
    """
    nodes = [owner for owner, _, _ in path[1:]] + [node]
    for depth in range(len(nodes) - 1, -1, -1):
        candidate = nodes[depth]
        if isinstance(candidate, ast.keyword | ast.arguments | ast.comprehension):
            continue
        text = _text(candidate)
        if isinstance(candidate, ast.stmt) or (len(text) >= ENOUGH and function.count(text) == 1):
            return None if candidate is node else candidate
    return None


def _text(node: ast.AST) -> str:
    """A node in one line: of a compound statement, its head."""
    return ast.unparse(node).partition("\n")[0]


def _apart(before: str, after: str) -> tuple[str, str]:
    """Two long lines from a little before the first difference to a little after the last."""
    if max(len(before), len(after)) <= LONG:
        return before, after
    ahead = _alike(before, after)
    behind = _alike(before[ahead:][::-1], after[ahead:][::-1])
    start, end = max(ahead - MARGIN, 0), max(behind - MARGIN, 0)
    return tuple(  # type: ignore[return-value] # of two
        "..." * bool(start) + text[start : len(text) - end] + "..." * bool(end)
        for text in (before, after)
    )


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _name(path: Sequence[Place]) -> str:
    """Dotted name of the class and function that a place is in."""
    owners = [owner for owner, _, _ in path]
    return ".".join(
        owner.name for owner in owners if isinstance(owner, ast.ClassDef | ast.FunctionDef)
    )


def _get(owner: ast.AST, field: str, index: int | None) -> ast.AST:
    value = getattr(owner, field)
    node: ast.AST = value if index is None else value[index]
    return node


def _set(owner: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(owner, field, node)
    else:
        getattr(owner, field)[index] = node
