"""Which addresses are open (rules R2 and R3)."""

import pytest

from onceflow.clients.addresses import check, is_open, networks
from onceflow.core.errors import Permanent, SettingsError


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.255.254", "::1", "0.0.0.0", "0.1.2.3", "::"),  # U01, U04
        *("169.254.169.254", "fe80::1", "fe80::1%eth0", "fec0::1"),  # U02
        *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1"),  # U03
        *("198.18.0.1", "192.0.0.8", "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1"),
        *("224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "ff02::1", "ff0e::1"),
        *("::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1"),  # U05: mapped
        *("2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:1::"),  # U06: 6to4
        *("::127.0.0.1", "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8"),  # compatible, translated
        *("64:ff9b::7f00:1", "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8"),  # NAT64
        *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001::1"),  # Teredo
        *("2606:4700::5efe:7f00:1", "2606:4700::200:5efe:10.0.0.1"),  # ISATAP
        *("fc00::1", "fd12:3456::1", "2001:db8::1", "3fff::1", "100::1", "5f00::1", "3ffe::1"),
        *("nonsense", "", "127.1", "2130706433"),
    ],
)
def test_closed(address: str) -> None:
    assert not is_open(address)


@pytest.mark.parametrize(
    "address",
    [
        *("8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "198.20.0.1", "223.255.255.255"),
        *("2606:4700:4700::1111", "2a00:1450:4001::200e", "2606:4700::1"),
        *("64:ff9b::8.8.8.8", "2002:808:808::1", "::ffff:8.8.8.8"),
    ],
)
def test_open(address: str) -> None:
    assert is_open(address)


def test_an_exception_opens_only_itself() -> None:
    allowed = networks(["127.0.0.2/32", "fd00:1::/64"])
    assert is_open("127.0.0.2", allowed)
    assert is_open("fd00:1::5", allowed)
    assert not is_open("127.0.0.1", allowed)
    assert not is_open("::ffff:127.0.0.2", allowed)
    assert not is_open("fd00:2::5", allowed)


def test_a_refusal_says_what_to_do() -> None:
    with pytest.raises(Permanent, match=r"a\.test is 10\.0\.0\.1.*allow_networks") as caught:
        check("10.0.0.1", host="a.test")
    assert caught.value.code == "blocked_address"


def test_a_wrong_network_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="allow_networks"):
        networks(["127.0.0.2/8"])
