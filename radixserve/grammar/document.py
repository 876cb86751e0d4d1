"""Reads a JSON Schema of any draft into one form.

Owns: which keywords there are, the shape of their values, older spellings, references. The result
is a 2020-12 schema without annotations, whose references all point into `definitions`. Must not
know: what can be enforced.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from radixserve.grammar import effort
from radixserve.grammar.dialect import Dialect, step, walk
from radixserve.grammar.refusal import refused

Schema = bool | dict[str, Any]

MAX_DEPTH = 64
MAX_ENUM = 4096
MAX_SCHEMAS = 8192
_STEP = 20  # for one schema, as effort counts
TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")

_SCHEMAS = frozenset(
    {
        "additionalProperties",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
        "unevaluatedProperties",
        "unevaluatedItems",
        "items",
    }
)
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
_COUNTED = ("Length", "Items", "Properties", "Contains")
_COUNTS = frozenset(bound + what for bound in ("min", "max") for what in _COUNTED)
_NUMBERS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
_NEVER = {
    "$dynamicRef": "dynamic references are not supported",
    "$recursiveRef": "dynamic references are not supported",
    "extends": "draft 3 is not supported",
    "disallow": "draft 3 is not supported",
    "divisibleBy": "draft 3 is not supported",
}


_LONE = re.compile("[\ud800-\udfff]")
_LARGEST = int(sys.float_info.max)


class Document:
    """One schema, read. `root` is its form; `definitions` what its references name.
    has_name_patterns: there are patternProperties in it.

    Raises InvalidRequest with pointer and keyword where the schema is malformed.
    """

    def __init__(self, raw: object) -> None:
        _check_values(raw)
        self._raw = raw
        self._dialect = Dialect.of(raw)
        self._names: dict[str, str] = {}
        self._pointers: dict[int, str] = {}
        self._count = 0
        self.has_name_patterns = False
        self._pending: list[tuple[str, str]] = []
        self.definitions: dict[str, Schema] = {}
        self.root = self._read(raw, "", 0)
        while self._pending:
            pointer, name = self._pending.pop()
            self.definitions[name] = self._read(self._at(pointer, pointer), pointer, 0)

    def pointer(self, schema: Schema, otherwise: str) -> str:
        """Where `schema` stands in the text as sent."""
        return self._pointers.get(id(schema), otherwise)

    def standalone(self) -> dict[str, Any]:
        """The document as one 2020-12 schema, for a validator."""
        return {"allOf": [self.root], "$defs": self.definitions}

    def whole(self) -> Schema:
        """The document as one schema that reads as itself: the one text of all that mean the
        same."""
        if not self.definitions or isinstance(self.root, bool):
            return self.root
        return {**self.root, "$defs": self.definitions}

    def target(self, reference: str) -> Schema:
        """What a reference of the read form names."""
        return self.definitions[reference.removeprefix("#/$defs/")]

    def _read(self, raw: object, pointer: str, depth: int) -> Schema:
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, dict):
            raise refused(pointer, "", f"a schema is an object, true or false, not {_show(raw)}")
        self._count += 1
        effort.spend(_STEP)
        if depth > MAX_DEPTH:
            raise refused(pointer, "", f"schemas nested deeper than {MAX_DEPTH}")
        if self._count > MAX_SCHEMAS:
            raise refused(pointer, "", f"more than {MAX_SCHEMAS} subschemas")
        raw = _modern(self._dialect.read(raw), pointer)
        out: dict[str, Any] = {}
        for keyword in sorted(raw):
            value = self._keyword(keyword, raw[keyword], pointer, depth)
            if value is not None:
                out[keyword] = value
        if "const" in raw:
            out["const"] = self._dialect.value(raw["const"])
        if "enum" in out:
            out["enum"] = self._dialect.value(out["enum"])
        if not out:
            return True
        schema = _with_null(out) if raw.get("nullable") is True else out
        self._pointers[id(schema)] = pointer
        return schema

    def _keyword(self, keyword: str, value: object, pointer: str, depth: int) -> object:
        """The read value of one keyword; None for annotations and what stands elsewhere."""
        below = f"{pointer}/{keyword}"
        self.has_name_patterns |= keyword == "patternProperties"
        if keyword in _NEVER:
            raise refused(pointer, keyword, _NEVER[keyword])
        if keyword in _SCHEMAS:
            return self._read(value, below, depth + 1)
        if keyword in _LISTS:
            items = _expect(value, list, pointer, keyword)
            if not items:
                raise refused(pointer, keyword, "needs at least one schema")
            return [self._read(s, f"{below}/{i}", depth + 1) for i, s in enumerate(items)]
        if keyword in _MAPS:
            members = _expect(value, dict, pointer, keyword)
            return {
                name: self._read(s, f"{below}/{step(name)}", depth + 1)
                for name, s in members.items()
            }
        if keyword == "$ref":
            return self._reference(_expect(value, str, pointer, keyword), pointer)
        check = _PLAIN.get(keyword)
        return check(value, pointer, keyword) if check else None

    def _reference(self, reference: str, pointer: str) -> str:
        for place in self._dialect.resources:
            if pointer == place or pointer.startswith(f"{place}/"):
                raise refused(pointer, "$ref", f"#{place} has an $id of its own")
        target = self._resolve(reference, pointer)
        if target not in self._names:
            self._names[target] = f"d{len(self._names)}"
            self._at(target, pointer)
            self._pending.append((target, self._names[target]))
        return f"#/$defs/{self._names[target]}"

    def _resolve(self, reference: str, pointer: str) -> str:
        """The JSON pointer that `reference` means."""
        base = self._raw.get("$id", "") if isinstance(self._raw, dict) else ""
        if isinstance(base, str) and base and reference.startswith(base.rstrip("#")):
            reference = reference.removeprefix(base.rstrip("#")) or "#"
        if reference.startswith("#"):
            reference = reference[1:]
        elif not reference.startswith(("/$defs/", "/definitions/")):
            raise refused(pointer, "$ref", f"{reference!r} is outside this schema")
        reference = unquote(reference)
        if reference and not reference.startswith("/"):
            return self._anchor(reference, pointer)
        return reference

    def _anchor(self, name: str, pointer: str) -> str:
        found = [p for p, node in walk(self._raw, "") if node.get("$anchor") == name]
        found += [
            p for p, node in walk(self._raw, "") if "#" + name in (node.get("id"), node.get("$id"))
        ]
        if len(found) != 1:
            raise refused(pointer, "$ref", f"no anchor {name!r} in this schema")
        return found[0]

    def _at(self, target: str, pointer: str) -> object:
        value = self._raw
        for name in target.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name in map(str, range(len(value))):
                value = value[int(name)]
            else:
                raise refused(pointer, "$ref", f"nothing stands at #{target}")
        return value


def _check_values(raw: object) -> None:
    """Refuse the characters and numbers that JSON can spell and nothing here can hold."""
    stack: list[tuple[str, Any]] = [("", raw)]
    while stack:
        pointer, value = stack.pop()
        effort.spend(1)
        if isinstance(value, dict):
            stack.extend((f"{pointer}/{step(name)}", member) for name, member in value.items())
            faults = map(_fault, value)
        elif isinstance(value, list):
            stack.extend((f"{pointer}/{i}", item) for i, item in enumerate(value))
            continue
        else:
            faults = map(_fault, [value])
        for why in filter(None, faults):
            raise refused(pointer, "", why)


def _fault(value: object) -> str:
    if isinstance(value, str) and not value.isascii() and _LONE.search(value):
        return "holds a lone surrogate"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is too large"
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "a number that is too large"
    return ""


def _modern(raw: dict[str, Any], pointer: str) -> dict[str, Any]:
    """Draft 4 to 7 spellings in those of 2020-12."""
    out = dict(raw)
    if isinstance(out.get("items"), list):
        prefix, rest = out.pop("items"), out.pop("additionalItems", None)
        if "prefixItems" in out:
            raise refused(pointer, "items", "a list of items beside prefixItems")
        if prefix:
            out["prefixItems"] = prefix
        if rest is not None:
            out["items"] = rest
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(out.get(flag), bool) and out.pop(flag) and bound in out:
            out[flag] = out.pop(bound)
    if "dependencies" in out:
        _split_dependencies(out, pointer)
    return out


def _split_dependencies(out: dict[str, Any], pointer: str) -> None:
    members = _expect(out.pop("dependencies"), dict, pointer, "dependencies")
    for name, value in members.items():
        kind = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
        out[kind] = {**out.get(kind, {}), name: value}


def _with_null(out: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI 3.0: null is allowed beside what `type` names."""
    if "type" in out and "null" not in out["type"]:
        out = {**out, "type": [*out["type"], "null"]}
    if "enum" in out and None not in out["enum"]:
        out = {**out, "enum": [*out["enum"], None]}
    return out


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def _expect(value: object, kind: type, pointer: str, keyword: str) -> Any:
    if not isinstance(value, kind):
        names = {list: "a list", dict: "an object", str: "a string", bool: "true or false"}
        raise refused(pointer, keyword, f"must be {names[kind]}, not {_show(value)}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _count(value: object, pointer: str, keyword: str) -> int:
    if not _is_number(value) or value != int(value) or not 0 <= value < 2**31:  # type: ignore[operator,call-overload]
        raise refused(pointer, keyword, f"must be a count, not {_show(value)}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def _number(value: object, pointer: str, keyword: str) -> object:
    if not _is_number(value):
        raise refused(pointer, keyword, f"must be a number, not {_show(value)}")
    if keyword == "multipleOf" and not value > 0:  # type: ignore[operator]
        raise refused(pointer, keyword, "must be above 0")
    return value


def _types(value: object, pointer: str, keyword: str) -> list[str]:
    names: list[str] = value if isinstance(value, list) else [value]  # type: ignore[list-item]
    for name in names:
        if name not in TYPES:
            raise refused(pointer, keyword, f"no such type: {_show(name)}")
    if not names:
        raise refused(pointer, keyword, "needs at least one type")
    return names


def _enum(value: object, pointer: str, keyword: str) -> list[Any]:
    values: list[Any] = _expect(value, list, pointer, keyword)
    if not values or len(values) > MAX_ENUM:
        raise refused(pointer, keyword, f"has {len(values)} values, 1 to {MAX_ENUM} are possible")
    return values


def _names(value: object, pointer: str, keyword: str) -> list[str]:
    names: list[str] = _expect(value, list, pointer, keyword)
    for name in names:
        _expect(name, str, pointer, keyword)
    return names


def _dependent(value: object, pointer: str, keyword: str) -> dict[str, list[str]]:
    members = _expect(value, dict, pointer, keyword)
    return {name: _names(names, pointer, keyword) for name, names in members.items()}


def _text(value: object, pointer: str, keyword: str) -> str:
    text: str = _expect(value, str, pointer, keyword)
    return text


def _flag(value: object, pointer: str, keyword: str) -> bool | None:
    return True if _expect(value, bool, pointer, keyword) else None


_PLAIN: dict[str, Callable[[object, str, str], object]] = {
    "type": _types,
    "enum": _enum,
    "required": _names,
    "dependentRequired": _dependent,
    "pattern": _text,
    "format": _text,
    "uniqueItems": _flag,
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(_NUMBERS, _number),
}

CONTAINERS = frozenset({"$defs", "definitions"})
HOLDERS = CONTAINERS | _SCHEMAS | _LISTS | _MAPS | {"additionalItems", "dependencies"}
KEYWORDS = frozenset({*_SCHEMAS, *_LISTS, *_MAPS, *_PLAIN, "$ref", "const", "additionalItems"})


def subschemas(keyword: str, value: object) -> Iterator[tuple[str, object]]:
    """What stands under `keyword` as a schema, with its relative pointer."""
    if keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
        yield from ((f"/{i}", s) for i, s in enumerate(value if isinstance(value, list) else ()))
    elif keyword in _MAPS or keyword in CONTAINERS:
        members = value.items() if isinstance(value, dict) else ()
        yield from ((f"/{step(name)}", s) for name, s in members)
    elif keyword in _SCHEMAS or keyword == "additionalItems":
        yield "", value
