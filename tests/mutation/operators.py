"""How an expression or a statement can be mistaken for another: one operator for each kind.

No library does this. Of those for Python, mutmut judges by pytest alone and replaces arguments by
None and strings by nonsense, and cosmic-ray has neither strings nor keywords nor arguments; both
leave out what goes wrong in array code: axes, einsum subscripts, dtypes, reductions, shapes. They
would serve as a parser only, in return for a score of dependencies.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

Operator = Callable[[ast.AST], Iterator[ast.AST]]
"""Gives what may stand in a node's place; the node itself stays as it is."""

UNREAD = ("name", "version", "library", "copy", "score_copies")
"""Keyword arguments that are only printed, or spare only time or memory."""

COMPARISONS: Mapping[type[ast.cmpop], Sequence[type[ast.cmpop]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}

ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.MatMult: ast.Mult,
}

METHODS: Mapping[str, Sequence[str]] = {
    "max": ("min", "mean"),
    "min": ("max",),
    "sum": ("max", "mean"),
    "any": ("all",),
    "all": ("any",),
    "ones": ("zeros",),
    "zeros": ("ones",),
    "zeros_like": ("ones_like",),
    "triu": ("tril",),
    "exp": ("exp2", "expm1"),
    "softmax": ("log_softmax", "sigmoid"),
    "isfinite": ("isnan", "isinf"),
    "inf": ("nan", "e"),
    "nan": ("inf",),
    "sqrt": ("log", "exp"),
}
"""Functions, methods and constants of array libraries that are taken for each other."""

WORDS: Mapping[str, Sequence[str]] = {
    "float64": ("float32",),
    "float32": ("float64", "float16"),
    "nan": ("zero",),
    "zero": ("nan",),
    "C": ("F",),
    "bool": ("float32",),
}
"""Strings and attributes that name a dtype, a profile or an order."""

CONFUSED: Sequence[Sequence[str]] = (
    ("q", "k", "v"),
    ("queries", "keys", "values"),
    ("B", "L", "S", "H", "E", "D"),
    ("B", "H", "L"),
    ("hidden", "causal"),
    ("scale", "dropout"),
    ("out", "a"),
)
"""Names of which one is taken for the next."""


def comparison(node: ast.AST) -> Iterator[ast.AST]:
    """Another comparison: the limit itself in or out, or the opposite."""
    if isinstance(node, ast.Compare):
        for i, old in enumerate(node.ops):
            for new in COMPARISONS[type(old)]:
                yield ast.Compare(node.left, _put(node.ops, i, new()), node.comparators)


def arithmetic(node: ast.AST) -> Iterator[ast.AST]:
    """The inverse operation, a sign, or operands in the other order."""
    if isinstance(node, ast.BinOp):
        if type(node.op) in ARITHMETIC:
            yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
        if isinstance(node.op, ast.Sub | ast.Div | ast.MatMult | ast.Pow):
            yield ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield node.operand


def logic(node: ast.AST) -> Iterator[ast.AST]:
    """`and` for `or`, an operand left out, `not` left out."""
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for i in range(len(node.values)):
            rest = _without(node.values, i)
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def condition(node: ast.AST) -> Iterator[ast.AST]:
    """A branch taken always, never, or in the other cases."""
    if isinstance(node, ast.If | ast.IfExp):
        tests = (ast.UnaryOp(ast.Not(), node.test), ast.Constant(True), ast.Constant(False))
        for test in tests:
            if isinstance(node, ast.IfExp):
                yield ast.IfExp(test, node.body, node.orelse)
            else:
                yield ast.If(test, node.body, node.orelse)


def constant(node: ast.AST) -> Iterator[ast.AST]:
    """A number a little off, a truth value turned round."""
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            yield ast.Constant(not value)
        elif isinstance(value, int | float):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)
            if isinstance(value, float) and value not in (0.0, 1.0):
                yield ast.Constant(value * 2)


def axis(node: ast.AST) -> Iterator[ast.AST]:
    """An axis counted from the end, off by one or from the start."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            yield ast.UnaryOp(ast.USub(), ast.Constant(value + 1))
            yield ast.Constant(value - 1)


def keyword(node: ast.AST) -> Iterator[ast.AST]:
    """A keyword argument left to its default."""
    if isinstance(node, ast.Call):
        for i, given in enumerate(node.keywords):
            if given.arg not in UNREAD:
                yield ast.Call(node.func, node.args, _without(node.keywords, i))


def argument(node: ast.AST) -> Iterator[ast.AST]:
    """Two neighbours in a call or a tuple exchanged, or the last one left out."""
    if isinstance(node, ast.Call):
        for args in _exchanged(node.args):
            yield ast.Call(node.func, args, node.keywords)
        if len(node.args) > 1:
            yield ast.Call(node.func, node.args[:-1], node.keywords)
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        for items in _exchanged(node.elts):
            yield ast.Tuple(items, node.ctx)


def default(node: ast.AST) -> Iterator[ast.AST]:
    """A parameter that defaults to None instead, or from None to one."""
    if isinstance(node, ast.arguments):
        for i, old in enumerate(node.defaults):
            if isinstance(old, ast.Constant):
                new = ast.Constant(1.0 if old.value is None else None)
                yield _with_defaults(node, _put(node.defaults, i, new))


def subscripts(node: ast.AST) -> Iterator[ast.AST]:
    """Two neighbouring letters of an einsum operand exchanged."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "->" in node.value:
        text = node.value
        for i in range(len(text) - 1):
            if text[i].isalpha() and text[i + 1].isalpha():
                yield ast.Constant(text[:i] + text[i + 1] + text[i] + text[i + 2 :])


def word(node: ast.AST) -> Iterator[ast.AST]:
    """Another dtype, profile or memory order."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        for new in WORDS.get(node.value, ()):
            yield ast.Constant(new)
    elif isinstance(node, ast.Attribute) and node.attr in WORDS:
        for new in WORDS[node.attr]:
            yield ast.Attribute(node.value, new, node.ctx)


def method(node: ast.AST) -> Iterator[ast.AST]:
    """Another function of the same kind."""
    if isinstance(node, ast.Attribute):
        for new in METHODS.get(node.attr, ()):
            yield ast.Attribute(node.value, new, node.ctx)


def call(node: ast.AST) -> Iterator[ast.AST]:
    """A method or a function of an array left out: its object or first argument stays."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inner = node.func.value
        is_library = isinstance(inner, ast.Name) and inner.id not in ("self", "a", "out")
        if not is_library:
            yield inner
        elif node.args:
            yield node.args[0]


def name(node: ast.AST) -> Iterator[ast.AST]:
    """The next of some names that are easily taken for each other."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for group in CONFUSED:
            if node.id in group:
                new = group[(group.index(node.id) + 1) % len(group)]
                yield ast.Name(new, node.ctx)


STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.For, ast.Return, ast.Raise)


def deletion(node: ast.AST) -> Iterator[ast.AST]:
    """A statement left out."""
    is_declaration = isinstance(node, ast.AnnAssign) and node.value is None
    if isinstance(node, STATEMENTS) and not is_declaration:
        yield ast.Pass()


OPERATORS: Mapping[str, Operator] = {
    operator.__name__: operator
    for operator in (
        comparison,
        arithmetic,
        logic,
        condition,
        constant,
        axis,
        keyword,
        argument,
        default,
        subscripts,
        word,
        method,
        call,
        name,
        deletion,
    )
}


def _with_defaults(node: ast.arguments, defaults: list[ast.expr]) -> ast.arguments:
    return ast.arguments(
        node.posonlyargs,
        node.args,
        node.vararg,
        node.kwonlyargs,
        node.kw_defaults,
        node.kwarg,
        defaults,
    )


def _put(items: Sequence[T], i: int, new: T) -> list[T]:
    return [*items[:i], new, *items[i + 1 :]]


def _without(items: Sequence[T], i: int) -> list[T]:
    return [*items[:i], *items[i + 1 :]]


def _exchanged(items: Sequence[T]) -> Iterator[list[T]]:
    for i in range(len(items) - 1):
        yield [*items[:i], items[i + 1], items[i], *items[i + 2 :]]
