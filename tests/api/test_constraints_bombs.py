"""Constraints that cost much to read (cases G19 and G20): refused or taken, within seconds, while
the loop goes on."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from radixserve.grammar import effort
from radixserve.native import bound
from tests.api.scripted import ScriptedGateway, client


def nested(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def texts(count, length=16):
    return [f"{i * 7919 % 99991:0{length}d}" for i in range(count)]


def fields(count, **schema):
    names = [f"p{i}" for i in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names, schema), "required": names}


PATTERN = "^[a-z]{1,9}(-[0-9]{1,9}){1,20}$"
NEVER = {"type": "string", "format": "uri-template"}
PAIR = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
SCHEMAS = {
    "an enum of 20 000 strings": ({"enum": texts(20_000, 8)}, 400),
    "objects nested 1000 deep": (nested(90), 400),
    "not one of 4000 strings": ({"type": "string", "not": {"enum": texts(4000)}}, 400),
    "maxLength 65536": ({"type": "string", "maxLength": 65_536}, 200),
    "30 long strings": (fields(30, type="string", maxLength=2000), 200),
    "maxItems 10 000": ({"type": "array", "maxItems": 10_000}, 200),
    "5000 items": ({"type": "array", "minItems": 5000, "maxItems": 5000}, None),
    "combinators that multiply": ({"allOf": [PAIR] * 40}, None),
    "branches that exclude each other": ({"oneOf": [fields(3, const=i) for i in range(60)]}, None),
    "2000 patterns": (fields(2000, type="string", pattern=PATTERN, minLength=10), None),
}
OTHERS = {
    "a regex of many repetitions": ({"regex": "((a{1,100}){1,100}){1,100}"}, 400),
    "a regex of many states": ({"regex": "(.*a){10}.{12}" * 3}, 400),
    "a nullable loop": ({"ebnf": 'root ::= (("a"?)*)*'}, 400),
    "an ambiguous grammar": ({"ebnf": 'root ::= "" | "(" root ")" | root root'}, None),
    "4096 choices": ({"choice": texts(4096)}, 200),
    "5000 choices": ({"choice": texts(5000)}, 400),
    "a schema that is weakened for long": (
        {
            "json_schema": {**fields(300, **NEVER), "description": "x" * 1000},
            "constraint_mode": "validate",
        },
        200,
    ),
}
BOMBS = {name: ({"json_schema": schema}, status) for name, (schema, status) in SCHEMAS.items()}
BOMBS |= OTHERS


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_answered_while_the_loop_goes_on(renderer, name):
    params, status = BOMBS[name]
    gateway = ScriptedGateway(renderer, ("{}",))

    async def go():
        gaps, is_over = [], False

        async def tick():
            while not is_over:
                # Of the process's own time: the machine may be busy with others.
                began = time.process_time()
                await asyncio.sleep(0.01)
                gaps.append(time.process_time() - began)

        async with client(gateway) as http:
            ticking = asyncio.create_task(tick())
            body = {"text": "x", "sampling_params": params}
            replies = [http.post("/generate", json=body) for _ in range(3)]
            found = await asyncio.gather(*replies)
            is_over = True
            await ticking
            assert (await http.get("/health")).status_code == 200
            return found, max(gaps)

    replies, gap = asyncio.run(go())
    codes = {reply.status_code for reply in replies}
    assert codes == {status} if status else codes <= {200, 400}
    assert gap < 1
    if 400 in codes:
        error = replies[0].json()["error"]
        assert error["param"].startswith("sampling_params.")


def test_ordinary_constraints_do_not_wait_for_bombs(renderer, monkeypatch):
    """However many are read, for however long."""
    gateway = ScriptedGateway(renderer, ["aab"])
    ordinary = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    is_over = threading.Event()

    def slowly(constraint):
        while constraint.kind == "regex" and not is_over.is_set():
            effort.spend(100)
        return constraint

    monkeypatch.setattr(bound, "check", slowly)

    async def ask(http, **body):
        return (await http.post("/v1/completions", json={"prompt": "x", **body})).status_code

    async def go():
        async with client(gateway) as http:
            bombs = [asyncio.create_task(ask(http, regex=f"(a|b){{3}}c{{{i}}}")) for i in range(20)]
            await asyncio.sleep(0.05)
            try:
                async with asyncio.timeout(10):
                    assert await ask(http, guided_json=ordinary) == 200
                assert not any(bomb.done() for bomb in bombs)
            finally:
                is_over.set()
            return await asyncio.gather(*bombs)

    assert asyncio.run(go()) == [200] * 20
