"""Heavy arithmetic in processes that can be killed: one item never ends, and is cut off."""

import asyncio
import sys

import onceflow
from onceflow import Json, Pipeline, Settings, Stage, Work


def factor(work: Work) -> Json:
    """Runs in a process of its own, so the loop stays free; past its deadline it is killed."""
    number = int(work.key)
    while number == 0:
        pass  # zero has no factors, and this never finds that out
    factors = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return {"factors": [*factors, number] if number > 1 else factors}


numbers = Pipeline(
    "numbers",
    Stage("factor", factor, cpu=True, deadline_seconds=2.0, attempts=1),
)


async def main(database: str) -> None:
    async with onceflow.open(database, numbers, settings=Settings(cpu_processes=2)) as flow:
        await flow.add(numbers, ["360360", "1000000007", "0", "9699690"])
        await flow.drain()
        for item in await flow.items(numbers):
            print(item.key, item.state, await flow.result(item.id, "factor") or item.error)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "numbers.db"))
