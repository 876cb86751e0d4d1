"""Many questions about few documents: the document comes first, so all its questions share it.

python examples/cookbook/shared_documents.py [model]
"""

from __future__ import annotations

import sys

import radixserve as rs

DOCUMENTS = {
    "town": "Harrow Bay has nine thousand people and a herring fair in August. " * 8,
    "boat": "The Blue Anchor sails at nine and at two, except on Mondays. " * 8,
}
QUESTIONS = [
    ("town", "When is the fair?"),
    ("boat", "When does the boat sail?"),
    ("town", "How many people live there?"),
    ("boat", "Is there a boat on Monday?"),
]


@rs.function
def ask(s, document, question):
    s += rs.system("Answer from this text:\n" + DOCUMENTS[document])
    s += rs.user(question)
    s += rs.assistant(rs.gen("answer", max_tokens=24, stop="\n"))


def main(backend):
    items = [{"document": document, "question": question} for document, question in QUESTIONS]
    states = ask.run_batch(items, backend=backend, temperature=0)
    prompt = cached = 0
    for item, state in zip(items, states):
        meta = state.get_meta_info("answer")
        prompt, cached = prompt + meta["prompt_tokens"], cached + meta["cached_tokens"]
        print(f"{item['question']} {state['answer'].strip()}")
    print(f"{cached} of {prompt} prompt tokens were cached")
    return prompt, cached


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
