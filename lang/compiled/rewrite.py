"""A function whose f-strings and joins keep traced values apart, instead of texts with marks in.

Owns: making it of the function's source. Must not know: states, graphs.

What such a text is asked (its length, whether it holds a word) is then refused as the value itself
would be. Functions without source, or whose source has changed since, stay as they are.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from radixserve.lang.compiled.traced import TracedValue, pieces_of
from radixserve.lang.compiled.values import Piece, Use, template
from radixserve.lang.ir import is_text

_TEXT, _JOIN = "__radixserve_text__", "__radixserve_join__"
_CONVERSIONS: dict[int, Callable[[Any], str]] = {115: str, 114: repr, 97: ascii}
_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_known: weakref.WeakKeyDictionary[Callable[..., Any], Callable[..., Any]] = (
    weakref.WeakKeyDictionary()
)


def rewritten(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function to trace in place of `func`."""
    if not isinstance(func, types.FunctionType):
        return func
    if func not in _known:
        _known[func] = _rewritten(func) or func
    return _known[func]


def _rewritten(func: types.FunctionType) -> types.FunctionType | None:
    old = func.__code__
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(old)))
    except (OSError, TypeError, SyntaxError):
        return None
    match tree.body:
        case [ast.FunctionDef() | ast.AsyncFunctionDef() as node] if node.name == old.co_name:
            node.decorator_list = []
        case _:
            return None
    ast.increment_lineno(tree, old.co_firstlineno - 1)
    same = _code_of(tree, old)
    if same is None or _told(same) != _told(old):
        return None
    new = _code_of(_Rewriter().visit(tree), old)
    if new is None:
        return None
    cells = dict(zip(old.co_freevars, func.__closure__ or ()))
    cells |= {_TEXT: types.CellType(text_of), _JOIN: types.CellType(join_of)}
    closure = tuple(cells[name] for name in new.co_freevars)
    made = types.FunctionType(new, func.__globals__, func.__name__, func.__defaults__, closure)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def _code_of(tree: ast.Module, old: types.CodeType) -> types.CodeType | None:
    """The code of the function in `tree`, compiled where it can see what `old` sees."""
    names = [ast.arg(name) for name in (*old.co_freevars, _TEXT, _JOIN)]
    arguments = ast.arguments(
        posonlyargs=[], args=names, kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    outer = ast.FunctionDef("outer", arguments, list(tree.body), [], lineno=1, col_offset=0)
    setattr(outer, "type_params", [])  # noqa: B010 - of Python 3.12
    module = ast.fix_missing_locations(ast.Module([outer], []))
    flags = old.co_flags & _FUTURES
    code = compile(module, old.co_filename, "exec", flags, dont_inherit=True)
    found = [each for each in _codes(_codes([code], "outer"), old.co_name)]
    if len(found) != 1 or set(old.co_freevars) - set(found[0].co_freevars):
        return None
    return found[0]


def _told(code: types.CodeType) -> tuple[object, ...]:
    """What two codes of one source have in common; their instructions may differ in detail."""
    plain = [repr(each) for each in code.co_consts if not isinstance(each, types.CodeType)]
    lines = {line for _, _, line in code.co_lines() if line is not None}
    return (code.co_names, code.co_varnames, code.co_cellvars, sorted(plain), sorted(lines)[1:])


def _codes(codes: Iterable[types.CodeType], name: str) -> list[types.CodeType]:
    """Functions of that name right inside of these."""
    return [
        const
        for code in codes
        for const in code.co_consts
        if isinstance(const, types.CodeType) and const.co_name == name
    ]


class _Rewriter(ast.NodeTransformer):
    """f"a{x!s:y}" -> text("a", (x, 115, "y")); a.join(b) -> join(a, b)."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return self._call(_TEXT, [self._part(each) for each in node.values], node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Attribute(attr="join", value=owner), args=[one], keywords=[]):
                if not isinstance(one, ast.Starred):
                    return self._call(_JOIN, [owner, one], node)
        return node

    def _part(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.FormattedValue):
            return node
        spec = ast.Constant("") if node.format_spec is None else self.visit(node.format_spec)
        conversion = ast.Constant(node.conversion)
        return ast.Tuple([self.visit(node.value), conversion, spec], ast.Load())

    @staticmethod
    def _call(name: str, args: list[ast.expr], at: ast.expr) -> ast.AST:
        call = ast.Call(ast.Name(name, ast.Load()), args, [])
        return ast.copy_location(call, at)


def text_of(*parts: Any) -> Any:
    """What an f-string of these parts comes to: constants, and (value, conversion, format)."""
    pieces: list[Any] = []
    traced: TracedValue | None = None
    for part in parts:
        if type(part) is str:
            pieces.append(part)
            continue
        value, conversion, spec = part
        if type(value) is TracedValue and conversion in (-1, 115) and not spec:
            traced = value
            pieces += [_formatted(piece) for piece in value.pieces]
            continue
        if conversion in _CONVERSIONS:
            value = _CONVERSIONS[conversion](value)
        pieces.append(format(value, spec))
    return _made(pieces, traced)


def join_of(owner: Any, listed: Any) -> Any:
    """owner.join(listed)."""
    if not is_text(owner):
        return owner.join(listed)
    items = list(listed)
    traced = next((each for each in (owner, *items) if type(each) is TracedValue), None)
    if traced is None:
        return owner.join(items)
    pieces: list[Any] = []
    for i, each in enumerate(items):
        pieces += pieces_of(traced.recorder, owner) if i else ()
        pieces += pieces_of(traced.recorder, each)
    return _made(pieces, traced)


def _made(pieces: list[Any], traced: TracedValue | None) -> Any:
    if traced is None:
        return "".join(pieces)
    split: list[Piece] = []
    for piece in pieces:
        split += traced.recorder.split(piece) if isinstance(piece, str) else [piece]
    return TracedValue(traced.recorder, template(split).pieces, traced.label)


def _formatted(piece: Piece) -> Piece:
    return piece if isinstance(piece, str) else Use(piece.source, piece.item, is_formatted=True)
