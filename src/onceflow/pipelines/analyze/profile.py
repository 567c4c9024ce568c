"""The profile of a site, by rules and statistics over the pages that were read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from onceflow.clients.sentences import sentences
from onceflow.pipelines.analyze.languages import FALLBACK, generic, language
from onceflow.pipelines.analyze.read import ReadPage, Site, same_site, types_of
from onceflow.pipelines.analyze.shapes import Contacts, Freshness, Info, Passage, SitePage
from onceflow.pipelines.analyze.words import Phrases, count_words, fold, language_of, words_of

TOPICS_MAX = 20
OFFERS_MAX = 12
AUDIENCE_MAX = 6
PASSAGES_MAX = 600
PASSAGES_PER_PAGE = 60
PASSAGE_CHARS = 500
PASSAGE_CHARS_LEAST = 60
FIELD_CHARS_MAX = 300
LIST_MAX = 20
HOME_SHARE = 0.2

_SEPARATOR = re.compile(
    "(?:\\s+[|·•\u2013\u2014:»«-]\\s+|\\s*[|·•»]\\s*|:\\s+)(?![^()]*\\))"  # not within brackets
)
_BRACKETED = re.compile(r"\s\(([^()]+)\)$")
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}")
_PHONE = re.compile(r"(?<![\w.+/-])\+\d[\d ()/.-]{6,18}\d(?![\w])")
_NETWORKS = {
    "facebook.com": "facebook", "instagram.com": "instagram", "twitter.com": "x", "x.com": "x",
    "linkedin.com": "linkedin", "youtube.com": "youtube", "tiktok.com": "tiktok",
    "github.com": "github", "gitlab.com": "gitlab", "pinterest.com": "pinterest",
    "mastodon.social": "mastodon", "bsky.app": "bluesky", "t.me": "telegram", "vk.com": "vk",
    "xing.com": "xing", "discord.gg": "discord", "discord.com": "discord", "reddit.com": "reddit",
    "weibo.com": "weibo", "threads.net": "threads", "medium.com": "medium",
}  # fmt: skip
_NO_PROFILE = r"share|intent|home\b|search|hashtag|watch|status|login|plugins"
_TECHNOLOGIES = {
    "WordPress": r"wp-content|wp-includes|wordpress", "WooCommerce": r"woocommerce",
    "Shopify": r"cdn\.shopify|shopify", "Drupal": r"drupal", "Joomla": r"joomla",
    "TYPO3": r"typo3", "Wix": r"wixstatic|wix\.com", "Squarespace": r"squarespace",
    "Webflow": r"webflow", "Ghost": r"\bghost\b", "Hugo": r"\bhugo\b", "Jekyll": r"jekyll",
    "Docusaurus": r"docusaurus", "Sphinx": r"sphinx|searchtools\.js", "MkDocs": r"mkdocs",
    "DocBook XSL": r"docbook", "Publican": r"publican|common_content",
    "Next.js": r"/_next/|next\.js",
    "Nuxt": r"/_nuxt/", "Gatsby": r"gatsby", "React": r"\breact(?:\.|-dom)",
    "Vue": r"\bvue(?:\.|@)",
    "Angular": r"angular", "jQuery": r"jquery", "Bootstrap": r"bootstrap", "Tailwind": r"tailwind",
    "Google Tag Manager": r"googletagmanager|gtag/js", "Matomo": r"matomo|piwik",
    "Plausible": r"plausible", "HubSpot": r"hs-scripts|hubspot", "PHP": r"\bphp/",
    "nginx": r"nginx",
    "Apache": r"apache", "Cloudflare": r"cloudflare", "Fossil": r"fossil", "Magento": r"magento",
    "PrestaShop": r"prestashop",
}  # fmt: skip
_COUNTRIES = {
    "de": "DE", "at": "AT", "ch": "CH", "fr": "FR", "it": "IT", "es": "ES", "pt": "PT", "nl": "NL",
    "be": "BE", "uk": "GB", "ie": "IE", "dk": "DK", "se": "SE", "no": "NO", "fi": "FI", "pl": "PL",
    "cz": "CZ", "jp": "JP", "cn": "CN", "kr": "KR", "in": "IN", "au": "AU", "nz": "NZ", "ca": "CA",
    "us": "US", "br": "BR", "mx": "MX", "ar": "AR", "ru": "RU", "ua": "UA", "tr": "TR", "gr": "GR",
    "sa": "SA", "ae": "AE", "eg": "EG", "il": "IL", "za": "ZA", "ro": "RO", "hu": "HU", "sk": "SK",
}  # fmt: skip
_DIALLED = {
    "+49": "DE", "+43": "AT", "+41": "CH", "+33": "FR", "+39": "IT", "+34": "ES", "+351": "PT",
    "+31": "NL", "+32": "BE", "+44": "GB", "+353": "IE", "+45": "DK", "+46": "SE", "+47": "NO",
    "+358": "FI", "+48": "PL", "+420": "CZ", "+81": "JP", "+86": "CN", "+82": "KR", "+91": "IN",
    "+61": "AU", "+55": "BR", "+7": "RU", "+1": "US", "+966": "SA", "+971": "AE", "+20": "EG",
}  # fmt: skip
_SELLING = re.compile(
    r"add to (?:cart|basket)|in den warenkorb|ajouter au panier|añadir al carrito|buy now|order now"
    r"|free shipping|versandkosten|[€£$]\s?\d|\d\s?(?:€|eur\b|usd\b)",
    re.IGNORECASE,
)


def profile(site: Site) -> Info:
    """What the pages say about the site."""
    pages = site.pages
    home = pages[0]
    languages = _languages(pages)
    main = languages[0]["code"] if languages else "en"
    name = _name(site)
    contacts, phones = _contacts(pages)
    topics = _topics(pages, [one["code"] for one in languages] or [main], name, site.url)
    structured = Counter(kind for page in pages for kind in types_of(page.about))
    listed: list[SitePage] = [
        {
            "url": page.url,
            "title": _without_name(page.title, name)[:FIELD_CHARS_MAX] or page.url,
            "kind": page.kind,
            "language": language_of(page.text, page.language) or None,
            "words": count_words(page.text),
            "date": date_of(page.date),
        }
        for page in pages
    ]
    metas: Mapping[str, str] = home.about.get("metas", {})
    return {
        "name": name,
        "tagline": _tagline(home, name),
        "offers": _offers(pages, name, [topic["topic"] for topic in topics]),
        "audience": _audience(pages, main),
        "topics": topics,
        "languages": languages,
        "countries": _countries(site, phones),
        "contacts": contacts,
        "social": _social(pages, site.url),
        "technologies": _technologies(pages),
        "structuredData": {
            "types": [{"type": kind, "count": n} for kind, n in structured.most_common(LIST_MAX)],
            "openGraph": {
                key.removeprefix("og:"): value[:FIELD_CHARS_MAX]
                for key, value in metas.items()
                if key.startswith("og:")
            },
        },
        "freshness": _freshness(pages, site.dates),
        "pages": listed,
    }


def sells(info: Info) -> bool:
    """Whether a visitor can buy something there."""
    kinds = {page["kind"] for page in info["pages"]}
    types = {one["type"] for one in info["structuredData"]["types"]}
    return bool(kinds & {"pricing"} or types & {"Product", "Offer", "Service", "AggregateOffer"})


def says_prices(site: Site) -> bool:
    return sum(bool(_SELLING.search(page.text)) for page in site.pages) * 3 >= len(site.pages)


def passages(site: Site) -> list[Passage]:
    """The pages' texts in pieces that can answer a question, evenly from all of them."""
    found: list[list[Passage]] = []
    for number, page in enumerate(site.pages):
        of_page: list[Passage] = []
        piece = ""
        for sentence in sentences(page.text, count_max=2000):
            if piece and len(piece) + len(sentence) + 1 > PASSAGE_CHARS:
                of_page.append({"page": number, "text": piece})
                piece = ""
            piece = f"{piece} {sentence}".strip()[: 2 * PASSAGE_CHARS]
            if len(of_page) >= PASSAGES_PER_PAGE:
                break
        if piece and len(of_page) < PASSAGES_PER_PAGE:
            of_page.append({"page": number, "text": piece})
        found.append([one for one in of_page if len(one["text"]) >= PASSAGE_CHARS_LEAST] or of_page)
    share = max(4, PASSAGES_MAX // max(1, len(found)))
    return [one for of_page in found for one in of_page[:share]][:PASSAGES_MAX]


def notes(site: Site) -> list[str]:
    """What a person should know before reading the rest."""
    home = site.pages[0]
    said = list(site.notes)
    elsewhere = Counter(
        urlsplit(named).hostname
        for page in site.pages
        if (named := str(page.about.get("canonical") or "")).startswith(("http://", "https://"))
        and not same_site(named, site.url)
    )
    if elsewhere and elsewhere.total() * 2 >= len(site.pages):
        other = elsewhere.most_common(1)[0][0]
        said.append(
            f"its pages call themselves copies: they name {other} as the original (rel=canonical), "
            "and assistants will name that site rather than this one"
        )
    if len(site.pages) == 1:
        said.append("only one page could be read: all that follows rests on it")
    robots = home.about.get("metas", {}).get("robots", "").lower()
    if "noindex" in robots:
        said.append("the home page asks not to be listed (robots: noindex)")
    if count_words(home.text) < 30:
        said.append("the home page has hardly any text that a program can read")
    return said


# --- the parts ---


def _name(site: Site) -> str:
    """What most says its name: the pages' own field, JSON-LD, what all titles share, the host."""
    votes: Counter[str] = Counter()
    for page in site.pages:
        named = page.about.get("metas", {})
        for text, weight in (
            (named.get("og:site_name", ""), 3),
            (named.get("application-name", ""), 2),
        ):
            if text:
                votes[_line(text, 80)] += weight
        for thing in page.about.get("things", ()):
            kinds = thing.get("@type", "")
            if isinstance(thing.get("name"), str) and re.search(
                r"Organization|WebSite|LocalBusiness|Corporation|Store|NewsMedia", str(kinds)
            ):
                votes[_line(thing["name"], 80)] += 3
        pieces = [piece for piece in _SEPARATOR.split(page.title) if piece]
        if len(pieces) > 1:
            votes[_line(pieces[-1], 80)] += 2
            votes[_line(pieces[0], 80)] += 1
        if bracketed := _BRACKETED.search(page.title):  # "Closures (The manual of this)"
            votes[_line(bracketed[1], 80)] += 1
    label = _label(site.url)
    for text in votes:
        letters = re.sub(r"\W", "", text).lower()
        if label and letters and (letters == label or letters in label or label in letters):
            votes[text] += 3
    whole = _SEPARATOR.split(site.pages[0].title)[0].strip()
    if whole and len(words_of(whole)) <= 4:
        votes[_line(whole, 80)] += 2
    shared = Counter(
        word for page in site.pages for word in set(words_of(page.title)) if word[:1].isupper()
    )
    for word, count in shared.items():
        if len(site.pages) > 3 and count * 2 > len(site.pages) and word.lower() not in generic():
            votes[word] += 3
    votes = _bare(votes)
    best = votes.most_common(1)
    if best and best[0][1] >= 3:
        return best[0][0]
    if whole and len(words_of(whole)) <= 6:
        return _line(whole, 80)
    return label.title() if label and not label.isdigit() else urlsplit(site.url).netloc


def _bare(votes: Counter[str]) -> Counter[str]:
    """Names without what every home page is called."""
    bare: Counter[str] = Counter()
    for text, count in votes.items():
        name = re.sub(
            r"^(?:welcome to|home(?: ?page)? of)\s+|\s+(?:home ?page|web ?site|home)$", "", text,
            flags=re.IGNORECASE,
        )  # fmt: skip
        name = re.sub(r"\s+(?:documentation|docs|manual|wiki)$", "", name, flags=re.IGNORECASE)
        name = re.sub(r"[\s,]+v?\d+(?:\.\d+)+\S*$", "", name)
        if name.lower() not in generic():
            bare[name] += count
    return bare


def _label(url: str) -> str:
    """The part of a host's name that somebody chose: `alderbikes` of `www.alderbikes.co.uk`."""
    host = urlsplit(url).hostname or ""
    if re.fullmatch(r"[\d.]+|.*:.*", host):
        return ""
    labels = [one for one in host.removeprefix("www.").split(".") if one]
    if len(labels) > 2 and len(labels[-2]) <= 3:
        return labels[-3]
    return labels[-2] if len(labels) > 1 else (labels[0] if labels else "")


def _pieces(title: str) -> list[str]:
    return [one.strip() for one in _SEPARATOR.split(title) if one and one.strip()]


def _without_name(title: str, name: str) -> str:
    pieces = _pieces(title.removesuffix(f" ({name})"))
    kept = [one for one in pieces if one.lower() != name.lower()]
    return kept[0] if len(kept) == 1 else ": ".join(kept) if kept else title


def _tagline(home: ReadPage, name: str) -> str:
    metas = home.about.get("metas", {})
    for text in (home.description, metas.get("og:description", "")):
        if len(text) > 10 and (len(words_of(text)) > 2 or not text.isascii()):
            return _line(text, FIELD_CHARS_MAX)
    rest = _without_name(home.title, name)
    if len(words_of(rest)) > 2 and rest != " ".join(home.title.split()):
        return _line(rest, FIELD_CHARS_MAX)
    said = [one for one in sentences(home.text, count_max=50) if len(one) > 20]
    whole = [one for one in said if one[-1] in ".!?。！？"]  # noqa: RUF001 - their ends
    return _line((whole or said or [""])[0], FIELD_CHARS_MAX)


def _topics(pages: Sequence[ReadPage], codes: Sequence[str], name: str, url: str) -> list[Any]:
    code = codes[0]
    phrases = Phrases(code, without=[name, _label(url)], others=codes[1:])
    # Menus and headings that come back on every page belong to the frame.
    frame = Counter(
        text for page in pages for text in {text for _, text in page.about.get("headings", ())}
    )
    pieces = Counter(piece for page in pages for piece in set(_pieces(page.title)))
    frames = ("home", "listing") if len(pages) > 3 else ()  # they only repeat what others say
    for number, page in enumerate(pages):
        if page.kind == "legal":
            continue
        if page.language and language_of(page.text, page.language) not in (code, ""):
            continue
        own = [one for one in _pieces(page.title) if pieces[one] * 2 <= len(pages)]
        phrases.add(" | ".join(own) if len(pages) > 3 else page.title, number, 5.0)
        for level, text in page.about.get("headings", ())[:40]:
            if frame[text] * 3 <= len(pages) or len(pages) < 3:
                phrases.add(text, number, (4.0, 2.0, 1.0)[level - 1])
        phrases.add(page.description, number, 2.0)
        phrases.add(page.text, number, 0.6, body=page.kind not in frames)
        phrases.add(_slug(page.url), number, 5.0, spelt=False)
    if len(pages) > 1:
        for _, text in pages[0].about.get("menu", ())[:30]:
            phrases.add(text, 0, 2.0)
    return [{"topic": one.text, "weight": one.weight} for one in phrases.best(TOPICS_MAX)]


def _slug(url: str) -> str:
    """The words of a page's address: what its author called it in private."""
    last = urlsplit(url).path.rstrip("/").rpartition("/")[2]
    return re.sub(r"[-_.+]|%20", " ", re.sub(r"\.\w{2,5}$", "", last))


def _offers(pages: Sequence[ReadPage], name: str, topics: Sequence[str]) -> list[str]:
    found: dict[str, str] = {}

    def offer(text: str) -> None:
        text = _line(text, 60)
        few = 0 < len(words_of(text)) <= 6
        if few and text.lower() != name.lower() and not re.search(r"[.!?]$", text):
            found.setdefault(" ".join(fold(word) for word in words_of(text)), text)

    for page in pages:
        for thing in page.about.get("things", ()):
            if re.search(
                r"Product|Service|SoftwareApplication|Course|Offer", str(thing.get("@type"))
            ):
                offer(str(thing.get("name") or ""))
    for page in pages:
        if page.kind == "product":
            offer(_without_name(page.title, name))
    for page in pages:
        if page.kind in ("product", "pricing"):
            for level, text in page.about.get("headings", ())[:12]:
                if level == 2:
                    offer(text)
    offers = list(found.values())[:OFFERS_MAX]
    return offers or [topic for topic in topics[:8] if " " in topic][:3] or list(topics[:3])


def _audience(pages: Sequence[ReadPage], code: str) -> list[str]:
    """Those whom the pages name as their readers or customers."""
    counts: Counter[str] = Counter()
    text = "\n".join(page.text[:20_000] for page in pages)
    known = language(code)
    for word in known.audience or language(FALLBACK).audience:
        if code in ("ja", "zh"):
            n = text.count(word)
        else:
            n = len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))
        if n:
            counts[word] = n
    if known.audience_after:
        after = rf"\b{known.audience_after} "
        for word in list(counts):
            counts[word] += 3 * len(re.findall(after + re.escape(word), text, re.IGNORECASE))
    least = 2 if len(pages) > 1 else 1
    return [word for word, n in counts.most_common(AUDIENCE_MAX) if n >= least]


def _languages(pages: Sequence[ReadPage]) -> list[Any]:
    counts: Counter[str] = Counter()
    for page in pages:
        if code := language_of(page.text or page.title, page.language):
            counts[code] += max(1, count_words(page.text))
    total = counts.total() or 1
    found = [
        {"code": code, "share": round(n / total, 3)}
        for code, n in counts.most_common(LIST_MAX)
        if n * 100 >= total
    ]
    # Who comes to a site comes to its home page: its language is the site's, if there is enough.
    home = language_of(pages[0].text, pages[0].language)
    return sorted(found, key=lambda one: one["code"] != home or one["share"] < HOME_SHARE)


def _countries(site: Site, phones: Iterable[str]) -> list[str]:
    votes: Counter[str] = Counter()
    ending = (urlsplit(site.url).hostname or "").rpartition(".")[2]
    if ending in _COUNTRIES:
        votes[_COUNTRIES[ending]] += 3
    for phone in phones:
        dialled = re.sub(r"[^\d+]", "", phone)
        for size in (4, 3, 2):
            if country := _DIALLED.get(dialled[:size]):
                votes[country] += 2
                break
    for page in site.pages:
        _, _, region = page.language.replace("_", "-").partition("-")
        if len(region) == 2 and region.isalpha():
            votes[region.upper()] += 1
        for thing in page.about.get("things", ()):
            country = thing.get("addressCountry")
            if isinstance(country, str) and len(country) == 2:
                votes[country.upper()] += 3
    return [country for country, _ in votes.most_common(5)]


def _contacts(pages: Sequence[ReadPage]) -> tuple[Contacts, list[str]]:
    emails: dict[str, None] = {}
    phones: dict[str, None] = {}
    addresses: dict[str, None] = {}
    for page in pages:
        for thing in page.about.get("things", ()):
            for one in _texts(thing.get("email")):
                emails[one.removeprefix("mailto:").lower()] = None
            for one in _texts(thing.get("telephone")):
                phones[_line(one, 40)] = None
            if thing.get("@type") == "PostalAddress":
                parts = [
                    str(thing[key])
                    for key in ("streetAddress", "postalCode", "addressLocality", "addressCountry")
                    if isinstance(thing.get(key), str)
                ]
                if parts:
                    addresses[_line(", ".join(parts), 200)] = None
        if page.kind in ("contact", "about", "home", "legal", "help"):
            emails |= dict.fromkeys(one.lower() for one in _EMAIL.findall(page.text)[:10])
            phones |= dict.fromkeys(_line(one, 40) for one in _PHONE.findall(page.text)[:10])
    contacts: Contacts = {
        "emails": list(emails)[:LIST_MAX],
        "phones": list(phones)[:LIST_MAX],
        "addresses": list(addresses)[:LIST_MAX],
    }
    return contacts, list(phones)


def _social(pages: Sequence[ReadPage], url: str) -> list[Any]:
    found: dict[str, str] = {}
    for page in pages:
        same = [
            one for thing in page.about.get("things", ()) for one in _texts(thing.get("sameAs"))
        ]
        for link in [*same, *page.links]:
            parts = urlsplit(link)
            host = (parts.hostname or "").removeprefix("www.").removeprefix("m.")
            network = _NETWORKS.get(host)
            path = parts.path.strip("/")
            if not network or not path or path.count("/") > 1 or re.match(_NO_PROFILE, path):
                continue
            if link in same or network not in found.values():
                found.setdefault(link, network)
    return [{"network": network, "url": link} for link, network in list(found.items())[:LIST_MAX]]


def _technologies(pages: Sequence[ReadPage]) -> list[str]:
    seen: list[str] = []
    for page in pages:
        seen += [str(one) for one in page.about.get("sources", ())]
        seen.append(page.about.get("metas", {}).get("generator", ""))
        seen += list(page.headers.values())
    text = "\n".join(seen).lower()
    return [name for name, mark in _TECHNOLOGIES.items() if re.search(mark, text)]


def _freshness(pages: Sequence[ReadPage], more: Iterable[str]) -> Freshness:
    of_pages = [date for page in pages if (date := date_of(page.date))]
    dates = sorted([*of_pages, *(date for one in more if (date := date_of(one)))])
    return {
        "newest": dates[-1] if dates else None,
        "oldest": dates[0] if dates else None,
        "dated": len(of_pages),
    }


def date_of(text: str) -> str | None:
    """A date as YYYY-MM-DD, if it is one and not absurd."""
    text = text.strip()[:40]
    if not text:
        return None
    found: datetime | None = None
    if match := re.match(r"(\d{4})-(\d{2})-(\d{2})", text):
        try:
            found = datetime(int(match[1]), int(match[2]), int(match[3]), tzinfo=UTC)
        except ValueError:
            return None
    elif text[:1].isalpha():
        try:
            found = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError):
            return None
    if found is None or not 1990 <= found.year <= 2100:
        return None
    return f"{found:%Y-%m-%d}"


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, str) and one]


def _line(text: str, most: int) -> str:
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    return text[: most - 1].rsplit(" ", 1)[0] + "…"
