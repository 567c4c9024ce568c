"""Makes the pictures of the README from a terminal: `tmux capture-pane -e -p | python render.py`.

Two SVG files, for light and for dark pages; text stays text, and no font is fetched from anywhere.
"""

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

FOLDER = Path(__file__).parent
TITLE = "onceflow demo"
DARK = TerminalTheme(
    (22, 27, 34), (230, 237, 243),
    [(72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255),
     (188, 140, 255), (57, 197, 207), (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65), (121, 192, 255),
     (210, 168, 255), (86, 212, 221), (255, 255, 255)],
)  # fmt: skip
LIGHT = TerminalTheme(
    (250, 251, 252), (31, 35, 40),
    [(87, 96, 106), (190, 30, 45), (17, 99, 41), (125, 78, 0), (9, 105, 218),
     (111, 66, 193), (27, 108, 130), (110, 119, 129)],
    [(140, 149, 159), (164, 14, 38), (26, 127, 55), (99, 60, 1), (33, 139, 255),
     (137, 87, 229), (49, 146, 170), (140, 149, 159)],
)  # fmt: skip
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" \
xmlns="http://www.w3.org/2000/svg" role="img" aria-label="%s in a terminal">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def picture(screen: str, theme: TerminalTheme, name: str) -> str:
    """What was on the screen, as an SVG."""
    texts = Text.from_ansi(screen).split("\n")
    width = max(text.cell_len for text in texts)
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, legacy_windows=False
    )
    for text in texts:
        console.print(text, soft_wrap=True)
    svg = console.export_svg(
        title=TITLE, theme=theme, code_format=FORMAT.replace("%s", TITLE), unique_id=name
    )
    svg = svg.replace('stroke="rgba(255,255,255,0.35)"', 'stroke="#8b949e"')  # seen on any page
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def main() -> None:
    screen = sys.stdin.read().rstrip()
    for name, theme in (("dark", DARK), ("light", LIGHT)):
        (FOLDER / f"demo-{name}.svg").write_text(picture(screen, theme, f"demo-{name}"))


if __name__ == "__main__":
    main()
