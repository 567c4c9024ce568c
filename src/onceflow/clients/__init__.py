"""The outside world: pages, their text, language models, sentence vectors.

Importing this loads none of the libraries behind it; each is loaded at its first use.
"""

from onceflow.clients.embed import Embedder
from onceflow.clients.extract import Extracted, Extractor, ExtractSettings
from onceflow.clients.http import Headers, Http, Page
from onceflow.clients.llm import Llm, LlmLimits, Price, Stream, Usage
from onceflow.clients.settings import FetchSettings
from onceflow.clients.urls import canonical
from onceflow.clients.wikipedia import Article, Wikipedia
from onceflow.clients.wikitext import Section

__all__ = [
    "Article",
    "Embedder",
    "ExtractSettings",
    "Extracted",
    "Extractor",
    "FetchSettings",
    "Headers",
    "Http",
    "Llm",
    "LlmLimits",
    "Page",
    "Price",
    "Section",
    "Stream",
    "Usage",
    "Wikipedia",
    "canonical",
]
