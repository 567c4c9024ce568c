"""`expand`: from seed titles to a graph of a wiki's articles."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from onceflow import Flow
from onceflow.commands.common import Common, Engine, Flag
from onceflow.commands.config import Config, ExpandSettings, LlmSettings
from onceflow.commands.output import UsageError
from onceflow.commands.seeds import source_of
from onceflow.commands.text import many
from onceflow.core.errors import pip_install

if TYPE_CHECKING:
    from onceflow.pipelines.expand import Expand

WORKERS_MAX = 64
NEEDED = {
    "aiohttp": "clients", "mwparserfromhell": "expand", "numpy": "embedded",
    "wordllama": "embedded",
}  # fmt: skip
LOOK = (
    'onceflow search "…"',
    'onceflow ask "…"',
    "onceflow graph distribution",
    "onceflow serve",
)
"""What can be done with articles."""
ARTICLES = Group("Articles", sort_key=80, help="Also in onceflow.toml, see docs/settings.md.")


@Parameter(name="*", group=ARTICLES)
@dataclass(frozen=True, slots=True)
class Subject:
    """Which wiki is read, and what keeps an expansion on its subject."""

    wiki: str | None = None
    """A language of Wikipedia, such as de, or the URL of a wiki's api.php; else en."""
    category: Annotated[list[str] | None, Parameter(negative=())] = None
    """Follow links only from articles in this category (* stands for anything); repeatable."""
    about: str | None = None
    """Follow links only from articles whose text is like this one in meaning."""
    relevance: float | None = None
    """How like, between -1 and 1; else 0.15."""
    connections: int | None = None
    """Requests that one process has under way at once; else 2."""

    @property
    def given(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]


@Parameter(name="*", group=ARTICLES)
@dataclass(frozen=True, slots=True)
class Reach:
    """How the wiki is reached."""

    contact: str | None = None
    """Whom the wiki's operators may write to: required, goes into the User-Agent."""
    allow_network: Annotated[list[str] | None, Parameter(negative=())] = None
    """Addresses that may be read though they are not public, as CIDR; repeatable."""


def expand_job(common: Common, subject: Subject, reach: Reach, *, works: bool = True) -> Expand:
    """The expand pipeline as flags, variables and file want it. Who `works` must be able to."""
    from onceflow.clients import Embedder, Wikipedia
    from onceflow.clients.addresses import networks
    from onceflow.clients.wikipedia import NO_CONTACT
    from onceflow.pipelines.expand import Expand

    config = Config(common.config)
    wish: ExpandSettings = config.made(
        "expand", wiki=subject.wiki, categories=subject.category, about=subject.about,
        relevance=subject.relevance, connections=subject.connections,
    )[0]  # fmt: skip
    if not works:
        return Expand(lease_seconds=wish.lease_seconds)
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        extras = ",".join(dict.fromkeys(NEEDED[name] for name in missing))
        raise UsageError(
            f"reading a wiki needs {', '.join(missing)}: {pip_install(extras)}; nothing was claimed"
        )
    contact = config.place("contact", reach.contact)[0]
    if contact is None or not contact.strip():
        raise UsageError(NO_CONTACT.rstrip())
    fetch = config.made("fetch", allow_networks=reach.allow_network)[0]
    networks(fetch.allow_networks)  # refused here, not at each article
    llm: LlmSettings = config.made("llm")[0]
    return Expand(
        Wikipedia(wish.wiki, contact=contact, settings=fetch, connections=wish.connections),
        Embedder(wish.embed_model, base_url=llm.base_url),
        categories=wish.categories,
        about=wish.about,
        relevance=wish.relevance,
        lease_seconds=wish.lease_seconds,
        at_once=50 * wish.connections,
    )


def expand(
    *titles: Annotated[str, Parameter(allow_leading_hyphen=True)],
    depth: int | None = None,
    max_articles: int | None = None,
    workers: int = 1,
    as_titles: Annotated[bool, Flag] = False,
    follow: Annotated[bool, Flag] = False,
    add_only: Annotated[bool, Flag] = False,
    refresh: Annotated[bool, Flag] = False,
    new_run: Annotated[bool, Flag] = False,
    verbose: Annotated[bool, Flag] = False,
    subject: Subject | None = None,
    reach: Reach | None = None,
    engine: Engine | None = None,
    common: Common | None = None,
) -> int:
    """Load articles of a wiki and follow their links, as a graph to search and ask.

    Each article is loaded once, with its sections, categories and links; then the
    articles it links to, up to --depth steps from the titles that are named and up to
    --max-articles. Run it again to go on where it was stopped; with a larger depth or
    number it goes on from what is there. Ctrl-C once finishes what is under way, twice
    stops at once; nothing is lost either way.

    Parameters
    ----------
    titles
        Titles (or the addresses of their pages), or one file with a title a line
        (# begins a comment), or - for stdin. Without any, whatever is open is worked on.
    depth
        Follow links so many steps; 0 loads only the titles themselves. Else 2.
    max_articles
        Accept at most so many titles, those that links lead to included. Else 500.
    workers
        How many processes work, this one included.
    as_titles
        Take every argument as a title, even one that names a file.
    follow
        Do not work: watch what other workers do.
    add_only
        Only add; workers do the rest.
    refresh
        Look for newer revisions of all articles that are there; load those that changed.
    new_run
        Begin a new run even if these titles were added before.
    verbose
        Log every transition, and the tracebacks of handlers.
    """
    from onceflow.commands.ready import flags_of
    from onceflow.commands.work import Ceilings, Wishes, submit

    common = common or Common()
    subject, reach, engine = subject or Subject(), reach or Reach(), engine or Engine()
    _check_titles(titles, as_titles=as_titles, needed=new_run or add_only)
    if not 1 <= workers <= WORKERS_MAX:
        raise UsageError(f"--workers is {workers}; it must be between 1 and {WORKERS_MAX}")
    if follow and add_only:
        raise UsageError("--follow watches and --add-only does not; choose one")
    settings = engine.settings(common)
    job = expand_job(common, subject, reach, works=not (follow or add_only))
    limits: ExpandSettings = Config(common.config).made(
        "expand", depth=depth, max_articles=max_articles
    )[0]
    pipeline = job.pipeline()
    flow = common.flow(pipeline, settings=settings)
    path = getattr(flow.store, "path", None)
    if not titles and path is not None and not path.exists():
        raise UsageError(
            "name titles, a file with one a line, or - for stdin; without any, what is open in the "
            f"database is worked on, and there is no database {path} yet"
        )
    flags = flags_of(common, subject, reach, engine)
    helper = [sys.executable, "-m", "onceflow", "worker", "expand", "--until-eof", "--quiet"]

    async def again(flow: Flow) -> None:
        if refresh:
            count = await flow.retry(pipeline, state=pipeline.done, from_stage=pipeline.first.name)
            common.out.say(f"{many(count, 'article')} to be compared with the wiki's revisions")

    wishes = Wishes(
        Ceilings(limits.max_articles, limits.depth),
        new_run=new_run,
        add_only=add_only,
        verbose=verbose,
        follow_only=follow,
        check=again,
        flags="".join(f" {shlex.quote(word)}" for word in flags),
        helpers=[[*helper, *flags]] * (workers - 1),
        environment={"ONCEFLOW_DB": common.database()[0]},
        budget="--max-articles",
        look=LOOK,
    )
    with source_of(titles, as_keys=as_titles) as source:
        return submit(pipeline, flow, source, wishes, common)


def _check_titles(titles: tuple[str, ...], *, as_titles: bool, needed: bool) -> None:
    for title in titles:
        if title.startswith("-") and title != "-" and not as_titles:
            raise UsageError(
                f"there is no option {title}; if it is a title, add --as-titles"
            )  # fmt: skip
    if titles and not any(title.strip() for title in titles):
        raise UsageError("the argument is empty; name titles, a file with them, or - for stdin")
    if not titles and needed:
        raise UsageError("name the titles to add, a file with them, or - for stdin")
