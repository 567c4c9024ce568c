"""Every error as `application/problem+json` (RFC 9457): what happened, to what, what to do next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:onceflow:problem:"


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Onceflow</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{root}/static/onceflow.css">
</head>
<body>
<header class="bar"><a class="brand" href="{root}/">Onceflow</a></header>
<main>
<h1>{title}</h1>
<p class="refused outside" role="alert">{detail}.</p>
<p><a href="{root}/">To the first page</a></p>
</main>
</body>
</html>
"""


class Problem(Exception):
    """An answer that is an error. `kind` is short and stable: programs go by it."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = more

    def body(self) -> dict[str, Any]:
        return {
            "type": f"{TYPE}{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }

    def response(self, accept: str = "", root: str = "") -> Response:
        """As JSON; as a page for who asks for one, which is a person with a browser."""
        if "text/html" in accept:
            return Response(self.page(root), self.status, self.headers, "text/html; charset=utf-8")
        # As escapes: a lone surrogate in somebody's text is no reason to fail.
        body = json.dumps(self.body(), separators=(",", ":")).encode()
        return Response(body, self.status, self.headers, MEDIA_TYPE)

    def page(self, root: str = "") -> bytes:
        """The same for people. It needs nothing: it may be all that this server shows them."""
        title = f"{self.status} {HTTPStatus(self.status).phrase}"
        detail = self.detail[:1].upper() + self.detail[1:].rstrip(".")
        text = PAGE.format(title=escape(title), detail=escape(detail), root=escape(root))
        return text.encode("utf-8", "replace")
