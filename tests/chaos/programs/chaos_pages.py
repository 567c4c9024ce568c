"""Pages in one process that is killed again and again; some pages end it themselves.

Each call of the model is written down outside before it is made.
"""

import asyncio
import os

from chaos_common import Body, end_with_the_scenario, note

from onceflow import Pipeline, Stage, Work

end_with_the_scenario()

MODEL_SECONDS = float(os.environ.get("CHAOS_MODEL_SECONDS", "0.5"))


async def scrape(work: Work) -> Body:
    await asyncio.sleep(0.05)
    return {"text": work.key}


async def summarize(work: Work) -> Body:
    note("called", work)
    if work.key.startswith("deadly"):
        os._exit(137)
    await asyncio.sleep(MODEL_SECONDS)
    return {"summary": work.key}


pages = Pipeline(
    "pages",
    Stage("scrape", scrape, active="scraping"),
    Stage("summarize", summarize, ready="scraped", active="summarizing"),
    done="completed",
    backoff_seconds=0.1,
)
