"""Bytes to text, and text to something both databases and every terminal can hold.

Which charset counts, first to last:

1. a byte order mark;
2. UTF-8, if the bytes are valid UTF-8 and not pure ASCII: that does not happen by accident;
3. the charset of the `Content-Type` header, if it is on the list below;
4. the one in the page's first 4 KiB (`<meta charset>`, `<?xml encoding?>`), if it is on the list;
5. UTF-16 without a mark, if every other byte is zero;
6. UTF-8, with U+FFFD for what is not.

`doubtful` marks a text where characters had to be replaced, or where header and page disagree.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

META_BYTES = 4096

# Label -> Python codec. Labels as pages write them; latin-1 means windows-1252 on the web.
_CHARSETS: dict[str, str] = {
    **dict.fromkeys(["utf-8", "utf8", "unicode-1-1-utf-8"], "utf-8"),
    **dict.fromkeys(["utf-16", "utf-16le", "unicode", "ucs-2"], "utf-16-le"),
    **dict.fromkeys(["utf-16be"], "utf-16-be"),
    **dict.fromkeys(["windows-1252", "cp1252", "us-ascii", "ascii"], "cp1252"),
    **dict.fromkeys(["iso-8859-1", "iso8859-1", "latin1", "latin-1", "l1"], "cp1252"),
    **{f"windows-125{n}": f"cp125{n}" for n in (0, 1, 3, 4, 5, 6, 7, 8)},
    **{f"cp125{n}": f"cp125{n}" for n in (0, 1, 3, 4, 5, 6, 7, 8)},
    **{f"iso-8859-{n}": f"iso8859-{n}" for n in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **dict.fromkeys(["iso-8859-9", "latin5"], "cp1254"),
    "iso-8859-11": "cp874",
    "windows-874": "cp874",
    "tis-620": "cp874",
    "koi8-r": "koi8-r",
    "koi8-u": "koi8-u",
    "ibm866": "cp866",
    "cp866": "cp866",
    "macintosh": "mac-roman",
    **dict.fromkeys(["gbk", "gb2312", "gb18030", "x-gbk"], "gb18030"),
    **dict.fromkeys(["big5", "big5-hkscs"], "big5hkscs"),
    **dict.fromkeys(["shift_jis", "shift-jis", "sjis", "x-sjis", "windows-31j"], "cp932"),
    "euc-jp": "euc_jp",
    "iso-2022-jp": "iso2022_jp",
    **dict.fromkeys(["euc-kr", "ks_c_5601-1987", "windows-949"], "cp949"),
}
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_CHARSET_PARAMETER = re.compile(
    r";\s{0,8}charset\s{0,8}=\s{0,8}(\"[^\"]{0,64}\"|[^;,\s]{0,64})", re.IGNORECASE
)
_META = re.compile(
    rb"<meta[^>]{0,512}?charset\s{0,8}=\s{0,8}[\"']?\s{0,8}([A-Za-z0-9_:.\-]{1,40})"
    rb"|<\?xml[^>]{0,128}?encoding\s{0,8}=\s{0,8}[\"']([A-Za-z0-9_:.\-]{1,40})",
    re.IGNORECASE,
)

# ESC or its 8-bit twin, as terminals read them: colours and cursor (CSI), titles and links (OSC).
_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)"
)
_UNWANTED: dict[int, str | None] = {
    **dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF]),
    **dict.fromkeys([0x2028, 0x2029], "\n"),
}
del _UNWANTED[0x09], _UNWANTED[0x0A]
_UNWANTED_RE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u2028\u2029]")

_MARKUP = re.compile(r"<(?:!doctype|html|head|body|p|div|article|br)\b", re.IGNORECASE)
_HIDDEN = re.compile(r"<(script|style|noscript|template|svg|head)\b|<(!--)", re.IGNORECASE)
# Tags with nothing between them that can be passed over at once: a million of them are no work.
_TAGS = re.compile(
    r"(?:<(?!script\b|style\b|noscript\b|template\b|svg\b|head\b|!)[^<>]*+>\s*+)++",
    re.IGNORECASE,
)
_BLOCK = re.compile(
    r"</?(?:p|div|br|li|ul|ol|h[1-6]|tr|table|section|article|header|footer|nav|main|blockquote"
    r"|pre|title|option|dt|dd)\b",
    re.IGNORECASE,
)

# Control bytes that no charset of the list above uses: all but white space and ESC.
_NOT_IN_TEXT = bytes(n for n in (*range(32), 127) if n not in b"\t\n\v\f\r\x1b")
# Byte beginnings that are never a text page, whatever the server calls them.
_MAGIC = (
    *(b"%PDF-", b"PK\x03\x04", b"PK\x05\x06", b"\x89PNG", b"GIF87a", b"GIF89a", b"\xff\xd8\xff"),
    *(b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!", b"\x7fELF", b"MZ\x90", b"OggS"),
    *(b"ID3", b"\x00\x00\x00\x18ftyp", b"\x00\x00\x00\x20ftyp", b"\x1aE\xdf\xa3", b"wOFF", b"wOF2"),
    *(b"SQLite format 3\x00", b"\x28\xb5\x2f\xfd", b"\xd0\xcf\x11\xe0"),
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A page's text, and by which charset it was read."""

    text: str
    charset: str
    doubtful: bool


def decode(body: bytes, declared: str = "") -> Decoded:
    """The text of `body`; `declared` is the charset of the `Content-Type` header, if any."""
    for mark, codec in _MARKS:
        if body.startswith(mark):
            return _read(body[len(mark) :], codec)
    header = _CHARSETS.get(declared.strip().strip("\"'").lower()[:40])
    found = _META.search(body, 0, META_BYTES)
    meta_name = (found.group(1) or found.group(2)).decode("ascii").lower() if found else ""
    meta = _CHARSETS.get(meta_name)
    if meta is not None and meta.startswith("utf-16"):
        meta = "utf-8"  # it was found by reading single bytes, so it cannot be true
    wide = _unmarked_utf16(body)
    if wide is None and not body.isascii() and _is_utf8(body):
        return Decoded(clean(body.decode()), "utf-8", doubtful=False)
    doubtful = header is not None and meta is not None and header != meta
    return _read(body, header or meta or wide or "utf-8", doubtful=doubtful)


def charset_of(content_type: str) -> str:
    """The `charset` parameter of a `Content-Type`, as written."""
    match = _CHARSET_PARAMETER.search(content_type)
    return match.group(1).strip('"') if match else ""


def is_text(body: bytes) -> bool:
    """False for what begins like a PDF, an image, an archive, or has zero bytes as text has not."""
    head = body[:2048]
    if head.startswith(_MAGIC):
        return False
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or _unmarked_utf16(body) is not None:
        return True
    # A stray NUL is dirt (D05); a page in which one byte of sixteen is such is not text.
    odd = len(head) - len(head.translate(None, _NOT_IN_TEXT))
    return odd * 16 <= len(head)


def clean(text: str) -> str:
    """Newlines as `\\n`; terminal codes, control characters and lone surrogates gone.

    What is left is the same in SQLite, PostgreSQL, JSON and on a terminal. Doing it twice changes
    nothing.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text or "\x9b" in text:
        text = _ANSI.sub("", text)
    if _UNWANTED_RE.search(text):
        text = text.translate(_UNWANTED)
    return text


def one_line(text: str, *, chars_max: int) -> str:
    """A title: cleaned, white space folded, cut."""
    return " ".join(clean(text[: chars_max * 8]).split())[:chars_max].strip()


def strip_markup(text: str, *, is_html: bool = False, chars_max: int | None = None) -> str:
    """The visible text of HTML, roughly and in one pass; plain text comes back as it is.

    `chars_max` cuts it before its white space is folded, which takes the most memory.

    For a model that is handed a raw page, and for pages that defeat the careful way (`extract`).
    """
    if not is_html and not _MARKUP.search(text, 0, 20_000):
        return text
    from html import unescape

    parts: list[str] = []
    at = 0
    while (start := text.find("<", at)) != -1:
        parts.append(text[at:start])
        if tags := _TAGS.match(text, start):
            at = tags.end()
            parts.append("\n\n" if _BLOCK.search(text, start, at) else " ")
            continue
        if hidden := _HIDDEN.match(text, start):
            # Looked for once: an end that is missing means that the rest of the page is hidden.
            end_mark = "-->" if hidden.group(2) else f"</{hidden.group(1)}"
            found = re.compile(re.escape(end_mark), re.IGNORECASE).search(text, start)
            start = found.start() if found else len(text)
        end = text.find(">", start)
        if end == -1:
            at = len(text)
            break
        parts.append("\n\n" if _BLOCK.match(text, start) else " ")
        at = end + 1
    parts.append(text[at:])
    seen = unescape("".join(parts)[:chars_max])
    lines = (" ".join(line.split()) for line in seen.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _read(body: bytes, codec: str, *, doubtful: bool = False) -> Decoded:
    text = body.decode(codec, errors="replace")
    return Decoded(clean(text), codec, doubtful or "\ufffd" in text)


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unmarked_utf16(body: bytes) -> str | None:
    """Latin markup in UTF-16 has a zero in every other byte."""
    head = body[:512]
    if len(head) < 16:
        return None
    first, second = head[::2].count(0), head[1::2].count(0)
    half = len(head) // 2
    if second * 10 >= half * 7 and first * 20 <= half:
        return "utf-16-le"
    if first * 10 >= half * 7 and second * 20 <= half:
        return "utf-16-be"
    return None
