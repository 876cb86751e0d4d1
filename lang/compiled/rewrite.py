"""The code of a function, in which whatever could look at a traced value in silence asks first.

Owns: making it of the function's source. Must not know: what is done with the questions.

Functions without source, or whose source has changed since, have none.
"""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
import textwrap
import types
import weakref
from collections.abc import Iterable
from typing import Any

TEXT, CALL, PERCENT, SEEN = (
    f"__radixserve_{verb}__" for verb in ("text", "call", "percent", "seen")
)
QUESTIONS = (TEXT, CALL, PERCENT, SEEN)
_OF_A_FRAME = {"super", "locals", "globals", "vars", "dir", "eval", "exec"}
_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_LOADS = {"LOAD_ATTR", "LOAD_METHOD"}
_OF_CALLS = {"PUSH_NULL", "PRECALL", "NOP", "CACHE", "EXTENDED_ARG"}
_known: weakref.WeakKeyDictionary[types.CodeType, types.CodeType | None] = (
    weakref.WeakKeyDictionary()
)
_made: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


def asking_code(code: types.CodeType) -> types.CodeType | None:
    """The code to run in place of `code`; of what that makes itself, `code` as it is."""
    if code in _made:
        return code
    if code not in _known:
        _known[code] = new = _rewritten(code)
        _made.update(_all_codes(new))
    return _known[code]


def _all_codes(code: Any) -> Iterable[types.CodeType]:
    if isinstance(code, types.CodeType):
        yield code
        for const in code.co_consts:
            yield from _all_codes(const)


def _rewritten(old: types.CodeType) -> types.CodeType | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(old)))
    except (OSError, TypeError, SyntaxError):
        return None
    ast.increment_lineno(tree, old.co_firstlineno - 1)
    for one in _candidates(tree, old.co_name):
        same = _code_of(one, old)
        if same is not None and _told(same) == _told(old):
            return _code_of(_Rewriter().visit(one), old)
    return None


def _candidates(tree: ast.Module, name: str) -> Iterable[ast.Module]:
    """The function, or each lambda of the statement, as a module of its own."""
    if name == "<lambda>":
        found = [each for each in ast.walk(tree) if isinstance(each, ast.Lambda)]
        return [ast.Module([ast.Expr(each)], []) for each in found]
    match tree.body:
        case [ast.FunctionDef() | ast.AsyncFunctionDef() as node] if node.name == name:
            node.decorator_list = []
            return [tree]
    return []


def _code_of(tree: ast.Module, old: types.CodeType) -> types.CodeType | None:
    """The code of the function in `tree`, compiled where it can see what `old` sees."""
    names = [ast.arg(name) for name in (*old.co_freevars, *QUESTIONS)]
    arguments = ast.arguments(
        posonlyargs=[], args=names, kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    is_global = old.co_name.isidentifier() and old.co_name not in old.co_freevars
    body = [
        ast.Global([old.co_name])
    ] * is_global + tree.body  # one that calls itself finds it there
    outer = ast.FunctionDef("outer", arguments, body, [], lineno=1, col_offset=0)
    setattr(outer, "type_params", [])  # noqa: B010 - of Python 3.12
    module = ast.fix_missing_locations(ast.Module([outer], []))
    flags = old.co_flags & _FUTURES
    code = compile(module, old.co_filename, "exec", flags, dont_inherit=True)
    found = [each for each in _codes(_codes([code], "outer"), old.co_name)]
    if len(found) != 1 or set(old.co_freevars) - set(found[0].co_freevars):
        return None
    return found[0]


def _told(code: types.CodeType) -> tuple[object, ...]:
    """What two codes of one source have in common: all but how a method is called, and where to
    a jump goes, as that depends on the module around.
    """
    inner = [_told(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
    done = [
        ("LOAD" if each.opname in _LOADS else each.opname, _said_by(each))
        for each in dis.get_instructions(code)
        if each.opname not in _OF_CALLS
    ]
    return (done, names, inner)


def _said_by(instruction: dis.Instruction) -> object:
    if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
        return None
    value = instruction.argval
    return None if isinstance(value, types.CodeType) else repr(value)


def _codes(codes: Iterable[types.CodeType], name: str) -> list[types.CodeType]:
    """Functions of that name right inside of these."""
    return [
        const
        for code in codes
        for const in code.co_consts
        if isinstance(const, types.CodeType) and const.co_name == name
    ]


class _Rewriter(ast.NodeTransformer):
    """f"a{x!s:y}" -> text("a", (x, 115, "y")); f(a) -> call(f, a); a % b -> percent(a, b);
    a is b -> seen(a) is seen(b); match a -> match seen(a).
    """

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return self._call(TEXT, [self._part(each) for each in node.values], node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _OF_A_FRAME:
            return node
        call = ast.Call(ast.Name(CALL, ast.Load()), [node.func, *node.args], node.keywords)
        return ast.copy_location(call, node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mod):
            return node
        return self._call(PERCENT, [node.left, node.right], node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if any(isinstance(each, ast.Is | ast.IsNot) for each in node.ops):
            node.left = self._seen(node.left)
            node.comparators = [self._seen(each) for each in node.comparators]
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        self.generic_visit(node)
        node.subject = self._call(SEEN, [node.subject, ast.Constant(True)], node.subject)
        return node

    def _seen(self, node: ast.expr) -> ast.expr:
        return self._call(SEEN, [node], node)

    def _part(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.FormattedValue):
            return node
        spec = ast.Constant("") if node.format_spec is None else self.visit(node.format_spec)
        conversion = ast.Constant(node.conversion)
        return ast.Tuple([self.visit(node.value), conversion, spec], ast.Load())

    @staticmethod
    def _call(name: str, args: list[ast.expr], at: ast.expr) -> ast.expr:
        call = ast.Call(ast.Name(name, ast.Load()), args, [])
        return ast.copy_location(call, at)
