"""Three very different real sites, made of Debian's documentation packages."""

from pathlib import Path

import pytest

from tests.support import docs, folders
from tests.support.analyses import differences, seen

pytestmark = pytest.mark.live

SITES = {
    "sqlite3-doc": "usr/share/doc/sqlite3",
    "debian-handbook": "usr/share/doc/debian-handbook/html/en-US",
    "nodejs-doc": "usr/share/doc/nodejs/api",
}


@pytest.mark.parametrize("package", SITES)
async def test_a_real_site_is_described_as_a_person_has_read_it(package: str) -> None:
    async with folders.serving(site_of(package)) as url:
        found = await seen(url)
    assert differences(package, found) == []


def site_of(package: str) -> Path:
    try:
        return docs.package(package) / SITES[package]
    except docs.Unavailable as reason:
        pytest.skip(str(reason))
