"""Section 2 of the hostile cases, as far as the URL itself decides."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.clients import addresses, urls
from onceflow.clients.urls import canonical, parse_url, shown
from onceflow.core.errors import Permanent


def refusal(text: str) -> str:
    with pytest.raises(Permanent) as caught:
        parse_url(text)
    assert len(str(caught.value)) < 600
    return caught.value.code


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("http://2130706433:8000/", "127.0.0.1"),
        ("http://0x7f000001:8000/", "127.0.0.1"),
        ("http://0177.0.0.1:8000/", "127.0.0.1"),
        ("http://127.1:8000/", "127.0.0.1"),
        ("http://0:8000/", "0.0.0.0"),
        ("http://\uff11\uff12\uff17.0.0.1/", "127.0.0.1"),
        ("http://[::ffff:127.0.0.1]:8000/", "::ffff:7f00:1"),
    ],
)
def test_U07_U08_numbers_in_any_spelling_are_the_address_they_mean(text: str, host: str) -> None:
    url = parse_url(text)
    assert (url.host, url.is_address) == (host, True)
    assert not addresses.is_open(url.host)


@pytest.mark.parametrize(
    "text",
    [
        "http://example.test@127.0.0.1:8000/",
        "http://user:secret@example.test/",
        "http://127.0.0.1:8000#@example.test/",
        "http://example.test\\@127.0.0.1:8000/",
    ],
)
def test_U09_credentials_are_refused(text: str) -> None:
    assert refusal(text) == "bad_url"


def test_U09_a_password_is_not_repeated_in_the_refusal() -> None:
    with pytest.raises(Permanent) as caught:
        parse_url("http://user:secret@example.test/")
    assert "secret" not in str(caught.value)


def test_U10_white_space_around_is_trimmed() -> None:
    assert canonical(" \thttp://a.test/\r\n") == "http://a.test/"


@pytest.mark.parametrize("text", ["http://a\t.test/", "http://a\n.test/", "http://a.test/\x00"])
def test_U10_control_characters_inside_are_refused(text: str) -> None:
    assert refusal(text) == "bad_url"


def test_U10_a_space_inside_the_host_is_refused() -> None:
    assert refusal("http://a .test/") == "bad_url"


@pytest.mark.parametrize(
    "text",
    [
        "file:///etc/passwd",
        "FILE://",
        "jar:http://a.test/x.jar!/",
        "view-source:http://a.test/",
        "ftp://a.test/",
        "gopher://a.test/",
        "data:text/html,x",
        "javascript:1",
        "mailto:a@b.test",
    ],
)
@pytest.mark.parametrize("as_redirect", [False, True])
def test_U14_U15_other_schemes_are_refused(text: str, as_redirect: bool) -> None:
    with pytest.raises(Permanent) as caught:
        parse_url(text, base=parse_url("http://a.test/") if as_redirect else None)
    assert caught.value.code == "refused_scheme"


def test_U20_a_very_long_url_is_refused() -> None:
    assert refusal("http://a.test/" + "a" * 100_000) == "bad_url"
    assert refusal("http://a.test/" + "ä" * 3000) == "bad_url"  # 18,000 once encoded


@pytest.mark.parametrize(
    "port", ["0", "65536", "80:90", "22", "25", "6379", "5432", "-1", "8o", "99999999999999999999"]
)
def test_U21_ports_that_are_no_web_servers(port: str) -> None:
    assert refusal(f"http://a.test:{port}/") == "bad_url"


@pytest.mark.parametrize(
    "host",
    [
        "a" * 300,
        ".".join(["a" * 60] * 5),
        "a" * 64 + ".test",
        "a..b",
        ".a.test",
        "a.test..",
        "-a.test",
        "a-.test",
        "xn--a.test\u0301",
        "ä" * 200,
        "xn--" + "9" * 60,
        "a$b.test",
        "\ud800.test",
        "1.2.3.4.5",
        "256.256.256.256",
        "ex%00ample.test",
    ],
)
def test_U22_impossible_hosts_are_refused_without_an_idna_exception(host: str) -> None:
    assert refusal(f"http://{host}/") == "bad_url"


@pytest.mark.parametrize("text", ["http://[fe80::1%25eth0]/", "http://[::1", "http://[::1]x/"])
def test_U23_broken_ipv6_is_refused(text: str) -> None:
    assert refusal(text) == "bad_url"


@pytest.mark.parametrize(
    "text",
    ["http:/\\127.0.0.1/", "http:///127.0.0.1/", "http:127.0.0.1", "http://", "http:", "http://?a"],
)
def test_U24_missing_or_turned_slashes_are_refused(text: str) -> None:
    assert refusal(text) == "bad_url"


@pytest.mark.parametrize(
    "text",
    [
        "HTTP://Example.test:80/a/../b?x=1#f",
        "http://example.test/b?x=1",
        "http://EXAMPLE.TEST./b?x=1#",
        "http://example.test/a/%2E%2e/b?x=1",
        "http://example.test/%62?x=%31",
    ],
)
def test_U25_one_page_has_one_spelling(text: str) -> None:
    assert canonical(text) == "http://example.test/b?x=1"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("http://a.test", "http://a.test/"),
        ("http://a.test/?", "http://a.test/"),
        ("https://a.test:443/", "https://a.test/"),
        ("https://a.test:80/", "https://a.test:80/"),
        ("http://bücher.test/ä?ö=ü", "http://xn--bcher-kva.test/%C3%A4?%C3%B6=%C3%BC"),
        ("http://a.test/%e2%82%ac%2f%7e", "http://a.test/%E2%82%AC%2F~"),
        ("http://a.test/a b", "http://a.test/a%20b"),
        ("http://a.test/a//b", "http://a.test/a//b"),
        ("http://[2606:4700:0::1]/", "http://[2606:4700::1]/"),
    ],
)
def test_canonical_forms(text: str, wanted: str) -> None:
    assert canonical(text) == wanted
    assert canonical(wanted) == wanted


@pytest.mark.parametrize(
    ("reference", "wanted"),
    [
        ("../x", "http://a.test/x"),
        ("//b.test/y", "http://b.test/y"),
        ("?q=1", "http://a.test/d/e?q=1"),
        ("/pfad/ä", "http://a.test/pfad/%C3%A4"),
        ("\\\\b.test\\y", "http://b.test/y"),
    ],
)
def test_relative_references_are_resolved(reference: str, wanted: str) -> None:
    assert parse_url(reference, base=parse_url("http://a.test/d/e")).href == wanted


@given(st.text(max_size=60))
def test_any_text_is_a_url_or_a_refusal(text: str) -> None:
    for candidate in (text, f"http://{text}", f"http://a.test/{text}"):
        try:
            url = parse_url(candidate)
        except Permanent:
            continue
        assert canonical(url.href) == url.href
        assert url.host
        assert url.href.isascii()


def test_a_shown_url_hides_passwords_and_keys() -> None:
    text = shown("https://u:pw1@a.test/?api_key=k1&access_token=t1&q=ok&X-Amz-Signature=s1")
    assert not any(secret in text for secret in ("pw1", "k1", "t1", "s1"))
    assert "q=ok" in text


HOSTS = ["a.test", "localhost", "a-b.c1.test", "1.2.3.4", "01.2.3.4", "1.2.3.256", "xn--a.test"]
HOSTS += ["a", "1", "0x7f.1", "a.1", "a.b2", "a..b", "-a.test", "a.test.", "A.test", "a_b.test"]
PIECES = ["/", ".", "..", "%41", "a", "Z9", "~", "!", "'", "(", "*", ":", "?", "&", "=", "//", "-"]


@given(
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(HOSTS),
    st.sampled_from(["", ":80", ":443", ":8080", ":080", ":22", ":65536", ":99999", ":"]),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
)
def test_the_short_way_agrees_with_the_parser(scheme: str, host: str, port: str, rest: str) -> None:
    text = f"{scheme}://{host}{port}/{rest}"

    def outcome(parse: Callable[[str], object]) -> object:
        try:
            return parse(text)
        except Permanent as error:
            return error.code

    assert outcome(parse_url) == outcome(lambda one: urls._parse(one, None))
