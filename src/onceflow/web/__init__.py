"""The HTTP API and the pages, on the public API only.

app = onceflow.web.create_app("news.db", news)
"""

from onceflow.web.app import create_app

__all__ = ["create_app"]
