"""Programs inside an asyncio application: many at once, streamed, with deadlines.

Leaving `async with` (a client that went away, say) ends a program and aborts its calls.

    python examples/cookbook/async_service.py [model]
"""

from __future__ import annotations

import asyncio
import sys

import radixserve as rs


@rs.function
async def reply(s, question):
    s += rs.system("Be brief.") + rs.user(question)
    s += rs.assistant(rs.gen("answer", max_tokens=24, timeout=30))
    if len(await s["answer"]) > 40:
        s += rs.user("Shorter, please.") + rs.assistant(rs.gen("answer", max_tokens=12))
    return (await s["answer"]).strip()


async def one_streamed(backend):
    pieces = []
    async with await reply.arun(
        "What is a radix tree?", backend=backend, stream=True, temperature=0
    ) as state:
        async for piece in state.text_async_iter("answer"):
            pieces.append(piece)
            print(piece, end="", flush=True)
    print()
    return "".join(pieces)


async def serve(backend):
    questions = [f"What is {n} plus {n}?" for n in range(1, 6)]
    states = await asyncio.gather(
        *[
            reply.arun(question, backend=backend, timeout=60, temperature=0)
            for question in questions
        ]
    )
    for question, state in zip(questions, states):
        print(f"{question} {state.ret_value}")
    return await one_streamed(backend), [state.ret_value for state in states]


def main(backend):
    return asyncio.run(serve(backend))


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
