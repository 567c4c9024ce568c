"""A client process: waits for a line on stdin, then makes all its calls at once.

    python -m tests.web.caller COUNT PATH URL [URL ...] [--json BODY ...]

Call n goes to the n-th server in turn, with the n-th body in turn. One whose connection breaks is
made again at the next server: every call may be repeated.
"""

import asyncio
import json
import sys
from typing import Any

import httpx2


async def main(count: int, path: str, urls: list[str], bodies: list[Any]) -> None:
    limits = httpx2.Limits(max_connections=count)
    async with httpx2.AsyncClient(timeout=180, limits=limits) as client:
        print("ready", flush=True)  # noqa: T201 - the test waits for it
        await asyncio.to_thread(sys.stdin.readline)

        async def one(number: int) -> dict[str, Any]:
            body = bodies[number % len(bodies)] if bodies else None
            for attempt in range(20):
                url = urls[(number + attempt) % len(urls)]
                try:
                    answer = await client.post(url + path, json=body)
                except httpx2.TransportError:
                    continue
                return {"status": answer.status_code, "body": answer.json(), "asked": attempt + 1}
            return {"status": 0, "body": None, "asked": 20}

        answers = await asyncio.gather(*(one(number) for number in range(count)))
    print(json.dumps(answers))  # noqa: T201 - its answer


if __name__ == "__main__":
    words = sys.argv[1:]
    at = words.index("--json") if "--json" in words else len(words)
    given = [json.loads(word) for word in words[at + 1 :]]
    asyncio.run(main(int(words[0]), words[1], words[2:at], given))
