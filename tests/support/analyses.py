"""What an analysis says of a site, in the few lines that a person reads, kept as a snapshot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from onceflow.clients import Extractor, FetchSettings, Http
from onceflow.pipelines.analyze import Analyze
from onceflow.pipelines.analyze.scores import coverage

SNAPSHOTS = Path(__file__).parents[1] / "pipelines" / "snapshots"
WRITE = "ONCEFLOW_TEST_SNAPSHOTS"
"""Set to `write`, the snapshots are made anew; look at the difference before it is kept."""
NEAR = 0.05
"""How far scores may be apart: sums of floats differ between machines."""


async def seen(url: str, *, prompts: int = 20) -> dict[str, Any]:
    """The profile, the questions, and how well the site's pages answer them."""
    http = Http(settings=FetchSettings(allow_networks=("127.0.0.0/8",)))
    async with http, Extractor() as extractor:
        job = Analyze(http, extractor, prompts=prompts, host_spacing_seconds=0)
        site, formed, _ = await job.preview(url)
        covered = await coverage(site, formed["prompts"], job.embedder)
    info = site["extractedInfo"]
    return {
        "name": info["name"],
        "tagline": info["tagline"],
        "audience": info["audience"],
        "topics": [one["topic"] for one in info["topics"]],
        "languages": [one["code"] for one in info["languages"]],
        "technologies": info["technologies"],
        "freshness": dict(info["freshness"]),
        "pages": [
            f"{one['kind']}: {one['title']} ({one['url'].removeprefix(url) or '/'})"
            for one in info["pages"]
        ],
        "notes": site["notes"],
        "prompts": [
            {
                "text": prompt["text"],
                "intent": prompt["intent"],
                "reason": prompt["reason"],
                "coverage": round(found["score"], 2),
                "page": found["page"],
            }
            for prompt, found in zip(formed["prompts"], covered, strict=True)
        ],
    }


def differences(name: str, found: dict[str, Any]) -> list[str]:
    """Where it is not as the snapshot has it."""
    path = SNAPSHOTS / f"{name}.json"
    if os.environ.get(WRITE) == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    kept = json.loads(path.read_text(encoding="utf-8"))
    wrong = [
        f"{field}: {found[field]!r}, kept {kept[field]!r}"
        for field in kept
        if field != "prompts" and found[field] != kept[field]
    ]
    for one, before in zip(found["prompts"], kept["prompts"], strict=True):
        if abs(one["coverage"] - before["coverage"]) > NEAR:
            wrong.append(f"{one['text']}: {one['coverage']}, kept {before['coverage']}")
        same = ("text", "intent", "reason")
        if [one[field] for field in same] != [before[field] for field in same]:
            wrong.append(f"{one!r}, kept {before!r}")
    return wrong
