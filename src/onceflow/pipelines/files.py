"""Results as files: those of each item, named by its id, and those of a run.

They are a projection of the database, made by following its events with the public API: whatever
is missing, damaged or out of date is written again from what was committed, to the same bytes.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from onceflow import Flow, Item, OnceflowError, Run
from onceflow.core.errors import SettingsError, UnknownItem
from onceflow.core.item import Phase
from onceflow.pipelines.folder import Folder

FOLLOW_SECONDS = 0.25
"""How often the files catch up with what was committed and streamed."""
BATCH = 32
PAGE = 500
CLAIM_SECONDS = 0.02
HELD_SECONDS = 5.0
"""How long the end waits for files that another process is writing."""
OWED_MAX = 10_000
"""Files that could not be written yet; if there are more, all are looked at again."""
IDENTITY = ".onceflow.json"
DIGEST_LOCK, IDENTITY_LOCK = 0, 1 << 62
"""Locks by number: an item's is its id, which is at least 1."""
ITEM_FILE = re.compile(r"([1-9][0-9]{0,18})\.[a-z]{1,5}")
KINDS = ("claimed", "stage_finished", "retried", "failed", "reclaimed", "released", "reopened",
         "cancelled")  # fmt: skip


class Layout(Protocol):
    """Which files there are, and what they hold: functions of what is committed (and streamed)."""

    pipeline: str
    noun: str
    """What the folder has, in messages."""
    kinds: tuple[str, ...]
    """Kinds of its own with which an item changes."""
    streams: str | None
    """The stage whose text in progress is in the files."""

    def has_files(self, item: Item) -> bool:
        """Whether there is something to say about an item."""

    async def files(self, flow: Flow, item: Item) -> dict[str, bytes]:
        """The files of one item, each named by its id."""

    async def run_files(self, flow: Flow, run: Run, gate: Item) -> dict[str, bytes]:
        """The files of a run whose gate has finished."""

    def first(self, folder: Path) -> Path:
        """Where to look first."""


class Files:
    """Keeps the files of one run (or of every item) equal to the database.

    `warn` is told once when files cannot be written, and again when they can.
    """

    def __init__(
        self,
        flow: Flow,
        path: Path,
        layout: Layout,
        *,
        run: str | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._flow = flow
        self._layout = layout
        self._pipeline = layout.pipeline
        self.folder = Folder(path)
        self._run = run
        self._warn = warn
        self._seen = 0
        self._streaming: dict[int, str] = {}
        self._owed: dict[int, None] = {}
        self._owes_all = False
        self._error: OSError | None = None
        self.written = 0

    async def begin(self) -> None:
        """From here on the files follow. Refuses a folder that has another database's files."""
        self.folder.open()
        self._seen = (await self._flow.store.read("last_event"))[0]["seq"]
        await self._claim_folder()
        await asyncio.to_thread(self._clean)

    def close(self) -> None:
        self.folder.close()

    async def __aenter__(self) -> Files:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # --- following ---

    async def follow(self, over: asyncio.Event, added: asyncio.Event | None = None) -> None:
        """Write what is committed and streamed, until `over`; then catch up once more. After
        `added`, what was there already is looked at too."""
        checked = False
        while True:
            last = over.is_set()
            try:
                if not checked and (added is None or added.is_set()):
                    await self.check()
                    checked = True
                await self.catch_up()
                await self._stream()
            except OnceflowError as error:
                if last:
                    raise
                self._warn(f"the files wait for the database: {error}")
            if last:
                break
            try:
                async with asyncio.timeout(FOLLOW_SECONDS):
                    await over.wait()
            except TimeoutError:
                continue
        until = asyncio.get_running_loop().time() + HELD_SECONDS
        while self.owing and self._error is None and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.05)
            await self._settle_debts()

    async def catch_up(self) -> None:
        """Write the files of all items that changed since the last time."""
        batch: dict[int, None] = {}
        async for event in self._flow.events(
            after=self._seen, pipeline=self._pipeline, kinds=(*KINDS, *self._layout.kinds)
        ):
            self._seen = event.seq
            if event.item is None:
                continue
            if event.key is not None and event.key.startswith("gate:"):
                batch[DIGEST_LOCK] = None
            elif event.kind != "claimed":
                batch[event.item] = None
                self._streaming.pop(event.item, None)
            elif event.stage is not None and event.stage == self._layout.streams:
                self._streaming[event.item] = ""
            if len(batch) >= BATCH:
                await self._put(batch)
                batch = {}
        await self._put(batch)
        await self._settle_debts()

    async def check(self) -> None:
        """Look at every file of what is committed; what is missing or differs is written again."""
        after = 0
        while page := await self._flow.items(
            self._pipeline, run=self._run, after=after, limit=PAGE
        ):
            after = page[-1].id
            due = [item.id for item in page if self._layout.has_files(item)]
            for at in range(0, len(due), BATCH):
                await self._put(due[at : at + BATCH])
        await self._put([DIGEST_LOCK])

    async def _stream(self) -> None:
        """What is being summarized right now, in whichever process."""
        changed: list[int] = []
        for item, before in list(self._streaming.items()):
            partial = await self._flow.partial(item)
            if partial is not None and partial[1] != before:
                self._streaming[item] = partial[1]
                changed.append(item)
        for at in range(0, len(changed), BATCH):
            await self._put(changed[at : at + BATCH])

    async def _settle_debts(self) -> None:
        """Try again what could not be written."""
        owed, self._owed = list(self._owed), {}
        owes_all, self._owes_all = self._owes_all, False
        if owes_all:
            await self.check()
        else:
            for at in range(0, len(owed), BATCH):
                await self._put(owed[at : at + BATCH])
        if self._error is not None and not self.owing:
            self._error = None
            self._warn("the files can be written again")

    @property
    def owing(self) -> str | None:
        """Why some files are not as they should be; None if all are."""
        if not self._owed and not self._owes_all:
            return None
        count = len(self._owed)
        what = "many files" if self._owes_all else f"{count} file{'s' if count > 1 else ''}"
        why = "another process holds them" if self._error is None else self._error.strerror
        free = "; free some space there" if self._is_full else ""
        return f"{what} in {self.folder.path} could not be written: {why}{free}"

    @property
    def _is_full(self) -> bool:
        return self._error is not None and self._error.errno in (errno.ENOSPC, errno.EDQUOT)

    def report(self) -> tuple[str, str | None]:
        """Where to look first, and why some of it is not there."""
        first = self._layout.first(self.folder.path)
        return str(first if first.exists() else self.folder.path), self.owing

    # --- writing ---

    async def _put(self, numbers: Iterable[int]) -> None:
        """Bring these items' files up to date, as far as nobody else is doing so."""
        wanted = list(numbers)
        if not wanted:
            return
        with self.folder.holding(wanted) as got:
            self._owe(number for number in wanted if number not in got)
            files: dict[str, bytes] = {}
            for number in got:
                files |= await (self._digest() if number == DIGEST_LOCK else self._item(number))
            failed = await asyncio.to_thread(self.folder.put, files)
        self.written += len(files) - len(failed)
        for name, error in failed.items():
            match = ITEM_FILE.fullmatch(name)
            self._owe([int(match[1]) if match else DIGEST_LOCK])
            if self._error is None:
                self._error = error
                self._warn(
                    f"{self.folder.path / name} cannot be written: {error.strerror}; "
                    f"{'free some space: ' if self._is_full else ''}the work goes on, and the "
                    "files follow as soon as they can"
                )

    def _owe(self, numbers: Iterable[int]) -> None:
        self._owed |= dict.fromkeys(numbers)
        if len(self._owed) > OWED_MAX:
            self._owed, self._owes_all = {}, True

    async def _item(self, number: int) -> dict[str, bytes]:
        """The files of one item, if it is one of ours and there is something to say."""
        page = await self._flow.items(self._pipeline, run=self._run, after=number - 1, limit=1)
        if not page or page[0].id != number:
            self._streaming.pop(number, None)  # of another run
            return {}
        if not self._layout.has_files(page[0]):
            return {}
        return await self._layout.files(self._flow, page[0])

    async def _digest(self) -> dict[str, bytes]:
        run = await self._digested()
        if run is None or run.gate_item is None:
            return {}
        item = await self._flow.item(None, run.gate_item)
        if item.phase is not Phase.DONE:
            return {}
        return await self._layout.run_files(self._flow, run, item)

    async def _digested(self) -> Run | None:
        """The run whose digest is kept here: the one that is followed, else the newest."""
        if self._run is not None:
            return await self._flow.run(self._run)
        for run in await self._flow.runs(self._pipeline):
            if run.gate_item is not None and run.finished_at is not None:
                return run
        return None

    # --- the folder ---

    async def _claim_folder(self) -> None:
        """Two databases number their items alike: one folder is for one of them."""
        tries = 0
        while not await self._is_ours():
            tries += 1
            if tries * CLAIM_SECONDS > HELD_SECONDS:
                raise SettingsError(f"{self.folder.path}: another process does not let go of it")
            await asyncio.sleep(CLAIM_SECONDS)

    async def _is_ours(self) -> bool:
        """Whether the folder says that it is ours, by an item that is in no other database; it is
        told so if it says nothing. False while another process is telling it."""
        witness = _witness(self.folder.read(IDENTITY))
        if witness is not None:
            if await self._knows(witness):
                return True
            raise SettingsError(
                f"{self.folder.path} has the {self._layout.noun} of another database; name another "
                "folder with --out"
            )
        first = await self._flow.items(self._pipeline, limit=1)
        if not first:
            return True
        body = as_bytes(
            {
                "about": f"these are the {self._layout.noun} of the database with this item",
                "item": first[0].id,
                "key": first[0].key,
                "added": first[0].created_at,
            }
        )
        with self.folder.holding([IDENTITY_LOCK]) as got:
            if not got:
                return False
            failed = await asyncio.to_thread(self.folder.put, {IDENTITY: body})
        for error in failed.values():
            raise SettingsError(
                f"nothing can be written to {self.folder.path}: {error.strerror}; free some space "
                "or name another folder with --out"
            )
        return True

    async def _knows(self, witness: tuple[int, str, int]) -> bool:
        try:
            item = await self._flow.item(None, witness[0])
        except UnknownItem:
            return False
        return (item.id, item.key, item.created_at) == witness

    def _clean(self) -> None:
        """Take away what killed processes left; what somebody writes just now is locked."""
        for name in self.folder.left_behind():
            match = ITEM_FILE.fullmatch(name)
            number = int(match[1]) if match else DIGEST_LOCK
            number = IDENTITY_LOCK if name == IDENTITY else number
            with self.folder.holding([number]) as got:
                if got:
                    self.folder.forget(name)


def _witness(there: bytes | None) -> tuple[int, str, int] | None:
    """The item that a folder was told of; None if it says nothing, or nothing sensible."""
    try:
        found = json.loads(there or b"")
        return int(found["item"]), str(found["key"]), int(found["added"])
    except (ValueError, KeyError, TypeError):
        return None


def moment(ms: int | None) -> str | None:
    """A time of the database, for people and programs."""
    if ms is None:
        return None
    whole, part = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{part:03d}Z"


def as_bytes(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:  # lone surrogates: as escapes they are kept
        return f"{json.dumps(value, indent=2)}\n".encode()
