"""Words of a text: its language, and the phrases that say what it is about. No model is needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onceflow.pipelines.analyze.languages import codes, generic, language

TEXT_CHARS_MAX = 60_000
WORDS_IN_A_PHRASE = 3
OWNED_LEAST = 3.0
"""A page's own subject is in its title or its address, and comes back in its text."""

_WORD = re.compile(r"[^\W_]+(?:[.\-'’+#&][^\W_]+)*(?:\+\+|#)?")  # noqa: RUF001 - as people write it
_BREAK = re.compile(r"[^\w\s.\-'’+#&]|\.(?=\s|$)|\n")  # noqa: RUF001
_KANA = re.compile(r"[\u3040-\u30ff]")
_HAN = re.compile(r"[\u4e00-\u9fff]")
_JAPANESE_RUN = re.compile(r"[\u30a1-\u30fa\u30fc]{3,}|[\u4e00-\u9fff]{2,8}")
_SCRIPTS = (
    ("ar", re.compile(r"[\u0600-\u06ff]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
    ("el", re.compile(r"[\u0370-\u03ff]")),
    ("he", re.compile(r"[\u0590-\u05ff]")),
    ("ko", re.compile(r"[\uac00-\ud7af]")),
    ("th", re.compile(r"[\u0e00-\u0e7f]")),
    ("hi", re.compile(r"[\u0900-\u097f]")),
)


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase that a site uses, as it is mostly written there."""

    text: str
    weight: float
    pages: tuple[int, ...]


def language_of(text: str, named: str = "") -> str:
    """The code of a text's language: by its script or its commonest words; what the page says of
    itself decides where that leaves doubt. Empty if nothing tells."""
    said = named.strip().lower().replace("_", "-").partition("-")[0]
    sample = text[:6000]
    letters = sum(1 for char in sample if char.isalpha())
    if not letters:
        return said
    kana, han = len(_KANA.findall(sample)), len(_HAN.findall(sample))
    if kana > 0.08 * letters:
        return "ja"
    if han > 0.25 * letters:
        return said if said in ("ja", "zh") else "zh"
    for code, script in _SCRIPTS:
        if len(script.findall(sample)) > 0.4 * letters:
            same = {"ru": ("uk", "bg", "sr", "be", "mk"), "ar": ("fa", "ur")}.get(code, ())
            return said if said in same else code
    words = [word.lower() for word in _WORD.findall(sample)]
    hits = {code: sum(word in language(code).stop for word in words) for code in codes()}
    best = max(hits, key=lambda code: hits[code])
    if said and (said not in hits or hits[said] >= 0.7 * hits[best]):
        return said
    return best if hits[best] >= max(2, 0.08 * len(words)) else said


def words_of(text: str) -> list[str]:
    return _WORD.findall(text)


def count_words(text: str) -> int:
    """Words as a reader counts them; two characters of Chinese or Japanese are about one."""
    dense = len(_HAN.findall(text)) + len(_KANA.findall(text))
    return len(_WORD.findall(re.sub(r"[\u3040-\u30ff\u4e00-\u9fff]+", " ", text))) + dense // 2


def fold(word: str) -> str:
    """The form under which plural and singular, large and small are the same."""
    word = word.lower().replace("’", "'")  # noqa: RUF001
    word = word.removesuffix("'s")
    if word.isascii() and len(word) > 4 and not word.endswith(("ss", "us", "is")):
        if word.endswith("ies"):
            return word[:-3] + "y"
        if word.endswith(("ches", "shes", "xes", "sses")):
            return word[:-2]
        return word.removesuffix("s")
    return word


class Phrases:
    """Gathers the phrases of several pages, and says which tell most about all of them."""

    def __init__(self, code: str, without: Iterable[str] = (), others: Iterable[str] = ()) -> None:
        self._language = code
        known = language(code)
        self._stop = known.stop | language("en").stop | known.articles
        for other in others:
            self._stop |= language(other).stop
        self._articles = known.articles
        self._without = {fold(word) for text in without for word in words_of(text)}
        self._weights: Counter[str] = Counter()
        self._pages: dict[str, set[int]] = {}
        self._forms: dict[str, Counter[str]] = {}
        self._of_page: dict[int, Counter[str]] = {}
        self._large: Counter[str] = Counter()
        """Words of the site's name: above 0 if they are mostly written large, as names are."""
        self._in_bodies: Counter[str] = Counter()
        self._as_noun: Counter[str] = Counter()
        self._as_other: Counter[str] = Counter()

    def add(
        self, text: str, page: int, weight: float, *, body: bool = False, spelt: bool = True
    ) -> None:
        """Text of a page; a title or a heading weighs more than a line of its body. Only a body has
        sentences, which show whether a word is a noun; an address is not `spelt` as a text is."""
        found: Counter[str] = Counter()
        for key, form, before in self._phrases(text[:TEXT_CHARS_MAX]):
            found[key] += 1
            if body:
                self._in_bodies[key] += 1
                if before in self._articles:
                    self._as_noun[key] += 1
                elif before:
                    self._as_other[key] += 1
            self._forms.setdefault(key, Counter())[form] += 1 if spelt else 0
            self._pages.setdefault(key, set()).add(page)
        for key, count in found.items():
            worth = weight * min(count, 20) ** 0.5  # ten times is not ten times as much
            self._weights[key] += worth
            self._of_page.setdefault(page, Counter())[key] += worth

    def _phrases(self, text: str) -> Iterator[tuple[str, str, str]]:
        """Phrases as key and form, each with the word of no meaning that stands before it."""
        if self._language == "ja":
            for match in _JAPANESE_RUN.finditer(text):
                if match.group() in generic():
                    continue
                yield match.group(), match.group(), ""
            text = re.sub(r"[\u3040-\u30ff\u4e00-\u9fff]+", " ", text)
        elif self._language == "zh":
            for chars in re.findall(r"[\u4e00-\u9fff]{2,}", text):
                for size in (2, 3, 4):
                    for at in range(len(chars) - size + 1):
                        yield chars[at : at + size], chars[at : at + size], ""
            text = re.sub(r"[\u4e00-\u9fff]+", " ", text)
        for piece in _BREAK.split(text):
            run: list[str] = []
            before = ""
            for word in [*_WORD.findall(piece), ""]:
                if word and self._says_something(word):
                    run.append(word)
                    continue
                yield from self._parts(run, before)
                run, before = [], word.lower()

    def _says_something(self, word: str) -> bool:
        lower = word.lower()
        return (
            lower not in self._stop
            and lower.partition("-")[0] not in self._stop
            and not re.match(r"v?\d+[.\d]", lower)
            and any(char.isalpha() for char in word)
            and len(word) > 1
            and len(word) <= 40
        )

    def _parts(self, run: list[str], before: str) -> Iterator[tuple[str, str, str]]:
        for size in range(1, WORDS_IN_A_PHRASE + 1):
            for at in range(len(run) - size + 1):
                words = run[at : at + size]
                keys = [fold(word) for word in words]
                if size == 1 and (keys[0] in generic() or words[0].lower() in generic()):
                    continue
                if keys[0] in generic() and keys[-1] in generic():
                    continue
                for key, word in zip(keys, words, strict=True):
                    if size == 1 and self._is_ours(key):
                        self._large[key] += 1 if word != word.lower() else -1
                if len(set(keys)) < size or all(self._is_ours(key) for key in keys):
                    continue
                yield " ".join(keys), " ".join(words), before if at == 0 else ""

    def _is_ours(self, key: str) -> bool:
        """Whether a word belongs to the site's own name."""
        return any(
            key == own or (len(own) > 4 and key.startswith(own) and len(key) <= len(own) + 2)
            for own in self._without
        )

    def _is_noun(self, key: str) -> bool:
        """Whether it stands where nouns stand, as far as the language shows it."""
        if not self._articles or not self._in_bodies[key]:
            return not self._articles
        if self._language == "de" and not self._form(key)[:1].isupper():
            return False
        nouns, others = self._as_noun[key], self._as_other[key]
        if " " in key:
            return self._in_bodies[key] > 1 and (nouns > 0 or others == 0) and 2 * nouns >= others
        return nouns > 0 and nouns * 2 >= others

    def best(self, most: int) -> list[Phrase]:
        """The phrases that tell most: those of the whole site, then what each page is about; none
        of them says what another says already."""
        scored: list[tuple[float, str]] = []
        for key, weight in self._weights.items():
            if bonus := self._bonus(key):
                spread = min(len(self._pages[key]) - 1, 6)
                scored.append((weight * bonus * (1 + 0.35 * spread), key))
        scored.sort(key=lambda one: (-one[0], one[1]))
        own = self._owned()
        chosen: list[tuple[float, str]] = []
        room = most // 2 if len(own) > 2 else most
        for score, key in scored:
            if len(chosen) >= room:
                break
            if not self._is_said(key, chosen):
                chosen.append((score, key))
        top = chosen[0][0] if chosen else 1.0
        for _, key in own:
            if len(chosen) < most and not self._is_said(key, chosen):
                chosen.append((min(self._weights[key] * self._bonus(key), top), key))
        chosen.sort(key=lambda one: -one[0])
        return [
            Phrase(
                self._form(key), round(max(0.01, score / top), 3), tuple(sorted(self._pages[key]))
            )
            for score, key in chosen
        ]

    def _bonus(self, key: str) -> float:
        """What a phrase is worth by its length; nothing where it cannot be a subject."""
        length = key.count(" ") + 1
        if not self._is_noun(key) or any(self._large[word] > 0 for word in key.split()):
            return 0.0  # to ask about the site's own name is to name the site
        if length == 1 and key.isascii() and len(key) < 3 and not self._form(key).isupper():
            return 0.0
        # A phrase of two words that comes back says more than either word alone.
        return (0.7, 2.2, 2.0)[length - 1]

    def _owned(self) -> list[tuple[float, str]]:
        """What each page is about, and few others are: the page's best phrase, if it is clear."""
        total = len(self._of_page)
        found: list[tuple[float, str]] = []
        for weights in self._of_page.values():
            best, best_score = "", 0.0
            for key, weight in weights.items():
                rare = 1.0 - (len(self._pages[key]) - 1) / max(1, total)
                score = weight * rare * rare * self._bonus(key)
                if score > best_score:
                    best, best_score = key, score
            if best and best_score >= OWNED_LEAST:
                found.append((best_score, best))
        return sorted(found, key=lambda one: (-one[0], one[1]))

    def _is_said(self, key: str, chosen: list[tuple[float, str]]) -> bool:
        """Whether one that was chosen has all of its words, or it is only a longer form of one."""
        words = set(key.split()) if " " in key or key.isascii() else {key}
        for _, other in chosen:
            others = set(other.split())
            if words <= others or (others <= words and len(others) > 1):
                return True
            if others < words and self._weights[key] < 0.5 * self._weights[other]:
                return True
            if not key.isascii() and (key in other or other in key):
                return True
        return False

    def _form(self, key: str) -> str:
        """How it is mostly written; small where it is small often enough: a title makes any word
        large."""
        forms = self._forms[key]
        small = {form: count for form, count in forms.items() if form == form.lower()}
        if small and sum(small.values()) * 5 >= sum(forms.values()) > 0:
            return max(small, key=lambda form: (small[form], form))
        best, count = forms.most_common(1)[0]
        inner = Counter(
            {form: n for form, n in forms.items() if not form.istitle() and not form.isupper()}
        )
        if inner and not best.isupper() and inner.most_common(1)[0][1] * 3 >= count:
            best = inner.most_common(1)[0][0]
        if best.istitle() and best.isascii() and " " in best and self._language == "en":
            return best.lower()
        return best
