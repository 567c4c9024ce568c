"""What is said of the demo site, kept as a snapshot that a person has read."""

from onceflow.demo.site import Site
from tests.support.analyses import differences, seen


async def test_the_demo_site_is_described_as_a_person_has_read_it() -> None:
    async with Site(slow_seconds=0) as site:
        site.release()
        found = await seen(f"http://127.0.0.1:{site.port}/")
    assert differences("demo", found) == []
