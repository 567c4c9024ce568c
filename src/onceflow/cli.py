"""The command line: which commands there are, and what becomes of their errors.

Each command is imported when it is called, so that `onceflow --help` costs little.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import App, CycloptsError, Group, UnknownCommandError

from onceflow import OnceflowError, StoreUnavailable, __version__
from onceflow.commands.output import (
    EPILOGUE,
    INTERRUPTED,
    OK,
    UNREACHABLE,
    USAGE,
    ReaderGone,
    UsageError,
    complain,
    forget,
    prepare_streams,
    remark,
)

WORK = Group("Work", sort_key=1)
LOOK = Group("Look", sort_key=2)
OPERATE = Group("Operate", sort_key=3)
CHECK = Group("Check", sort_key=4)

COMMANDS = {
    WORK: {
        "summarize": ("summarize:summarize", "Read pages, summarize each, write a digest."),
        "analyze": ("analyze:analyze", "Find out how assistants see websites."),
        "ingest": ("ingest:ingest", "Fetch articles, find their texts, write stories when asked."),
        "expand": ("expand:expand", "Load a wiki's articles and follow their links."),
        "run": ("work:run", "Add items to your own pipeline, work on them and follow."),
        "worker": ("work:worker", "Claim and work for a database until stopped."),
        "serve": ("serve:serve", "The HTTP API and the pages, with a worker inside."),
        "demo": ("demo:demo", "A bundled site, offline, with a worker killed on the way."),
    },
    LOOK: {
        "status": ("look:status", "Counts by pipeline, stage and state; workers; failures."),
        "runs": ("look:runs", "The runs, the newest first."),
        "items": ("look:items", "The items, by state, stage, run or error."),
        "show": ("look:show", "One item: where it is, its results and its history."),
        "why": ("look:why", "Why an item does not move, and when it will."),
        "events": ("look:events", "The history, and what is added to it."),
        "watch": ("look:watch", "Live progress of a run, or of everything."),
        "search": ("knowledge:search", "Sections of loaded articles, by meaning."),
        "ask": ("knowledge:ask", "Answers from loaded articles, with citations."),
        "graph": ("knowledge:graph", "The graph of loaded articles, in Cypher or by name."),
        "export": ("export:export", "Items and results as JSON lines, CSV or Parquet."),
    },
    OPERATE: {
        "retry": ("operate:retry", "Open failed items again."),
        "cancel": ("operate:cancel", "Take items out of their pipeline."),
        "release": ("operate:release", "Take leases away from whoever has them."),
        "pause": ("operate:pause", "Claim nothing of a stage, anywhere."),
        "resume": ("operate:resume", "Claim again what was paused."),
        "limit": ("operate:limit", "How many of a stage are worked on at once, over all workers."),
        "move": ("move:move", "Carry a database over, from SQLite to PostgreSQL or back."),
        "prune": ("operate:prune", "Forget the history of items settled long ago."),
    },
    CHECK: {
        "audit": ("check:audit", "Check the invariants on the stored history."),
        "doctor": ("check:doctor", "Is everything well, and what to do if not."),
        "config": ("check:config", "The settings in force and where each comes from."),
        "models": ("models:models", "What can summarize here, and how to get the rest."),
    },
}
"""Every command, by what it is for."""


def make_app(called: str = "") -> App:
    """The whole command line, nothing of it imported yet.

    The command that is called describes itself; the others are known by their line here.
    """
    app = App(
        name="onceflow",
        help="Items through staged pipelines, every item through every stage once.",
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=__version__,
        group_commands=Group("Help", sort_key=9),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for group, commands in COMMANDS.items():
        for order, (name, (place, text)) in enumerate(commands.items()):
            app.command(
                f"onceflow.commands.{place}",
                name=name,
                help=None if name == called else text,
                group=group,
                sort_key=order,
            )
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code says how it went."""
    prepare_streams()
    try:
        words = _as_text(sys.argv[1:]) if arguments is None else list(arguments)
        code = make_app(next(iter(words), ""))(words)
        sys.stdout.flush()
    except (ReaderGone, BrokenPipeError, SystemExit):  # rich exits when nobody reads the help
        forget(sys.stdout)
        return OK
    except UnknownCommandError as error:
        complain(_unknown(error))
        return USAGE
    except CycloptsError as error:
        complain(str(error))
        remark(
            "onceflow: `onceflow --help` lists the commands, `onceflow COMMAND --help` its flags"
        )
        return USAGE
    except StoreUnavailable as error:
        complain(str(error))
        return UNREACHABLE
    except (UsageError, OnceflowError) as error:
        complain(str(error))
        return USAGE
    except OverflowError:
        complain(f"one of these numbers is too large; the largest is {2**63 - 1}")
        return USAGE
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        do = "; free some space, and run the same command again" if full else ""
        complain(
            f"{error.filename or ('the output' if full else 'the system')}: {error.strerror}{do}"
        )
        return UNREACHABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return code if isinstance(code, int) else OK


def _as_text(arguments: Sequence[str]) -> list[str]:
    """Arguments are UTF-8, whatever the locale says."""
    return [os.fsencode(word).decode(errors="surrogateescape") for word in arguments]


def _unknown(error: UnknownCommandError) -> str:
    """Said without importing every command to list it."""
    names = [name for commands in COMMANDS.values() for name in commands]
    word = (error.unused_tokens or [""])[0]
    near = get_close_matches(word, names, n=1)
    meant = f"did you mean `onceflow {near[0]}`?" if near else f"there are {', '.join(names)}"
    return f"there is no command {word!r}; {meant}"
