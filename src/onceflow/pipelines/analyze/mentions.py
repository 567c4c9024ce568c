"""Who is named in an answer: the site by its brand, its domain or a link only, and who else."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from onceflow.clients.sentences import sentences
from onceflow.pipelines.analyze.languages import codes, common, language
from onceflow.pipelines.analyze.shapes import Brand, How, Info, Other, Tone
from onceflow.pipelines.analyze.words import language_of

OTHERS_MAX = 20
TEXT_CHARS_MAX = 50_000

_LINK = re.compile(r"\[([^\]\n]{0,300})\]\((\S{1,2000}?)\)|<?(https?://[^\s<>\"')\]]{1,2000})>?")
_KATAKANA = "\\u30a1-\\u30fa\\u30fc"
_CJK = re.compile("[\\u3040-\\u30ff\\u4e00-\\u9fff\\uac00-\\ud7af]")
_ARABIC = re.compile("[\\u0600-\\u06ff]")
_CYRILLIC = re.compile("[\\u0400-\\u04ff]")
_APOSTROPHE = "['\\u2019]"
_NAME = re.compile(
    "(?<![\\w@./-])[A-Z\\u00c0-\\u00de\\u0410-\\u042f][\\w&+'\\u2019.-]*"
    "(?:[ ](?:(?:of|the|de|la|le|&|von|van) )?"
    "[A-Z\\u00c0-\\u00de\\u0410-\\u042f0-9][\\w&+'\\u2019.-]*){0,3}"
)
_BOLD = re.compile(r"\*\*([^*\n]{2,60})\*\*|__([^_\n]{2,60})__")
_BULLET = re.compile(r"^\s{0,8}(?:[-*+•]|\d{1,2}[.)])\s+", re.MULTILINE)
_HEAD = re.compile("([^:\\u2013\\u2014(\n]{2,50}?)\\s*(?::|\\s[\\u2013\\u2014-]\\s|\\()")
_DOMAIN = re.compile(
    r"(?<![\w@.-])(?:[a-z0-9-]{1,63}\.){1,3}[a-z]{2,12}(?![\w-]|\.\w)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Mention:
    """What an answer says of the site, and who else it names."""

    how: How
    position: float | None
    rank: int | None
    tone: Tone | None
    others: tuple[Other, ...]


def brand_of(info: Info, url: str) -> Brand:
    """What counts as naming the site: its name (and the part of it that is a name of its own), and
    its host."""
    names = [info["name"]] if info["name"] else []
    host = (urlsplit(url).hostname or "").removeprefix("www.")
    bare = re.sub(
        r"[,\s]+(?:inc|ltd|llc|gmbh|ag|kg|co|corp|company|s\.?a|s\.?r\.?l|b\.?v)\.?$", "",
        info["name"], flags=re.IGNORECASE,
    )  # fmt: skip
    if bare and bare not in names:
        names.append(bare)
    domains = [host] if "." in host and not re.fullmatch(r"[\d.]+", host) else []
    return {"names": [name for name in names if name not in domains], "domains": domains}


def mention(text: str, brand: Brand, *, prompt: str = "") -> Mention:
    """Read one answer."""
    text = text[:TEXT_CHARS_MAX]
    plain, links = _without_links(text)
    found = _first_name(plain, brand["names"])
    how: How = "brand"
    if found is None:
        found, how = _first_domain(plain, brand["domains"]), "domain"
    others = _others(plain, brand, prompt)
    if found is None:
        if any(_is_ours(link, brand["domains"]) for _, link in links):
            at = min(at for at, link in links if _is_ours(link, brand["domains"]))
            return Mention("link", _share(at, text), None, None, _counted(others))
        return Mention("none", None, None, None, _counted(others))
    rank = 1 + sum(1 for at, *_ in others.values() if at < found)
    return Mention(how, _share(found, plain), rank, _tone(plain, brand), _counted(others))


def _share(at: int, text: str) -> float:
    return round(min(1.0, at / max(1, len(text))), 3)


def _without_links(text: str) -> tuple[str, list[tuple[int, str]]]:
    """The text with the words of its links but without their addresses, which come beside it."""
    links = [(m.start(), m.group(2) or m.group(3)) for m in _LINK.finditer(text)]
    return _LINK.sub(lambda m: m.group(1) or "", text), links


# --- the site itself ---


def _first_name(text: str, names: Iterable[str]) -> int | None:
    starts = [m.start() for name in names if (m := _pattern(name).search(folded(text)))]
    return min(starts, default=None)


def folded(text: str) -> str:
    """Without accents, character by character: places stay the same."""
    if text.isascii():
        return text
    out = []
    for char in text:
        base = unicodedata.normalize("NFKD", char)
        plain = "".join(part for part in base if not unicodedata.combining(part))
        out.append(plain if len(plain) == 1 and not _CJK.match(char) else char)
    return "".join(out)


@lru_cache(maxsize=256)
def _pattern(name: str) -> re.Pattern[str]:
    """Where a name stands as a name: not within a word, in any form its language gives it."""
    name = folded(name)
    words = re.findall(r"[^\W_]+", name)
    core = r"[\s\-\u2010\u2011.&+_]*".join(re.escape(word) for word in words) or re.escape(name)
    if name[-1:] in "+#":
        core += re.escape(name[-1])
    if _CJK.search(name):
        # Written without spaces: only a run of katakana is a word with an end.
        before = f"(?<![{_KATAKANA}])" if re.match(f"[{_KATAKANA}]", name) else ""
        after = f"(?![{_KATAKANA}])" if re.search(f"[{_KATAKANA}]$", name) else ""
        return re.compile(before + core + after)
    if _ARABIC.search(name):
        letter = r"\u0621-\u064a"
        article = "\u0628\u0627\u0644|\u0644\u0644|\u0627\u0644|[\u0628\u0644\u0643]"
        prefix = f"(?:[\u0648\u0641]?(?:{article})?)?"
        return re.compile(f"(?<![{letter}]){prefix}{core}(?![{letter}])")
    if _CYRILLIC.search(name):
        letter = r"\u0400-\u04ff"
        stem = core[:-1] if re.search(r"[аеёийоуыьюя]$", name.lower()) else core
        return re.compile(f"(?<![{letter}\\w]){stem}[{letter}]{{0,3}}(?![{letter}])", re.IGNORECASE)
    # Latin letters may stand beside Japanese ones: only another Latin letter makes it one word.
    letter = r"A-Za-z0-9_\u00c0-\u024f"
    ending = f"(?:{_APOSTROPHE}s|s{_APOSTROPHE}?|es|{_APOSTROPHE})?"
    one_word = len(words) == 1 and words[0].isalpha() and words[0].islower() is False
    flags = 0 if one_word and words[0].istitle() else re.IGNORECASE
    if one_word and words[0].istitle():
        # "alder" is a tree and "Alder" may be a company; "ALDER" is as good.
        core = f"(?:{core}|{core.upper()})"
    return re.compile(f"(?<![{letter}@/.]){core}{ending}(?![{letter}]|[.][a-z]{{2}})", flags)


def _first_domain(text: str, domains: Iterable[str]) -> int | None:
    starts = []
    for domain in domains:
        # Bounded, so that an answer of nothing but dots is read once and not once for each dot.
        pattern = rf"(?<![\w@-])(?:[\w-]{{1,63}}\.){{0,8}}{re.escape(domain)}(?![\w-]|\.\w)"
        if match := re.search(pattern, text, re.IGNORECASE):
            starts.append(match.start())
    return min(starts, default=None)


def _is_ours(link: str, domains: Iterable[str]) -> bool:
    try:
        host = (urlsplit(link).hostname or "").lower()
    except ValueError:
        return False
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


# --- how it is spoken of ---


def _tone(text: str, brand: Brand) -> Tone:
    """By the plainest words of the sentences that name it. A denied praise is none."""
    score = 0
    for sentence in sentences(text, count_max=500):
        named = _first_name(sentence, brand["names"]) is not None
        if named or _first_domain(sentence, brand["domains"]) is not None:
            score += _feeling(_without_names(sentence, brand))
    return "positive" if score > 0 else "negative" if score < 0 else "neutral"


def _without_names(sentence: str, brand: Brand) -> str:
    for name in brand["names"]:
        sentence = _pattern(name).sub(" ", folded(sentence)) if sentence.isascii() else sentence
    return sentence


def _feeling(sentence: str) -> int:
    lower = sentence.lower()
    if _CJK.search(lower):
        good = sum(word in lower for code in ("ja", "zh") for word in language(code).positive)
        bad = sum(word in lower for code in ("ja", "zh") for word in language(code).negative)
        denied = sum(word in lower for code in ("ja", "zh") for word in language(code).negation)
        if denied and good:
            return -1
        if denied and not bad:
            return -1
        return (good > 0) - (bad > 0)
    words = re.findall(r"[^\W_]+(?:['\u2019-][^\W_]+)*", lower)
    score, denied_at, denied = 0, -10, False
    praised = blamed = False
    for at, word in enumerate(words):
        if word.endswith(("n't", "n\u2019t")) or _is_any(word, "negation"):
            denied_at, denied = at, True
        elif _is_any(word, "positive"):
            praised = True
            score += -1 if at - denied_at <= 4 else 1
        elif _is_any(word, "negative"):
            blamed = True
            score += 0 if at - denied_at <= 4 else -1
    if denied and not praised and not blamed and re.search(UNKNOWN, lower):
        return -1
    return (score > 0) - (score < 0)


UNKNOWN = (
    r"\b(?:know|familiar|aware|information|heard|find|found|record|recommend|suggest|use|buy|"
    r"trust|kenne|finden|empfehlen|connais|trouv|conozco|encontr|conosco|ken|conheço|знаю|أعرف)"
)


def _is_any(word: str, what: str) -> bool:
    return any(word in getattr(language(code), what) for code in codes())


# --- the others ---


def _others(text: str, brand: Brand, prompt: str) -> dict[str, tuple[int, str, int]]:
    """Names of others, in a form that tells them apart: place of the first, spelling, count."""
    asked = {word.lower() for word in re.findall(r"[^\W_]+", prompt)}
    ours = {re.sub(r"\W", "", folded(name)).lower() for name in brand["names"]}
    ours |= {domain.lower() for domain in brand["domains"]}
    found: dict[str, tuple[int, str, int]] = {}

    def name(at: int, spelling: str) -> None:
        spelling = spelling.strip(" .,:;!?*_'\"\u2019").removesuffix("'s").removesuffix("\u2019s")
        key = re.sub(r"[^\w.]", "", folded(spelling)).lower().strip(".")
        words = [word.lower() for word in re.findall(r"[^\W_]+", spelling)]
        if not key or not words or key.replace(".", "") in ours or key in ours or len(spelling) < 2:
            return
        if all(word in common() or word in asked or word.isdigit() for word in words):
            return
        if any(_pattern(own).search(folded(spelling)) for own in brand["names"]):
            return
        before = found.get(key)
        if before is None:
            found[key] = (at, spelling[:80], 1)
        else:
            found[key] = (min(at, before[0]), before[1], before[2] + 1)

    strong = _said_strongly(text)
    for at, spelling in strong:
        if len(re.findall(r"\w+", spelling)) <= 4:
            name(at, spelling)
    starts = _starts(text)
    large = language_of(text) == "de"  # where every noun is written large, one alone is no name
    inner: set[str] = set()
    rest: list[tuple[int, str]] = []
    for match in _NAME.finditer(text):
        at, spelling = match.start(), match.group().rstrip(".'\u2019")
        first, _, more = spelling.partition(" ")
        if at in starts and first.lower() in common() and more:
            at, spelling = at + len(first) + 1, more
        if any(begin <= at < begin + len(said) + 2 for begin, said in strong):
            continue
        if (at in starts or large) and " " not in spelling:
            rest.append((at, spelling))  # any word is large there
            continue
        inner.add(spelling.lower())
        name(at, spelling)
    for at, spelling in rest:
        if spelling.lower() in inner or (spelling[1:] != spelling[1:].lower()):
            name(at, spelling)
    for match in _DOMAIN.finditer(text):
        if not _is_ours(f"http://{match.group()}", brand["domains"]):
            name(match.start(), match.group())
    return found


def _said_strongly(text: str) -> list[tuple[int, str]]:
    """What is bold, or stands at the head of a list's line."""
    found = [(m.start(), (m.group(1) or m.group(2)).strip(" :")) for m in _BOLD.finditer(text)]
    for bullet in _BULLET.finditer(text):
        line = text[bullet.end() : text.find("\n", bullet.end()) % (len(text) + 1)]
        head = _HEAD.match(line)
        spelling = (head.group(1) if head else line).strip(" *_.")
        is_name = spelling[:1].isupper() and len(spelling.split()) <= 4
        if is_name and not any(0 <= at - bullet.end() < 3 for at, _ in found):
            found.append((bullet.end(), spelling))
    return sorted(found)


def _starts(text: str) -> set[int]:
    """Where sentences and lines begin: a large letter says nothing there."""
    places = {0}
    for match in re.finditer("(?:[.!?:…]|\n)[\\s\"'*_(\\u201c\\u2018-]*|^[\\s\\d.)*_#-]+", text):
        places.add(match.end())
    return places


def _counted(others: dict[str, tuple[int, str, int]]) -> tuple[Other, ...]:
    ordered = sorted(others.values(), key=lambda one: (-one[2], one[0]))
    return tuple({"name": name, "count": count} for _, name, count in ordered[:OTHERS_MAX])


def tally(answers: Iterable[Sequence[Other]]) -> list[Other]:
    """Who is named in the most answers."""
    counts: dict[str, tuple[str, int]] = {}
    for others in answers:
        for one in others:
            key = one["name"].lower()
            counts[key] = (counts.get(key, (one["name"], 0))[0], counts.get(key, ("", 0))[1] + 1)
    ordered = sorted(counts.values(), key=lambda one: (-one[1], one[0]))
    return [{"name": name, "count": count} for name, count in ordered]
