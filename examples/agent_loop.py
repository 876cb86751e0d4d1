"""An agent with two tools, written with the official openai client.

    radixserve serve --model smollm2 --port 30000
    python examples/agent_loop.py --url http://127.0.0.1:30000/v1 [--stream]

The first turn has to call a tool; in those after it the model decides, and in the last it has to
answer. Arguments always satisfy the schema of their tool, so no call needs a second look.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessage

PEOPLE = {"Oslo": 700_000, "Rome": 2_800_000, "Tokyo": 14_000_000}
QUESTION = "How many people live in Rome and Oslo together?"
MAX_TURNS = 4

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "how many people live in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": sorted(PEOPLE)}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "work out a sum, a difference or a product of two numbers",
            "parameters": {
                "type": "object",
                "properties": {
                    "operation": {"enum": ["add", "subtract", "multiply"]},
                    "left": {"type": "integer", "minimum": 0, "maximum": 100_000_000},
                    "right": {"type": "integer", "minimum": 0, "maximum": 100_000_000},
                },
                "required": ["operation", "left", "right"],
                "additionalProperties": False,
            },
        },
    },
]


def look_up(city: str) -> int:
    return PEOPLE[city]


def calculate(operation: str, left: int, right: int) -> int:
    match operation:
        case "add":
            return left + right
        case "subtract":
            return left - right
        case _:
            return left * right


FUNCTIONS = {"look_up": look_up, "calculate": calculate}


def answer(client: openai.OpenAI, model: str, question: str, *, stream: bool) -> str:
    """Run the loop to its end, showing each call; the last answer."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for turn in range(MAX_TURNS):
        choice = "required" if turn == 0 else "auto" if turn + 1 < MAX_TURNS else "none"
        message = ask(client, model, messages, choice, stream=stream)
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            name, arguments = call.function.name, json.loads(call.function.arguments)
            result = FUNCTIONS[name](**arguments)
            print(f"{name}({json.dumps(arguments)}) = {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    raise AssertionError("the last turn calls no tools")


def ask(
    client: openai.OpenAI, model: str, messages: list[Any], choice: Any, *, stream: bool
) -> ChatCompletionMessage:
    options: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 200,
        "temperature": 0,
    }
    if not stream:
        return client.chat.completions.create(**options).choices[0].message
    with client.chat.completions.stream(**options) as events:
        return events.get_final_completion().choices[0].message


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:30000/v1")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--stream", action="store_true", help="read each answer as it comes")
    given = parser.parse_args()
    with openai.OpenAI(base_url=given.url, api_key="none") as client:
        model = client.models.list().data[0].id
        print("answer:", answer(client, model, given.question, stream=given.stream))


if __name__ == "__main__":
    main()
