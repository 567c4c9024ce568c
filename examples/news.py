"""Read pages, summarize each one, then write a single digest over them all."""

import asyncio
from dataclasses import dataclass

import onceflow
from onceflow import Done, Json, Permanent, Pipeline, Stage, Transient, Work
from onceflow.clients import Http, Llm


@dataclass(frozen=True)
class News:
    http: Http
    llm: Llm

    async def scrape(self, work: Work) -> Json:
        page = await self.http.get(work.key)
        if page.status in (404, 410):
            raise Permanent("the page is gone")  # failed now, no more attempts
        if page.status >= 500:
            raise Transient(f"the site answered {page.status}")  # ready again, after a backoff
        return {"text": page.text}

    async def summarize(self, work: Work) -> Done:
        summary = ""
        async for part in self.llm.stream(f"Summarize:\n{work.input['text']}"):
            summary += part
            work.emit("summary_partial", text=part)  # live only: a watcher may miss it
        return Done({"summary": summary}, events=["summary_finished"])  # stored with the result

    async def digest(self, work: Work) -> Json:
        summaries = [item.result["summary"] async for item in work.finished_items()]
        return {"digest": "\n".join(summaries)}

    def pipeline(self) -> Pipeline:
        return Pipeline(
            "news",
            Stage("scrape", self.scrape, ready="idle", active="scraping", limit=8),
            Stage("summarize", self.summarize, ready="scraped", active="summarizing", limit=4),
            done="completed",
            failed="failed",
            after_all=self.digest,  # the gate
            lease_seconds=120,
            attempts=3,
        )


news = News(Http(), Llm()).pipeline()


async def main() -> None:
    async with onceflow.open("news.db", news) as flow:  # or "postgresql://host/db"
        added = await flow.add(news, ["https://a.test/", "https://b.test/"])
        print(f"{added.new} new, {added.known} known already")  # adding again is harmless
        async for event in flow.run_until_idle():
            print(event.key, event.state)
        for item in await flow.items(news, state="failed"):
            print(item.key, item.attempt, item.error)
        await flow.retry(news, state="failed")
        print(await flow.counts(news))


if __name__ == "__main__":
    asyncio.run(main())
