"""Writes docs/openapi.json, the API as the server describes it: `python -m scripts.openapi`."""

import json
from pathlib import Path

from onceflow.pipelines.ingest import Ingest
from onceflow.web import create_app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "openapi.json"


def text() -> str:
    """The description, in one spelling."""
    app = create_app(":memory:", Ingest().pipeline())
    return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    print(f"wrote {PAGE}")
