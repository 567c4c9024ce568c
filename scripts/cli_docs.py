"""Writes docs/cli.md, the help of every command, as it is now: `python -m scripts.cli_docs`."""

import io
from pathlib import Path

from rich.console import Console

from onceflow.cli import COMMANDS, make_app

SUBCOMMANDS = {"config": ("show",), "models": ("install",)}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEAD = """# Command line

This page is made by `python -m scripts.cli_docs` from the program itself; a test compares the two.

Data goes to stdout, progress and remarks to stderr. `--json` prints one object, or one a line for
listings (`runs`, `items`, `events`, `config show`) and streams (`events --follow`, `watch`); times
in it are milliseconds since 1970. In a terminal `run` and `watch` show a live board; elsewhere (and
where `CI` is set) they print a plain line every 10 % or 10 s. `NO_COLOR` is honoured.

| exit code | means |
|---|---|
| 0 | all is done |
| 1 | some failed or were refused, some may not be claimed, or `audit` found something |
| 2 | the command, the configuration, the database or the pipeline's file is wrong |
| 3 | the database cannot be reached |
| 130 | interrupted; nothing is lost, the same command goes on |

Flags come before `ONCEFLOW_…` in the environment, which comes before `onceflow.toml`:

```toml
db = "onceflow.db"

[engine]
scan_seconds = 60
```

`onceflow config show` says what is in force and where it comes from.
"""


def help_of(*words: str) -> str:
    """What `onceflow … --help` prints, plain and at one width."""
    app = make_app(words[0] if words else "")
    app.help_formatter = "plain"
    text = io.StringIO()
    app.help_print(list(words), console=Console(file=text, width=96, color_system=None))
    return "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines())


def page() -> str:
    """The whole page."""
    parts = [HEAD, f"```text\n{help_of()}\n```\n"]
    for commands in COMMANDS.values():
        for name in commands:
            for words in ((name,), *((name, sub) for sub in SUBCOMMANDS.get(name, ()))):
                parts.append(f"## onceflow {' '.join(words)}\n\n```text\n{help_of(*words)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
