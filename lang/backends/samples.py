"""Random texts that satisfy a constraint, for backends without a model.

Owns: one text for a JSON schema, a pattern, a list of choices; short ones, the same for the same
random numbers. Covers what programs in tests ask for and raises Unsupported, naming it, for the
rest. Must not know: how models are constrained.
"""

from __future__ import annotations

import importlib
import json
import math
import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

from radixserve.lang.errors import Unsupported

_LETTERS = string.ascii_lowercase
_PRINTABLE = string.ascii_letters + string.digits + " "
_FEW = 3  # how far above its least count a repeated thing goes
_DEEP = 5
_NAMES = ("json_schema", "json_object", "regex", "choice", "ebnf", "structural_tag")


def is_constrained(params: Mapping[str, Any]) -> bool:
    return any(params.get(name) is not None for name in _NAMES)


def sample(params: Mapping[str, Any], rng: random.Random) -> str | None:
    """A text for the constraint in `params` (the sampling_params of a call); None without one."""
    if (schema := params.get("json_schema")) is not None:
        root = json.loads(schema) if isinstance(schema, str) else schema
        return json.dumps(_Schema(root, rng).value(root, 0), ensure_ascii=False)
    if params.get("json_object"):
        return json.dumps({"a": rng.randint(0, 9)})
    if (pattern := params.get("regex")) is not None:
        return sample_regex(pattern, rng)
    if (choices := params.get("choice")) is not None:
        return str(rng.choice(choices))
    for name in ("ebnf", "structural_tag"):
        if params.get(name) is not None:
            raise Unsupported(f"the mock makes up no text for {name}: give it replies")
    return None


class _Schema:
    def __init__(self, root: Any, rng: random.Random) -> None:
        self._root = root
        self._rng = rng

    def value(self, schema: Any, depth: int) -> Any:
        if schema is True or schema == {}:
            return self._rng.randint(0, 9)
        if not isinstance(schema, Mapping):
            raise Unsupported(f"the mock makes up no value for the schema {schema!r}")
        if "$ref" in schema:
            return self.value(self._target(schema["$ref"]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._rng.choice(schema["enum"])
        for name in ("anyOf", "oneOf"):
            if name in schema:
                ways = schema[name]
                flat = [way for way in ways if "$ref" not in way]
                return self.value(self._rng.choice(flat if depth > _DEEP and flat else ways), depth)
        if "allOf" in schema:
            merged = {k: v for k, v in schema.items() if k != "allOf"}
            for part in schema["allOf"]:
                merged |= self._target(part["$ref"]) if "$ref" in part else part
            return self.value(merged, depth)
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            kind = self._rng.choice(kind)
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(schema, whole=kind == "integer")
            case "boolean":
                return self._rng.random() < 0.5
            case "null":
                return None
            case _:
                raise Unsupported(f"the mock makes up no value of type {kind!r}")

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        needed = schema.get("required", ())
        return {
            name: self.value(inner, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in needed or (depth <= _DEEP and self._rng.random() < 0.5)
        }

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems", ())
        least = max(schema.get("minItems", 0), len(first))
        most = min(schema.get("maxItems", least + _FEW), least + _FEW)
        size = (
            least if depth > _DEEP or schema.get("items") is False else self._between(least, most)
        )
        kinds = [*first, *[schema.get("items", {})] * (size - len(first))]
        return [self.value(kind, depth + 1) for kind in kinds]

    def _string(self, schema: Mapping[str, Any]) -> str:
        if "pattern" in schema:
            return sample_regex(schema["pattern"], self._rng)
        least = schema.get("minLength", 0)
        most = min(schema.get("maxLength", least + 8), least + 8)
        return "".join(self._rng.choice(_LETTERS) for _ in range(self._between(least, most)))

    def _number(self, schema: Mapping[str, Any], whole: bool) -> int | float:
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        step = schema.get("multipleOf", 1 if whole else 0.5)
        if "exclusiveMinimum" in schema:
            low = max(low, schema["exclusiveMinimum"] + step)
        if "exclusiveMaximum" in schema:
            high = min(high, schema["exclusiveMaximum"] - step)
        if low == -math.inf:
            low = min(0, high - 99) if high < math.inf else 0
        high = min(high, low + 99 * step)
        count = self._rng.randint(
            math.ceil(low / step), max(math.ceil(low / step), int(high // step))
        )
        number = count * step
        return int(number) if whole else float(number)

    def _between(self, least: int, most: int) -> int:
        return self._rng.randint(least, max(least, most))

    def _target(self, ref: str) -> Any:
        target = self._root
        for name in ref.removeprefix("#").strip("/").split("/"):
            if name:
                target = target[name.replace("~1", "/").replace("~0", "~")]
        return target


def sample_regex(pattern: str, rng: random.Random) -> str:
    """A text that `pattern` matches wholly. Raises re.error, or Unsupported for look-arounds."""
    parsed = importlib.import_module("re._parser").parse(pattern)
    return _Pattern(rng).text(parsed)


class _Pattern:
    """Walks what the standard library parses: pairs of an operation and its argument."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def text(self, parts: Sequence[tuple[Any, Any]]) -> str:
        return "".join(self._one(str(kind), argument) for kind, argument in parts)

    def _one(self, kind: str, argument: Any) -> str:
        match kind:
            case "LITERAL":
                return chr(argument)
            case "NOT_LITERAL":
                return self._rng.choice([c for c in _PRINTABLE if c != chr(argument)])
            case "ANY":
                return self._rng.choice(_PRINTABLE)
            case "IN":
                return self._rng.choice(_members(argument))
            case "BRANCH":
                return self.text(self._rng.choice(argument[1]))
            case "SUBPATTERN":
                return self.text(argument[-1])
            case "ATOMIC_GROUP":
                return self.text(argument)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, inner = argument
                times = self._rng.randint(least, min(int(most), least + _FEW))
                return "".join(self.text(inner) for _ in range(times))
            case "AT":
                return ""
            case _:
                raise Unsupported(f"the mock makes up no text for {kind} in a pattern")


def _members(parts: Sequence[tuple[Any, Any]]) -> list[str]:
    kinds = [str(kind) for kind, _ in parts]
    found: set[str] = set()
    for kind, argument in parts:
        match str(kind):
            case "LITERAL":
                found.add(chr(argument))
            case "RANGE":
                found |= {chr(code) for code in range(argument[0], argument[1] + 1)}
            case "CATEGORY":
                found |= _category(str(argument))
            case _:
                pass
    if "NEGATE" in kinds:
        return sorted(set(_PRINTABLE) - found)
    return sorted(found)


def _category(name: str) -> set[str]:
    sets = {"DIGIT": set(string.digits), "SPACE": {" "}, "WORD": set(_PRINTABLE) - {" "} | {"_"}}
    word = name.removeprefix("CATEGORY_").removeprefix("NOT_")
    if word not in sets:
        raise Unsupported(f"the mock makes up no text for {name} in a pattern")
    return set(_PRINTABLE) - sets[word] if "NOT_" in name else sets[word]
