"""A batch that survives: errors in their places, retries, a checkpoint, and flat memory.

Run it twice: the second run finds everything done.

    python examples/cookbook/long_batch.py [model]
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

import radixserve as rs


@rs.function
def headline(s, text):
    s += rs.user(f"A headline of at most six words for: {text}")
    s += rs.assistant(rs.gen("headline", max_tokens=16, stop="\n", temperature=0))


def main(backend, folder=None):
    folder = folder or tempfile.gettempdir()
    stories = ({"text": f"the herring fair of {year}"} for year in range(2001, 2013))
    results = headline.run_batch(
        stories,
        backend=backend,
        generator_style=True,
        return_exceptions=True,
        retries=3,
        program_timeout=120,
        progress_bar=True,
        checkpoint=pathlib.Path(folder) / "headlines.jsonl",
    )
    done = failed = 0
    for result in results:
        if isinstance(result, Exception):
            failed += 1
        else:
            done += 1
    print(f"{done} done, {failed} failed")
    return done, failed


if __name__ == "__main__":
    with rs.Engine(*sys.argv[1:2]) as engine:
        main(engine)
