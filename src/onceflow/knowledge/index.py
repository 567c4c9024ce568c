"""Vectors of sections in files: written whole, mapped into memory, searched from end to end.

`index.json` names the segments that count; whatever else lies in the folder is left over from a
process that was killed, and is taken away. A segment is never changed. The newest segment that has
an article has all of its sections; what older ones have of it is passed over.
"""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onceflow.knowledge.articles import Loaded
from onceflow.knowledge.place import read_json, write_bytes, write_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Rows = NDArray[np.void]

FORMAT = 1
MANIFEST = "index.json"
SEGMENTS_MAX = 8
GARBAGE_MAX = 0.25
"""More segments, or a larger part that is passed over: all are written into one again."""
READ_AGAIN = 3
NEAR = 1e-4
"""How far two scores of 32-bit arithmetic may be off: whatever is so near is scored again."""
DRAFT = re.compile(r"\.(index\.json|[0-9a-f]{12}\.(f32|rows))\.[0-9a-f]+\.new")
"""A file of ours that was not finished. The graph's files in the same folder are not ours."""
NOTHING = -1
"""The section number that says: of this article there is nothing to find."""


class Hit(NamedTuple):
    """One section that was found."""

    item: int
    n: int
    score: float
    tie: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Some sections of one embedding model."""

    name: str
    model: str
    dimensions: int
    rows: int
    mark: str
    """A digest of who the rows are."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the index holds, and up to which event."""

    seq: int = 0
    witness: list[Any] | None = None
    segments: tuple[Segment, ...] = ()
    articles: int = 0
    sections: int = 0


def read_manifest(folder: Path) -> Manifest | None:
    """What the index says of itself; None if it is not there or not whole."""
    found = read_json(folder / MANIFEST)
    try:
        if found.pop("format") != FORMAT:
            return None
        segments = tuple(Segment(**one) for one in found.pop("segments"))
        manifest = Manifest(segments=segments, **found)
        for segment in segments:
            size = (folder / f"{segment.name}.f32").stat().st_size
            if size != segment.rows * segment.dimensions * 4:
                return None
            rows = (folder / f"{segment.name}.rows").read_bytes()
            if blake2b(rows, digest_size=16).hexdigest() != segment.mark:
                return None
    except (OSError, TypeError, KeyError, AttributeError):
        return None
    return manifest


class LocalIndex:
    """One folder's index, as it was when it was opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for _ in range(READ_AGAIN):
            try:
                self.manifest = read_manifest(folder) or Manifest()
                self._load()
                if self.manifest.segments:
                    return
            except OSError:  # whoever feeds it has just written all into one segment
                continue
        self.manifest = read_manifest(folder) or Manifest()
        self._load()

    def _load(self) -> None:
        import numpy as np

        segments = self.manifest.segments
        self._rows = [self._rows_of(segment) for segment in segments]
        self._vectors = [self._vectors_of(segment) for segment in segments]
        self._lives: dict[int, NDArray[np.bool_]] = {}
        self._dead: list[NDArray[np.bool_] | None] = [None] * len(segments)
        newer: set[int] = set()
        for at in reversed(range(len(segments))):
            items = self._rows[at]["item"]
            if newer:
                dead = np.isin(items, np.fromiter(newer, dtype=np.int64))
                self._dead[at] = dead if dead.any() else None
            if at:
                newer.update(np.unique(items).tolist())

    def _rows_of(self, segment: Segment) -> Rows:
        import numpy as np

        return np.load(io.BytesIO((self.folder / f"{segment.name}.rows").read_bytes()))  # type: ignore[no-any-return]  # numpy types it as Any

    def _vectors_of(self, segment: Segment) -> Floats:
        import numpy as np

        path, shape = self.folder / f"{segment.name}.f32", (segment.rows, segment.dimensions)
        return np.memmap(path, dtype="<f4", mode="r", shape=shape)

    # --- what is in it ---

    def known(self) -> dict[int, int]:
        """The articles that are in it, and which generation of each."""
        found: dict[int, int] = {}
        for rows in self._rows:
            found |= dict(zip(rows["item"].tolist(), rows["generation"].tolist(), strict=True))
        return found

    def models(self) -> dict[str, int]:
        """How many sections there are of each embedding model, the most used first."""
        found: dict[str, int] = {}
        for at, segment in enumerate(self.manifest.segments):
            found[segment.model] = found.get(segment.model, 0) + int(self._live(at).sum())
        return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))

    def _live(self, at: int) -> NDArray[np.bool_]:
        known = self._lives.get(at)
        if known is None:
            known = self._rows[at]["n"] != NOTHING
            dead = self._dead[at]
            self._lives[at] = known = known if dead is None else known & ~dead
        return known

    # --- search ---

    def search(self, query: Floats, model: str, most: int) -> list[Hit]:
        """The nearest sections, exactly: all are looked at."""
        import numpy as np

        found: list[Hit] = []
        for at, segment in enumerate(self.manifest.segments):
            if segment.model != model or segment.dimensions != len(query):
                continue
            vectors, rows = self._vectors[at], self._rows[at]
            scores = vectors @ query
            scores[~self._live(at)] = -np.inf
            bound = -np.inf
            if len(scores) > most:
                bound = np.partition(scores, len(scores) - most)[len(scores) - most] - NEAR
            near = np.flatnonzero((scores >= bound) & np.isfinite(scores))
            exact = vectors[near].astype(np.float64) @ query.astype(np.float64)
            found += [
                Hit(int(row["item"]), int(row["n"]), float(score), int(row["tie"]))
                for row, score in zip(rows[near], exact, strict=True)
            ]
        return best(found, most)

    # --- writing: under the lock of whoever feeds it ---

    def add(self, articles: Iterable[Loaded], seq: int, witness: list[Any] | None) -> None:
        """All sections of these articles, and the event up to which they were read."""
        parts: dict[tuple[str, int], list[tuple[Loaded, int, bytes]]] = {}
        for article in articles:
            whole = [section for section in article.sections if section.vector]
            for section in whole:
                place = article.embed_model, len(section.vector) // 4
                parts.setdefault(place, []).append((article, section.n, section.vector))
            if not whole:
                place = article.embed_model, self._dimensions(article.embed_model)
                nothing = (article, NOTHING, bytes(place[1] * 4))
                parts.setdefault(place, []).append(nothing)
        fresh = [self._write(model, wide, rows) for (model, wide), rows in parts.items()]
        self._publish([*self.manifest.segments, *fresh], seq, witness)

    def _dimensions(self, model: str) -> int:
        return next((one.dimensions for one in self.manifest.segments if one.model == model), 1)

    def _write(
        self, model: str, dimensions: int, rows: Sequence[tuple[Loaded, int, bytes]]
    ) -> Segment:
        import numpy as np

        table = np.zeros(len(rows), dtype=_columns())
        for at, (article, n, _) in enumerate(rows):
            table[at] = (article.item, article.generation, n, tie_of(article.title))
        return self._put(model, dimensions, table, b"".join(vector for _, _, vector in rows))

    def _put(self, model: str, dimensions: int, table: Rows, vectors: bytes) -> Segment:
        import numpy as np

        name = secrets.token_hex(6)
        written = io.BytesIO()
        np.save(written, table)
        rows = written.getvalue()
        write_bytes(self.folder / f"{name}.f32", vectors)
        write_bytes(self.folder / f"{name}.rows", rows)
        mark = blake2b(rows, digest_size=16).hexdigest()
        return Segment(name, model, dimensions, len(table), mark)

    def tidy(self) -> None:
        """Write all into one segment a model, if there are too many or too much is passed over."""
        import numpy as np

        segments = self.manifest.segments
        total = sum(segment.rows for segment in segments)
        dead = sum(int(dead.sum()) for dead in self._dead if dead is not None)
        if len(segments) > SEGMENTS_MAX or dead > GARBAGE_MAX * max(1, total):
            places = dict.fromkeys((one.model, one.dimensions) for one in segments)
            merged: list[Segment] = []
            for place in places:
                mine = [i for i, one in enumerate(segments) if (one.model, one.dimensions) == place]
                kept = [(at, self._dead[at]) for at in mine]
                alive = [(at, slice(None) if gone is None else ~gone) for at, gone in kept]
                rows = np.concatenate([self._rows[at][live] for at, live in alive])
                vectors = np.concatenate([self._vectors[at][live] for at, live in alive])
                if len(rows):
                    merged.append(self._put(*place, rows, vectors.tobytes()))
            self._publish(merged, self.manifest.seq, self.manifest.witness)
        named = {one.name for one in self.manifest.segments}
        for path in self.folder.iterdir():
            left = path.suffix in (".f32", ".rows") and path.stem not in named
            if left or DRAFT.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Begin again, from nothing."""
        self._publish([], 0, None)

    def _publish(self, segments: Sequence[Segment], seq: int, witness: list[Any] | None) -> None:
        self.manifest = Manifest(seq, witness, tuple(segments))
        self._load()
        sections = sum(self.models().values())
        self.manifest = Manifest(seq, witness, tuple(segments), len(self.known()), sections)
        write_json(self.folder / MANIFEST, {"format": FORMAT, **asdict(self.manifest)})


def best(found: Iterable[Hit], most: int) -> list[Hit]:
    """The best of what was found, in an order that does not depend on where it was found: scores
    that differ in the seventh digit are one, and the same articles win on every store."""
    return sorted(found, key=lambda hit: (-round(hit.score, 6), hit.tie, hit.n))[:most]


def tie_of(title: str) -> int:
    """A number that decides between equal scores: by title, since ids differ between databases."""
    digest = blake2b(title.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _columns() -> Any:
    import numpy as np

    return np.dtype([("item", "<i8"), ("generation", "<i4"), ("n", "<i4"), ("tie", "<i8")])
