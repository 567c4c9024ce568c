"""A pipeline's state machine as inline SVG, with how many items are where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceflow.pipelines.html import Html, tag

WIDE, HIGH, GAP, TOP = 188, 62, 40, 12
ENDS = (("done", "done"), ("failed", "failed"), ("cancelled", "cancelled"))
CHARS = 22


def diagram(name: str, stages: Sequence[tuple[str, Mapping[str, str], Mapping[str, int]]]) -> Html:
    """A box for each stage, then the ends."""
    parts: list[Html] = []
    x = 4
    for number, (stage, states, counts) in enumerate(stages):
        if number:
            parts.append(_arrow(x - GAP, TOP + HIGH / 2, x))
        idle = counts["ready"] + counts["waiting"]
        lines = [(states["ready"], idle), (states["active"], counts["active"])]
        parts.append(_box(x, stage, lines, busy=counts["active"] > 0))
        x += WIDE + GAP
    ends = {kind: sum(counts[kind] for _, _, counts in stages) for kind, _ in ENDS}
    last = stages[-1][1] if stages else {}
    parts.append(_arrow(x - GAP, TOP + HIGH / 2, x))
    for at, (kind, look) in enumerate(ENDS):
        label = f"{ends[kind]:,} {last.get(kind, kind)}"
        y = TOP + 14 + at * 22
        shown = f"end {look}" if ends[kind] else "end"
        parts.append(tag("text", _cut(label), x=x + 6, y=y, class_=shown))
    width = x + 150
    said = f"the states of {name}: " + "; ".join(
        f"{stage} {counts['ready'] + counts['waiting']} waiting, {counts['active']} at work"
        for stage, _, counts in stages
    )
    return tag(
        "svg", parts, viewBox=f"0 0 {width} {TOP * 2 + HIGH}", width=width,
        height=TOP * 2 + HIGH, class_="machine", role="img", aria_label=said,
    )  # fmt: skip


def _box(x: int, stage: str, lines: Sequence[tuple[str, int]], *, busy: bool) -> Html:
    look = "box busy" if busy else "box"
    parts = [tag("rect", x=x, y=TOP, width=WIDE, height=HIGH, rx=8, class_=look)]
    parts.append(tag("text", _cut(stage), x=x + 10, y=TOP + 18, class_="stage"))
    for at, (state, count) in enumerate(lines):
        label = _cut(f"{'◐' if at else '○'} {count:,} {state}")
        parts.append(tag("text", label, x=x + 10, y=TOP + 36 + at * 17, class_="count"))
    return tag("g", parts)


def _arrow(x: float, y: float, end: float) -> Html:
    tip, back = end - 4, end - 10
    line = f"M{x + 4:g} {y:g}H{tip:g}"
    head = f"M{back:g} {y - 5:g}L{tip:g} {y:g}L{back:g} {y + 5:g}"
    return tag("path", d=line + head, class_="arrow")


def _cut(text: str) -> str:
    return text if len(text) <= CHARS else f"{text[: CHARS - 1]}…"
