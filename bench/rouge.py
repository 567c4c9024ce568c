"""`python -m bench.rouge PAIRS`: the embedded summarizer beside the first three sentences.

PAIRS is a folder with the articles and the reference summaries in two folders that mirror each
other (`article/…`, `summary/…`), or a CSV, TSV or JSON Lines file with a column for each. Scores
are ROUGE-1, ROUGE-2 and ROUGE-L, as F1 and recall, the means over all pairs; words are compared in
lower case, without stemming. Then come the difference, with its 95 % interval by resampling the
pairs, and the time a page takes.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from onceflow.clients.embedded import summary
from onceflow.clients.sentences import sentences

ARTICLES = ("article", "articles", "text", "texts", "document", "documents", "news", "story")
REFERENCES = ("reference", "references", "summary", "summaries", "highlights", "abstract", "gold")
RESAMPLES = 1000
MEASURES = ("rouge-1", "rouge-2", "rouge-l")

Pair = tuple[str, str]
Scores = dict[str, tuple[float, float]]  # measure -> F1, recall


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rouge", description=__doc__)
    parser.add_argument("pairs", type=Path, help="a folder, or a .csv, .tsv or .jsonl file")
    parser.add_argument("--article", help="the column (or folder) of the articles")
    parser.add_argument("--reference", help="the column (or folder) of the references")
    parser.add_argument("--words", type=int, help="summaries of about so many words")
    parser.add_argument("--limit", type=int, help="only the first so many pairs")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args()
    pairs = list(read(options.pairs, options.article, options.reference))[: options.limit]
    if not pairs:
        print(f"{options.pairs}: no pairs found; see --help for what is read", file=sys.stderr)
        return 2
    report(pairs, options.words, as_json=options.json)
    return 0


# --- pairs ---


def read(path: Path, article: str | None = None, reference: str | None = None) -> Iterator[Pair]:
    """The pairs of a folder or a file, in a fixed order."""
    if path.is_dir():
        yield from _of_folder(path, article, reference)
        return
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix in (".jsonl", ".ndjson"):
            rows: Iterator[dict[str, str]] = (json.loads(line) for line in file if line.strip())
        else:
            rows = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        for row in rows:
            names = list(row)
            one = row[_named(names, article, ARTICLES, 0)]
            other = row[_named(names, reference, REFERENCES, 1)]
            if one and other:
                yield one, other


def _of_folder(path: Path, article: str | None, reference: str | None) -> Iterator[Pair]:
    folders = [one.name for one in path.iterdir() if one.is_dir()]
    articles = path / _named(sorted(folders), article, ARTICLES, 0)
    references = path / _named(sorted(folders), reference, REFERENCES, 1)
    for one in sorted(articles.rglob("*")):
        other = references / one.relative_to(articles)
        if one.is_file() and other.is_file():
            yield _text(one), _text(other)


def _named(names: list[str], wanted: str | None, usual: Sequence[str], position: int) -> str:
    if wanted is not None:
        return wanted
    known = {name.strip().lower(): name for name in names}
    for name in usual:
        if name in known:
            return known[name]
    return names[position]


def _text(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")


# --- scores ---


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def rouge_n(said: list[str], wanted: list[str], n: int) -> tuple[float, float]:
    grams = [Counter(zip(*(one[at:] for at in range(n)), strict=False)) for one in (said, wanted)]
    common = sum((grams[0] & grams[1]).values())
    return _f1(common, sum(grams[0].values()), sum(grams[1].values()))


def rouge_l(said: list[str], wanted: list[str]) -> tuple[float, float]:
    """By the longest common subsequence of words."""
    row = [0] * (len(wanted) + 1)
    for word in said:
        before = 0
        for at, other in enumerate(wanted, start=1):
            before, row[at] = row[at], before + 1 if word == other else max(row[at], row[at - 1])
    return _f1(row[-1], len(said), len(wanted))


def _f1(common: int, said: int, wanted: int) -> tuple[float, float]:
    precision = common / said if said else 0.0
    recall = common / wanted if wanted else 0.0
    both = precision + recall
    return (2 * precision * recall / both if both else 0.0), recall


def scores(text: str, reference: str) -> Scores:
    said, wanted = words(text), words(reference)
    found = (rouge_n(said, wanted, 1), rouge_n(said, wanted, 2), rouge_l(said, wanted))
    return dict(zip(MEASURES, found, strict=True))


# --- the two ---


def lead(article: str, words_max: int | None) -> str:
    """The first three sentences, or as many as make about so many words."""
    found = sentences(article)
    if words_max is None:
        return " ".join(found[:3])
    taken: list[str] = []
    for one in found:
        if taken and len(" ".join([*taken, one]).split()) > words_max:
            break
        taken.append(one)
    return " ".join(taken)


def report(pairs: list[Pair], words_max: int | None, *, as_json: bool) -> None:
    summary("Load the model. It is loaded once. That is not what is measured.")
    ways: dict[str, Callable[[str], str]] = {
        "embedded": lambda article: " ".join(summary(article, words_max)),
        "first sentences": lambda article: lead(article, words_max),
    }
    rows: dict[str, list[Scores]] = {}
    times: dict[str, float] = {}
    for name, way in ways.items():
        texts, began = [], time.perf_counter()
        for article, _ in pairs:
            texts.append(way(article))
        times[name] = (time.perf_counter() - began) / len(pairs) * 1000
        rows[name] = [scores(text, one[1]) for text, one in zip(texts, pairs, strict=True)]
    ours, first = rows.values()
    figures = {measure: _figure(measure, ours, first) for measure in MEASURES}
    if as_json:
        print(json.dumps({"pairs": len(pairs), "ms": times, "scores": figures}, indent=1))
        return
    print(f"{len(pairs)} pairs; F1 (recall)\n")
    print(f"{'':10}{'embedded':>18}{'first sentences':>18}{'difference':>12}  95 % interval")
    for measure, one in figures.items():
        cells = [f"{one[name]:.3f} ({one[f'{name}, recall']:.3f})" for name in ways]
        gain = one["embedded"] - one["first sentences"]
        between = f"{one['low']:+.3f} to {one['high']:+.3f}"
        print(f"{measure:10}{cells[0]:>18}{cells[1]:>18}{gain:>+12.3f}  {between}")
    length = statistics.fmean(len(article) for article, _ in pairs)
    print(f"\n{times['embedded']:.1f} ms a page of {length:,.0f} characters")


def _figure(measure: str, ours: list[Scores], first: list[Scores]) -> dict[str, float]:
    gains = [a[measure][0] - b[measure][0] for a, b in zip(ours, first, strict=True)]
    low, high = interval(gains)
    return {
        "embedded": statistics.fmean(one[measure][0] for one in ours),
        "embedded, recall": statistics.fmean(one[measure][1] for one in ours),
        "first sentences": statistics.fmean(one[measure][0] for one in first),
        "first sentences, recall": statistics.fmean(one[measure][1] for one in first),
        "low": low,
        "high": high,
    }


def interval(gains: list[float]) -> tuple[float, float]:
    """Between which the mean difference lies in 95 of 100 resamples of the pairs."""
    chance = random.Random(0)
    means = sorted(statistics.fmean(chance.choices(gains, k=len(gains))) for _ in range(RESAMPLES))
    return means[int(RESAMPLES * 0.025)], means[int(RESAMPLES * 0.975)]


if __name__ == "__main__":
    sys.exit(main())
