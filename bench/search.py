"""CPU of a search by meaning over many sections: `python -m bench.search [--sections 100000]`.

Prints the CPU (all threads of this process) of embedding a question and looking at every vector,
and how many of the ten best by plain 64-bit arithmetic are among the ten that were found.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from onceflow.clients.embed import word_vectors
from onceflow.knowledge.articles import Loaded, Section
from onceflow.knowledge.index import LocalIndex

PER_ARTICLE = 10
WIDE = 256
QUESTIONS = (
    "who first made dough rise?", "how is glass blown", "the height of the tower of London",
    "what do bees eat in winter", "why is the sea salt", "who wrote the first dictionary",
)  # fmt: skip


def made(sections: int, folder: Path) -> tuple[LocalIndex, np.ndarray]:
    """An index of random sections around the directions of real sentences."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((sections, WIDE)).astype("<f4")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = LocalIndex(folder)
    for first in range(0, sections, 20_000):
        last = min(sections, first + 20_000)
        articles = []
        for at in range(first, last, PER_ARTICLE):
            number = at // PER_ARTICLE + 1
            parts = tuple(
                Section(n, 2, "", "", "", vectors[at + n].tobytes()) for n in range(PER_ARTICLE)
            )
            title = f"T{number}"
            articles.append(
                Loaded(number, 1, 0, title, number, 1, "", (title,), (), parts, (), "embedded")
            )
        index.add(articles, last, None)
    index.tidy()
    return index, vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sections", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        index, vectors = made(given.sections // PER_ARTICLE * PER_ARTICLE, Path(temporary))
        word_vectors(["warm"])
        began = time.process_time()
        index = LocalIndex(Path(temporary))
        opened = time.process_time() - began
        index.search(word_vectors(["warm"])[0], "embedded", 10)
        spent: list[float] = []
        found = wanted = 0
        for _ in range(given.rounds):
            for question in QUESTIONS:
                began = time.process_time()
                query = word_vectors([question])[0]
                hits = index.search(query, "embedded", 10)
                spent.append(time.process_time() - began)
                scores = vectors.astype(np.float64) @ query.astype(np.float64)
                best = set(np.argsort(-scores)[:10].tolist())
                mine = {(hit.item - 1) * PER_ARTICLE + hit.n for hit in hits}
                found, wanted = found + len(best & mine), wanted + len(best)
        print(f"{len(vectors):,} sections of {WIDE} numbers")
        print(f"open the index      {opened * 1000:6.1f} ms CPU")
        print(f"a search, median    {statistics.median(spent) * 1000:6.1f} ms CPU")
        print(f"a search, the worst {max(spent) * 1000:6.1f} ms CPU")
        print(f"recall at 10        {found / wanted:6.3f}")


if __name__ == "__main__":
    main()
