"""Random JSON Schemas over every keyword and its older spellings, and values made to fit them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

VALUES: list[Any] = [0, 1, -3, 5, 2.5, "a", "ab", "x1", "", None, True, False]
VALUES += [[1, "a"], {"a": 1}, [], {}]
TEXTS = ["", "a", "b", "ab", "abc", "x1", "x12", "cb", "q w", "héé", "🚀", 'd"\\', "a\nb"]
TYPES = ["string", "integer", "number", "object", "array", "boolean", "null"]
FORMATS = {
    "date": ["2024-02-29", "1999-12-31"],
    "email": ["ab@c.de", "first.last@mail.example.org"],
    "ipv4": ["10.0.255.1"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv6": ["::1", "2001:db8::ff00:42:8329"],
    "date-time": ["2024-05-06T07:08:09Z", "2024-05-06T07:08:09.123+02:00"],
    "time": ["07:08:09Z"],
    "hostname": ["example.com", "a-b.example.org"],
    "uri": ["https://example.com/a/b?c=d#e"],
    "duration": ["P1Y2M3DT4H5M6S", "PT5M"],
    "json-pointer": ["/a/b~0c", ""],
    "unheard-of": ["anything"],
}
REFERENCES = ["#/$defs/X", "#/$defs/Y", "#/definitions/Z", "#/$defs/Y/properties/v"]
PATTERNS = ["^[a-c]+$", "b", "^x\\d*", "a|b$", "[^a]", "\\s", "^.{2}$"]


class SchemaMaker:
    """Schemas of one to three keywords at each level."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.keywords: dict[str, Callable[[int], dict[str, Any]]] = {
            **self._plain(),
            **self._containers(),
            **self._combinators(),
            **self._older(),
        }

    def _plain(self) -> dict[str, Callable[[int], dict[str, Any]]]:
        pick, some, rng = self._rng.choice, self._some, self._rng
        return {
            "type": lambda d: {"type": pick([pick(TYPES), rng.sample(TYPES, 2)])},
            "enum": lambda d: {"enum": some(VALUES, 5)},
            "const": lambda d: {"const": pick(VALUES)},
            "minimum": lambda d: {"minimum": pick([-5, 0, 0.5, 3])},
            "maximum": lambda d: {"maximum": pick([-1, 1, 7.25, 100])},
            "exclusiveMinimum": lambda d: {"exclusiveMinimum": pick([-5, 0, 0.5, 3])},
            "exclusiveMaximum": lambda d: {"exclusiveMaximum": pick([-1, 1, 7.25, 100])},
            "multipleOf": lambda d: {"multipleOf": pick([2, 5, 0.5, 0.01])},
            "minLength": lambda d: {"minLength": rng.randrange(5)},
            "maxLength": lambda d: {"maxLength": rng.randrange(5)},
            "pattern": lambda d: {"pattern": pick(PATTERNS)},
            "format": lambda d: {"format": pick(list(FORMATS))},
        }

    def _containers(self) -> dict[str, Callable[[int], dict[str, Any]]]:
        pick, some, rng = self._rng.choice, self._some, self._rng
        return {
            "items": lambda d: {"items": self.below(d)},
            "prefixItems": lambda d: {"prefixItems": self._list(d, 2)},
            "minItems": lambda d: {"minItems": rng.randrange(4)},
            "maxItems": lambda d: {"maxItems": rng.randrange(4)},
            "uniqueItems": lambda d: {"uniqueItems": True, "items": {"enum": some(VALUES, 8)}},
            "contains": lambda d: {"contains": self.below(d)},
            "minContains": lambda d: {"contains": self.below(d), "minContains": rng.randrange(3)},
            "maxContains": lambda d: {"contains": self.below(d), "maxContains": rng.randrange(3)},
            "properties": lambda d: {"properties": self._map(d, ["a", "b", "c", 'd"é'])},
            "required": lambda d: {"required": some(["a", "b", "z"], 2)},
            "additionalProperties": lambda d: {
                "additionalProperties": pick([False, True, self.below(d)])
            },
            "patternProperties": lambda d: {"patternProperties": self._map(d, ["^x", "a", "b$"])},
            "propertyNames": lambda d: {
                "propertyNames": pick([{"pattern": "^[a-d]$"}, {"maxLength": 2}, {"enum": ["a"]}])
            },
            "minProperties": lambda d: {"minProperties": rng.randrange(4)},
            "maxProperties": lambda d: {"maxProperties": rng.randrange(4)},
            "unevaluatedProperties": lambda d: {"unevaluatedProperties": pick([False, True])},
            "unevaluatedItems": lambda d: {"unevaluatedItems": pick([False, True])},
        }

    def _combinators(self) -> dict[str, Callable[[int], dict[str, Any]]]:
        pick, some = self._rng.choice, self._some
        return {
            "anyOf": lambda d: {"anyOf": self._list(d, 3)},
            "oneOf": lambda d: {"oneOf": self._list(d, 3)},
            "allOf": lambda d: {"allOf": self._list(d, 2)},
            "not": lambda d: {"not": self.below(d)},
            "then": lambda d: {"if": self.below(d), "then": self.below(d)},
            "else": lambda d: {"if": self.below(d), "else": self.below(d)},
            "dependentRequired": lambda d: {"dependentRequired": {"a": some(["b", "c"], 1)}},
            "dependentSchemas": lambda d: {"dependentSchemas": {"b": self.below(d)}},
            "$ref": lambda d: {"$ref": pick(REFERENCES)},
            "recursion": lambda d: {"properties": {"a": {"$ref": "#"}, "b": self.below(d)}},
        }

    def _older(self) -> dict[str, Callable[[int], dict[str, Any]]]:
        """Spellings of drafts 4 to 7 and of OpenAPI; `modern` has what they mean."""
        pick, some = self._rng.choice, self._some
        return {
            "nullable": lambda d: {"type": pick(TYPES), "nullable": True},
            "tuples": lambda d: {"items": self._list(d, 2), "additionalItems": self.below(d)},
            "exclusive minimum": lambda d: {
                "minimum": pick([0, 3]),
                "exclusiveMinimum": pick([True, False]),
            },
            "exclusive maximum": lambda d: {"maximum": pick([5, 7.25]), "exclusiveMaximum": True},
            "dependencies": lambda d: {
                "dependencies": {"a": some(["b", "c"], 1), "b": self.below(d)}
            },
        }

    def root(self, *keywords: str) -> dict[str, Any]:
        """A schema; with `keywords`, one that has exactly these at its root."""
        schema = self._of(keywords, 1) if keywords else self._schema(2)
        tree = {"a": {"$ref": "#/$defs/Y"}, "v": {"type": "integer"}}
        closed = {"type": "object", "properties": tree, "additionalProperties": False}
        return {
            **schema,
            "$defs": {"X": self._schema(0), "Y": closed},
            "definitions": {"Z": {"type": "string", "maxLength": 2}},
        }

    def below(self, depth: int) -> Any:
        if depth > 0:
            return self._schema(depth - 1)
        simple = [True, {"type": "integer"}, {"type": "string"}, {"type": ["string", "null"]}]
        rare = [False, {"const": self._rng.choice(VALUES)}]
        return self._rng.choice([*simple, *simple, *rare])

    def _schema(self, depth: int) -> dict[str, Any]:
        names = [self._rng.choice(list(self.keywords)) for _ in range(self._rng.randrange(1, 4))]
        return self._of(tuple(names), depth)

    def _of(self, names: tuple[str, ...], depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        for name in names:
            schema |= self.keywords[name](depth)
        return schema

    def _some(self, values: list[Any], most: int) -> list[Any]:
        return self._rng.sample(values, self._rng.randrange(1, min(most, len(values)) + 1))

    def _list(self, depth: int, most: int) -> list[Any]:
        return [self.below(depth) for _ in range(self._rng.randrange(1, most + 1))]

    def _map(self, depth: int, names: list[str]) -> dict[str, Any]:
        return {name: self.below(depth) for name in self._some(names, 3)}


def modern(schema: Any) -> Any:
    """What the older spellings in a schema mean, as 2020-12 says it."""
    if isinstance(schema, list):
        return [modern(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: modern(part) for name, part in schema.items()}
    rest = out.pop("additionalItems", None)
    if isinstance(out.get("items"), list):
        out["prefixItems"] = out.pop("items")
        if rest is not None:
            out["items"] = rest
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(out.get(flag), bool) and out.pop(flag) and bound in out:
            out[flag] = out.pop(bound)
    if out.pop("nullable", False) is True:
        _add_null(out)
    for name, needs in out.pop("dependencies", {}).items():
        keyword = "dependentRequired" if isinstance(needs, list) else "dependentSchemas"
        out[keyword] = {**out.get(keyword, {}), name: needs}
    return out


def _add_null(schema: dict[str, Any]) -> None:
    if kinds := schema.get("type"):
        listed = [kinds] if isinstance(kinds, str) else kinds
        schema["type"] = list(dict.fromkeys([*listed, "null"]))
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]


class ValueMaker:
    """Values that are likely to fit a schema: the caller keeps those that do."""

    def __init__(self, root: Any, rng: random.Random) -> None:
        self.root = root
        self._rng = rng

    def value(self, schema: Any, depth: int = 4) -> Any:
        if isinstance(schema, bool) or depth == 0:
            return self._rng.choice(VALUES)
        schema = self._merged(schema, 4)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._rng.choice(schema["enum"])
        kinds = schema.get("type") or _hinted(schema, self._rng)
        kind = self._rng.choice(kinds) if isinstance(kinds, list) else kinds
        return getattr(self, f"_{kind}")(schema, depth)

    def _merged(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """The schema with one branch of its combinators laid over it."""
        out = dict(schema)
        inner: list[Any] = list(out.pop("allOf", ()))
        for keyword in ("anyOf", "oneOf"):
            if keyword in out:
                inner.append(self._rng.choice(out.pop(keyword)))
        if "$ref" in out:
            inner.append(self._target(out.pop("$ref")))
        if "then" in out and self._rng.random() < 0.5:
            inner += [out.pop("if"), out.pop("then")]
        for part in inner:
            if isinstance(part, dict) and depth:
                out = {**out, **self._merged(part, depth - 1)}
        return out

    def _target(self, reference: str) -> Any:
        found = self.root
        for step in reference.split("/")[1:]:
            found = found[step]
        return found

    def _null(self, schema: dict[str, Any], depth: int) -> None:
        return None

    def _boolean(self, schema: dict[str, Any], depth: int) -> bool:
        return self._rng.random() < 0.5

    def _integer(self, schema: dict[str, Any], depth: int) -> int:
        return self._rng.choice([0, 1, 2, 5, 10, -3, -20, 101, 7])

    def _number(self, schema: dict[str, Any], depth: int) -> float:
        return self._rng.choice([0, 1, 2.5, -0.5, 7.25, 10, 0.75, 1e3, -3])

    def _string(self, schema: dict[str, Any], depth: int) -> str:
        if "format" in schema:
            return self._rng.choice(FORMATS[schema["format"]])
        return self._rng.choice(TEXTS)

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        prefix, rest = schema.get("prefixItems", []), schema.get("items", True)
        most = len(prefix) if prefix and "items" not in schema else 4
        size = min(max(schema.get("minItems", 0), self._rng.randrange(4)), most)
        items = [self.value(prefix[i] if i < len(prefix) else rest, depth - 1) for i in range(size)]
        if items and "contains" in schema and not prefix:
            items[self._rng.randrange(size)] = self.value(schema["contains"], depth - 1)
        return items

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        declared = schema.get("properties", {})
        needed = schema.get("required", [])
        found = {}
        for name in [*declared, *(n for n in needed if n not in declared)]:
            if name in needed or self._rng.random() < 0.6:
                found[name] = self.value(declared.get(name, True), depth - 1)
        rest = schema.get("additionalProperties", True)
        if not declared and not needed and self._rng.random() < 0.5:
            for name in self._rng.sample(["a", "b", "x1", "zz"], 2):
                found[name] = self.value(rest, depth - 1)
        return found


def _hinted(schema: dict[str, Any], rng: random.Random) -> str:
    hints = {
        "object": {"properties", "required", "additionalProperties", "patternProperties"},
        "array": {"items", "prefixItems", "contains", "minItems", "uniqueItems"},
        "string": {"pattern", "format", "minLength", "maxLength"},
        "number": {"minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"},
    }
    fitting = [kind for kind, words in hints.items() if words & schema.keys()]
    return rng.choice(fitting or TYPES)
