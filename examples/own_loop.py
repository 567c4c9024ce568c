"""A loop of your own over the articles of expand, beside any number of other workers."""

import sys

from onceflow import WorkQueueManager

LINKS = {"Graph": ["Vertex", "Edge"], "Vertex": ["Graph"], "Edge": ["Vertex", "Weight"]}


def load(title: str) -> list[str]:
    """Fetch, parse and store the article as you like; what it links to."""
    if title == "Weight":
        raise LookupError("no such article")
    return LINKS[title]


def main(database: str) -> None:
    with WorkQueueManager(database) as queue:
        queue.initialize_seeds(["Graph"])
        while batch := queue.claim_work(batch_size=10, timeout_seconds=300):
            for article in batch:
                title = article["title"]
                try:
                    queue.update_heartbeat(title)  # every 30 to 60 s while it takes long
                    links = load(title)
                    if queue.advance_state(title, "loaded"):  # else somebody took it over: skip
                        queue.discover_links(title, links, article["expansion_depth"])
                except LookupError as error:
                    queue.mark_failed(title, error, permanent=True)
            queue.reclaim_stale(timeout_seconds=300)
        for row in queue.state_distribution():
            print(f"{row['count']} {row['state']}, depth {row['avg_depth']:.2f} on average")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "articles.db")
