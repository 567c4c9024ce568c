"""Pages for a real wiki, with whatever makes titles, links and sections difficult. Seeded."""

from __future__ import annotations

import random

ODD = (
    "AC/DC", "Who? What?", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467 family", "C++",
    "100 % sure", "A&B=C", "O'Neill \"Tip\"", "Σίσυφος", "שלום", "Back\\slash", "..Dots",
    "A/B/../C", "N" + "o" * 200, "Ünïcödé", "Semi;colon", "Plus+minus", "Tilde~", "Star*", "$(x)",
)  # fmt: skip
WORDS = (
    "river bridge market winter council library engine garden harbour music theory planet glass"
    " letter forest signal history island copper teacher weather border kitchen number"
)
HEADINGS = (
    "History", "History", "Early ''life''", "'''Bold''' start", "[[Topic 1|Linked]] words",
    "R&amp;D", "Emoji \U0001f600", "A = B", "Dots… and “quotes”", "<small>Small</small> print",
    "See also", "100 %", "Under_score", "ÄÖÜ", "history", "  Spaces  inside ", "#Hash", "It's",
    "a|b",
)  # fmt: skip


def pages(articles: int = 320, *, seed: int = 6) -> dict[str, str]:
    """Title -> wikitext. `Topic 0` leads to all articles but `Island …`, which nobody links to."""
    chance = random.Random(seed)
    names = [f"Topic {number}" for number in range(articles - len(ODD))] + list(ODD)
    words = WORDS.split()
    made: dict[str, str] = {
        "Template:Disambig": "This page tells articles apart.[[Category:Disambiguation pages]]",
        "Template:Box": "<div>[[Topic 2]] {{{1|}}} [[Category:Boxed]]</div>",
        "Template:Part": "== From a template ==\nWords.",
        "Category:Hidden ones": "__HIDDENCAT__",
        "Category:Waters": "[[Category:Waters]] a category of itself",
        "Mercury (names)": "{{Disambig}}\n* [[Topic 3]]\n* [[Topic 4]]",
        "Bank": "'''Bank''' may be [[Topic 5]]. [[Category:Disambiguation pages]]",
        "Circle one": "#REDIRECT [[Circle two]]",
        "Circle two": "#REDIRECT [[Circle one]]",
        "Circle self": "#REDIRECT [[Circle self]]",
        "Nowhere": "#REDIRECT [[Never written]]",
        "Outside": "#REDIRECT [[Category:Waters]]",
        "Double": "#REDIRECT [[Alias 0]]",
        "Triple": "#REDIRECT [[Double]]",
        "To a part": "#REDIRECT [[Topic 7#History]]",
        "Island one": "Nobody links here. [[Island two]]",
        "Island two": "Nor here. [[Topic 0]]",
    }
    aliases = [f"Alias {number}" for number in range(30)]
    for number, alias in enumerate(aliases):
        made[alias] = f"#REDIRECT [[{names[number * 7 % len(names)]}]]"
    elsewhere = [
        "Mercury (names)", "Bank", "Circle one", "Circle self", "Nowhere", "Outside", "Double",
        "Triple", "To a part", "Never written", "Red link/with slash?", "topic 9", "topic_11",
        "Special:Version", ":Category:Waters", "Help:Contents", "Talk:Topic 1", *aliases,
    ]  # fmt: skip
    for number, name in enumerate(names):
        linked = [names[other] for other in (2 * number + 1, 2 * number + 2) if other < len(names)]
        linked += chance.sample(names, 6) + chance.sample(elsewhere, 3)
        made[name] = _article(name, linked, words, chance)
    return made


def _article(name: str, linked: list[str], words: list[str], chance: random.Random) -> str:
    def sentence() -> str:
        return " ".join(chance.choices(words, k=12)).capitalize() + "."

    links = iter(linked)
    parts = [f"'''{name}''' {sentence()} [[{next(links)}]]<!-- not seen -->"]
    for heading in chance.sample(HEADINGS, chance.randrange(0, 6)):
        marks = "=" * chance.randrange(2, 5)
        parts.append(f"{marks} {heading} {marks}{chance.choice(['', '  ', '<!-- c -->'])}")
        target = next(links, None)
        parts.append(f"{sentence()} [[{target}|words]]" if target else sentence())
    parts += [f"* [[{target}]]" for target in links]
    if chance.random() < 0.2:
        parts.append("{{Box|[[Topic 8]]}}")
    if chance.random() < 0.1:
        parts.append("{{Part}}")
    if chance.random() < 0.2:
        parts.append(
            "{| class='wikitable'\n! a\n|-\n| [[Topic 12]] || b\n|}\n<nowiki>\n== No ==\n</nowiki>"
        )
    parts.append(f"[[Category:Group {chance.randrange(9)}]] [[Category:Waters|sorted]]")
    if chance.random() < 0.5:
        parts.append("[[Category:Hidden ones]]")
    return "\n".join(parts)
