"""What every store knows of leases: their names, who has them, their begins, whose fault it was."""

from __future__ import annotations

from onceflow.core.item import Lease, Seed, mark_of
from onceflow.core.pipeline import Stage
from onceflow.core.transition import Done, Failed, Part, Released, decode
from onceflow.store.base import APART_MS, DEATHS_MAX, SWEEP_MAX, Add, Kept
from onceflow.testing.rig import NEWS, MakeStore, Rig, handler, pipeline

SHORT = pipeline("scrape", "summarize", lease_seconds=60)
LIMITED = pipeline(Stage("scrape", handler, limit=3), "summarize")
PATIENT = pipeline("scrape", name="patient", lease_seconds=900)


async def die(rig: Rig, worker: str = "w", *, after_ms: int = APART_MS) -> None:
    """The worker dies, what it had is taken back, and a new one begins when that may be tried."""
    await rig.store.leave(worker)
    await rig.store.sweep()
    rig.clock.advance(after_ms)
    await rig.store.sweep()
    await rig.beat(worker)


async def begin(rig: Rig, *leases: Lease, worker: str = "w") -> list[bool]:
    return list((await rig.exchange([], [], leases, worker=worker)).begun)


class LeaseSuite:
    # --- their names ---

    async def test_a_lease_has_the_number_of_the_exchange_that_gave_it(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            request = Add(NEWS, "r1", [Seed("a"), Seed("b")])
            ticket = 2**62 + 5
            _, [claimed] = await rig.store.add(request, "w", ticket, [rig.wish("scrape", 1)])
            [a] = claimed.leases
            assert (a.key, a.ticket) == ("a", ticket)

            going_on = rig.finishing(a)._replace(claim_next=True)
            reply = await rig.store.exchange("w", ticket + 1, [going_on], [rig.wish("scrape")])

            assert [each.ticket for each in reply.continued] == [ticket + 1]
            assert [each.ticket for each in reply.claimed[0].leases] == [ticket + 1]
            everything = {mark_of(each) for each in (*reply.continued, *reply.claimed[0].leases)}
            assert await rig.store.held("w") == everything
            assert all(await rig.finish([*reply.continued, *reply.claimed[0].leases]))

    async def test_a_lease_that_another_exchange_gave_can_do_nothing(
        self, make_store: MakeStore
    ) -> None:
        """As after a failover that lost its last commits: the same id and fence once more."""
        async with Rig(make_store, NEWS) as rig:
            await rig.add(["a"], max_tokens=100)
            held = await rig.lease("scrape", prefetch=True)
            other = held._replace(ticket=held.ticket + 1000)

            assert await begin(rig, other) == [False]
            assert not await rig.store.renew(other, "its text")
            assert not await rig.store.renew(other, part=Part("one", b"1"))
            for outcome in (Done({}), Failed("no", "no"), Released()):
                reply = await rig.exchange([rig.finishing(other, outcome)])
                assert list(reply.kept) == [Kept.LOST]
            assert not (await rig.go_on([other])).continued

            assert await rig.kinds("a") == ["added", "claimed"]
            assert await rig.store.read("partial", item=held.item) == []
            assert await rig.store.read("parts", item=held.item, stage="scrape") == []
            assert await begin(rig, held) == [True]
            assert await rig.store.renew(held)
            reply = await rig.exchange([rig.finishing(other), rig.finishing(held)])
            assert list(reply.kept)[1] == Kept.KEPT
            assert await rig.place("a") == ("summarize", "ready")

    async def test_what_was_kept_before_was_kept_for_that_key(self, make_store: MakeStore) -> None:
        """After a failover another key can have the id and the fence of a lease."""
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape")
            await rig.finish(lease)

            of_another = rig.finishing(lease._replace(key="b", ticket=lease.ticket + 1000))
            of_nobody = rig.finishing(lease)._replace(lease=lease._replace(pipeline="other"))
            kept = (await rig.exchange([rig.finishing(lease), of_another, of_nobody])).kept

            assert list(kept) == [Kept.BEFORE, Kept.LOST, Kept.LOST]

    async def test_what_was_kept_before_is_known_by_the_old_key_too(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["uk"])
            lease = await rig.lease("scrape")
            finish = rig.finishing(lease, Done({}, key="gb"))
            assert list((await rig.exchange([finish])).kept) == [Kept.KEPT]

            assert list((await rig.exchange([finish])).kept) == [Kept.BEFORE]

    # --- who has them ---

    async def test_a_worker_can_ask_what_it_holds(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            assert await rig.store.held("w") == set()
            await rig.add([Seed("a", {"n": 1}), Seed("b"), Seed("c")])
            long = {"text": "word " * 1000}
            await rig.finish(await rig.lease("scrape"), Done(long))
            b, c = (await rig.claim("scrape", 2)).leases
            a = await rig.lease("summarize")
            await rig.beat("v")
            await rig.finish(b)
            other = await rig.lease("summarize", worker="v")

            assert await rig.store.held("w") == {mark_of(a), mark_of(c)}
            assert await rig.store.held("v") == {mark_of(other)}
            found = await rig.store.leases("w", [a.item, b.item, c.item, 999])
            assert sorted(found) == sorted([a, c])
            assert decode(next(each for each in found if each.key == "a").data) == long
            assert await rig.store.leases("w", {c.item}) == [c]
            assert await rig.store.leases("w", []) == []
            assert all(await rig.finish(found))

    async def test_leases_that_are_asked_for_have_the_newest_input(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add([Seed("a", {"seed": True})])
            for number in (1, 2):
                lease = await rig.lease("scrape")
                [found] = await rig.store.leases("w", [lease.item])
                assert found == lease
                assert decode(found.data) == {"seed": True}
                await rig.finish(lease, Done({"number": number}))
                lease = await rig.lease("summarize")
                [found] = await rig.store.leases("w", [lease.item])
                assert found == lease
                assert decode(found.data) == {"number": number}
                await rig.finish(lease)
                await rig.act("retry", "a", stage="scrape")

    async def test_a_lease_in_a_stage_that_a_program_does_not_have_comes_without_its_input(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add([Seed("a", {"n": 1})])
            lease = await rig.lease("scrape")
            stranger = make_store(rig.clock)
            await stranger.open([pipeline("fetch")])
            try:
                assert await stranger.held("w") == {mark_of(lease)}
                assert await stranger.leases("w", [lease.item]) == [lease._replace(data=None)]
            finally:
                await stranger.close()

    # --- begins ---

    async def test_a_prefetched_lease_begins_when_it_is_said(self, make_store: MakeStore) -> None:
        async with Rig(make_store, SHORT) as rig:
            await rig.add(["a", "b"])
            a, b = (await rig.claim("scrape", prefetch=True)).leases
            assert a.attempt == 1
            rig.clock.advance(seconds=359)
            await rig.beat("w")

            assert await begin(rig, a) == [True]
            rig.clock.advance(seconds=2)
            assert await begin(rig, a) == [True], "asked again after a lost reply"
            await rig.beat("w")

            assert (await rig.store.sweep()).reclaimed == 1, "of the other the deadline is over"
            assert await rig.place("a") == ("scrape", "active")
            row = await rig.item("b")
            assert (row["phase"], row["attempt"]) == ("ready", 0), "it had not begun"
            assert await begin(rig, b, a) == [False, True]
            rig.clock.advance(seconds=361)
            await rig.beat("w")
            assert (await rig.store.sweep()).reclaimed == 1, "its time is counted from its begin"
            assert (await rig.item("a"))["attempt"] == 1
            assert await begin(rig, a) == [False]
            assert await rig.kinds("a") == ["added", "claimed", "reclaimed"]

    async def test_what_had_not_begun_when_its_worker_died_has_lost_nothing(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b", "c"])
            for _ in range(5):
                leases = (await rig.claim("scrape", prefetch=True)).leases
                assert [each.attempt for each in leases] == [1, 1, 1], "ready at once, uncounted"
                await die(rig, after_ms=0)
            assert (await rig.history("a"))[-1]["attempt"] == 0

            first, *_ = (await rig.claim("scrape", prefetch=True)).leases
            await begin(rig, first)
            await die(rig)
            attempts = [(await rig.item(key))["attempt"] for key in "abc"]
            assert attempts == [1, 0, 0], "who began was alone: the attempt counts"

    async def test_a_lease_that_was_released_begins_anew(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape", prefetch=True)
            await begin(rig, lease)
            await rig.finish(lease, Released())
            again = await rig.lease("scrape", prefetch=True)
            assert again.attempt == 1

            assert await begin(rig, lease) == [False]
            await die(rig)

            assert (await rig.item("a"))["attempt"] == 0

    async def test_nobody_else_can_say_that_a_lease_begins(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape", prefetch=True)
            others = lease._replace(ticket=lease.ticket + 1), lease._replace(fence=lease.fence - 1)
            assert await begin(rig, *others) == [False, False]

            await die(rig)

            assert (await rig.item("a"))["attempt"] == 0

    async def test_who_goes_on_has_begun(self, make_store: MakeStore) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            lease = await rig.lease("scrape", prefetch=True)
            await begin(rig, lease)
            assert (await rig.go_on([lease])).continued

            await die(rig)

            assert (await rig.item("a"))["attempt"] == 1

    # --- leaving ---

    async def test_a_worker_that_leaves_in_good_order_gives_everything_back_uncounted(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b", "c", "d"])
            a, b = (await rig.claim("scrape", 2)).leases
            await rig.lease("scrape", prefetch=True)
            await rig.beat("v")
            other = await rig.lease("scrape", worker="v")

            await rig.store.leave("w", release=True)

            for key in "abc":
                row = await rig.item(key)
                assert (row["phase"], row["attempt"], row["fence"]) == ("ready", 0, 2)
                assert (row["worker"], row["version"]) == (None, 3)
                assert await rig.kinds(key) == ["added", "claimed", "released"]
            assert await rig.store.held("w") == set()
            assert [row["id"] for row in await rig.store.read("workers")] == ["v"]
            assert await rig.store.held("v") == {mark_of(other)}
            assert await rig.finish([a, b]) == [False, False]
            await rig.store.leave("w", release=True)
            assert await rig.kinds("a") == ["added", "claimed", "released"]
            assert not (await rig.store.sweep()).reclaimed

    # --- full ---

    async def test_a_claim_says_whether_the_limit_kept_it_from_more(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, LIMITED) as rig:
            await rig.add("abcdef")
            assert not (await rig.claim("scrape", 2)).full, "it gave all that was asked for"
            second = await rig.claim("scrape", 2)
            assert (len(second.leases), second.full, second.more) == (1, True, False)
            third = await rig.claim("scrape", 2)
            assert (len(third.leases), third.full, third.more) == (0, True, False)
            item = (await rig.item("f"))["id"]
            assert (await rig.claim("scrape", 1, item=item)).full

            await rig.store.tune("news", "scrape", paused=True)
            assert not (await rig.claim("scrape", 2)).full, "it is the pause"

    async def test_an_operators_limit_is_told_like_a_declared_one(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add("abcd")
            assert not (await rig.claim("scrape", 1)).full
            await rig.store.tune("news", "scrape", limit=2)
            claimed = await rig.claim("scrape")
            assert (len(claimed.leases), claimed.full, claimed.more) == (1, True, False)
            request = Add(NEWS, "r2", [Seed("e")])
            assert (await rig.add_and_claim(request, rig.wish("scrape")))[1].full

            await rig.store.tune("news", "scrape", limit=9)
            claimed = await rig.claim("scrape")
            assert (len(claimed.leases), claimed.full) == (3, False), "there was no more"

    # --- whose fault a death is ---

    async def test_of_several_that_ran_when_their_worker_died_none_is_blamed(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b", "c"])
            for death in range(1, DEATHS_MAX + 1):
                leases = (await rig.claim("scrape")).leases
                assert [each.attempt for each in leases] == [1, 1, 1], f"before death {death}"
                assert not any(each.alone for each in leases)
                await die(rig, after_ms=0)

            for key in "abc":
                assert await rig.place(key) == ("scrape", "ready")
                assert (await rig.kinds(key)).count("reclaimed") == DEATHS_MAX

    async def test_who_was_beside_many_deaths_runs_alone(self, make_store: MakeStore) -> None:
        """Its attempts count from then on: whoever ends its worker each time is found."""
        async with Rig(make_store) as rig:
            await rig.add(["deadly", "innocent"])
            for _ in range(DEATHS_MAX):
                await rig.claim("scrape")
                await die(rig, after_ms=0)
            for attempt in range(1, 4):
                claimed = (await rig.claim("scrape")).leases
                assert [each.alone for each in claimed] == [True] * len(claimed)
                deadly = next(each for each in claimed if each.key == "deadly")
                assert deadly.attempt == attempt
                assert await begin(rig, deadly) == [True]
                await die(rig)

            row = await rig.item("deadly")
            assert (row["phase"], row["error_code"], row["attempt"]) == ("failed", "poison", 3)
            [innocent] = (await rig.claim("scrape")).leases
            assert (innocent.alone, innocent.attempt) == (True, 1), "it had not begun"
            await begin(rig, innocent)
            await rig.finish(innocent, Done("page"))
            assert not (await rig.lease("summarize")).alone, "this is another stage"

    async def test_leases_that_are_asked_for_say_whether_they_run_alone(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])
            for _ in range(DEATHS_MAX):
                await rig.claim("scrape")
                await die(rig, after_ms=0)
            await rig.add(["c"], "r2")
            claimed = sorted((await rig.claim("scrape")).leases)

            found = sorted(await rig.store.leases("w", [lease.item for lease in claimed]))

            assert found == claimed
            assert [lease.alone for lease in found] == [True, True, False]

    async def test_who_ran_alone_when_its_worker_died_uses_up_its_attempts(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a"])
            for attempt, phase in ((1, "ready"), (2, "waiting"), (3, "failed")):
                assert (await rig.lease("scrape")).attempt == attempt
                await rig.store.leave("w")
                await rig.store.sweep()
                assert await rig.place("a") == ("scrape", phase)
                await die(rig)
            assert "3 attempts" in (await rig.item("a"))["error"]

    async def test_company_is_counted_over_all_stages_and_pipelines_of_a_worker(
        self, make_store: MakeStore
    ) -> None:
        """A worker that is silent has died for one pipeline earlier than for another one."""
        async with Rig(make_store, SHORT, PATIENT) as rig:
            await rig.add(["a"])
            await rig.add(["b"], "r2", of=PATIENT)
            await rig.lease("scrape")
            await rig.lease("scrape", of=PATIENT)

            for seconds, reclaimed in ((61, 1), (900, 1)):
                rig.clock.advance(seconds=seconds)
                assert (await rig.store.sweep()).reclaimed == reclaimed

            assert (await rig.item("a"))["attempt"] == 0
            assert (await rig.item("b", PATIENT))["attempt"] == 0

    async def test_who_hangs_after_its_worker_was_silent_for_others_is_to_blame(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, SHORT, PATIENT) as rig:
            await rig.add(["a"])
            await rig.add(["b"], "r2", of=PATIENT)
            await rig.lease("scrape")
            await rig.lease("scrape", of=PATIENT)
            rig.clock.advance(seconds=61)
            assert (await rig.store.sweep()).reclaimed == 1
            await rig.beat("w")

            rig.clock.advance(seconds=1200)
            await rig.beat("w")
            assert (await rig.store.sweep()).reclaimed == 1

            assert (await rig.item("b", PATIENT))["attempt"] == 1

    async def test_company_is_counted_beyond_what_one_sweep_takes_back(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            keys = [f"{number:04}" for number in range(SWEEP_MAX + 1)]
            await rig.add(keys)
            await rig.claim("scrape", len(keys))
            await rig.store.leave("w")

            assert (await rig.store.sweep()).reclaimed == SWEEP_MAX
            assert (await rig.store.sweep()).reclaimed == 1

            assert {row["attempt"] for row in await rig.items()} == {0}

    async def test_who_hangs_while_its_worker_lives_is_to_blame_whatever_runs_beside_it(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, SHORT) as rig:
            await rig.add(["hangs", "works"])
            hanging, working = (await rig.claim("scrape")).leases
            for _ in range(7):
                rig.clock.advance(seconds=55)
                await rig.beat("w")
                assert await rig.store.renew(working)

            assert (await rig.store.sweep()).reclaimed == 1

            row = await rig.item("hangs")
            assert (row["phase"], row["attempt"]) == ("ready", 1)
            assert await rig.finish([hanging, working]) == [False, True]

    async def test_deaths_are_counted_in_one_stage_and_generation(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store) as rig:
            await rig.add(["a", "b"])

            async def die_often(stage: str) -> None:
                for _ in range(DEATHS_MAX):
                    leases = (await rig.claim(stage)).leases
                    assert [lease.alone for lease in leases] == [False, False]
                    await die(rig)

            async def end_alone(stage: str, outcome: Done | Failed) -> None:
                leases = (await rig.claim(stage)).leases
                assert [lease.alone for lease in leases] == [True, True]
                assert await begin(rig, *leases) == [True, True]
                await rig.finish(leases, outcome)

            await die_often("scrape")
            await end_alone("scrape", Done("page"))
            await die_often("summarize")
            await end_alone("summarize", Failed("no", "no", permanent=True))

            await rig.act("retry", "a", "b")
            await die_often("summarize")
            await end_alone("summarize", Done("summary"))
            assert await rig.phases() == {"done": 2}

    async def test_failures_and_deaths_beside_others_do_not_add_up(
        self, make_store: MakeStore
    ) -> None:
        async with Rig(make_store, pipeline("scrape", attempts=2, backoff_seconds=1)) as rig:
            await rig.add(["a", "b"])
            for _ in range(3):
                await rig.claim("scrape")
                await die(rig)
            a, b = (await rig.claim("scrape")).leases
            await rig.finish([a, b], Failed("away", "timeout"))
            assert {await rig.place(key) for key in "ab"} == {("scrape", "waiting")}
            rig.clock.advance(seconds=60)
            await rig.beat("w")
            await rig.store.sweep()
            assert [each.attempt for each in (await rig.claim("scrape")).leases] == [2, 2]
            await die(rig)
            assert [each.attempt for each in (await rig.claim("scrape")).leases] == [2, 2]
            await rig.work_off_held()
