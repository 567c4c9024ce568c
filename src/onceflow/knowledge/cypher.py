"""Which Cypher a user may ask: one query that reads the graph, and nothing else.

The file is opened read-only besides. That alone is not enough: a database that may not be written
still reads and writes other files for whoever asks it to (LOAD FROM, COPY TO, EXPORT DATABASE).
"""

from __future__ import annotations

import re

from onceflow.knowledge.graph import GraphError

QUERY_CHARS_MAX = 20_000
FIRST = frozenset({"MATCH", "OPTIONAL", "UNWIND", "WITH", "RETURN", "CALL"})
REFUSED = frozenset({
    "ALTER", "ATTACH", "BEGIN", "CHECKPOINT", "COMMENT", "COMMIT", "COPY", "CREATE", "DELETE",
    "DETACH", "DROP", "EXPORT", "EXTENSION", "FORCE", "IMPORT", "INSERT", "INSTALL", "LOAD",
    "MACRO", "MERGE", "REMOVE", "ROLLBACK", "SET", "TRUNCATE", "UNINSTALL", "UPDATE", "USE",
})  # fmt: skip
CALLED = frozenset({"SHOW_TABLES", "TABLE_INFO", "SHOW_CONNECTION", "DB_VERSION"})
"""The procedures that only tell of the graph itself."""
_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` | //[^\n]* | /\*.*?\*/
    | (?P<property>\.\s*\w+) | (?P<word>\w+) | (?P<open>['"`] | /\*) | (?P<end>;)""",
    re.VERBOSE | re.DOTALL,
)


def judged(text: str) -> str:
    """The query as it may be asked; raises `GraphError` that says what is not allowed."""
    if len(text) > QUERY_CHARS_MAX:
        raise GraphError(f"the query is longer than {QUERY_CHARS_MAX:,} characters")
    query = text.strip().rstrip(";").strip()
    words: list[str] = []
    for token in _TOKEN.finditer(query):
        if token["open"]:
            raise GraphError("the query has a quotation or a comment without an end")
        if token["end"]:
            raise GraphError("one query at a time: leave out what is behind the semicolon")
        if token["word"]:
            words.append(token["word"].upper())
    if not words or words[0] not in FIRST:
        raise GraphError("a query begins with MATCH, UNWIND, WITH, RETURN or CALL")
    for word in words:
        if word in REFUSED:
            raise GraphError(
                f"{word} is not allowed: the graph is made from the database and can only be read"
                f" here. A name that is called so is written `{word.lower()}`"
            )
    for at, word in enumerate(words):
        if word == "CALL" and (words[at + 1 : at + 2] or [""])[0] not in CALLED:
            names = ", ".join(sorted(name.lower() for name in CALLED))
            raise GraphError(f"CALL is allowed for {names} only")
    return query
