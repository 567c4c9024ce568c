"""Every error as `application/problem+json` (RFC 9457): what happened, to what, what to do next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:onceflow:problem:"


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

    def response(self) -> Response:
        # As escapes: a lone surrogate in somebody's text is no reason to fail.
        body = json.dumps(self.body(), separators=(",", ":")).encode()
        return Response(body, self.status, self.headers, MEDIA_TYPE)
