"""Label texts by a few examples, with how sure the model is.

select() by probability scores every label in one request; the labels' probabilities sum to 1, and
`outside` is what the model would rather have said. All items share the examples in the cache.

    python examples/cookbook/few_shot_labels.py [model]
"""

from __future__ import annotations

import sys

import radixserve as rs

LABELS = ["question", "complaint", "praise"]
EXAMPLES = [
    ("When do you open on Sundays?", "question"),
    ("I waited an hour and nobody came.", "complaint"),
    ("The best soup I have had in years!", "praise"),
]
INBOX = ["Is there parking nearby?", "Cold food, rude staff.", "Lovely place, thank you!"]


@rs.function
def label(s, text):
    s += rs.system("Sort messages to a restaurant. Answer with one word: " + ", ".join(LABELS))
    for message, known in EXAMPLES:
        s += rs.user(message) + rs.assistant(known)
    s += rs.user(text)
    s += rs.assistant(rs.select("label", LABELS, choices_method=rs.probability))


def main(backend):
    states = label.run_batch([{"text": text} for text in INBOX], backend=backend)
    rows = []
    for text, state in zip(INBOX, states):
        meta = state.get_meta_info("label")
        sure = max(meta["scores"])
        rows.append((text, state["label"], sure))
        print(f"{state['label']:<10} {sure:4.0%}  {text}")
    return rows


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
