"""A language model that says what it was told to say.

    llm = ScriptedLlm("a summary", ["in ", "parts"], Transient("busy", code="http_429"))

Each call takes the next answer, the last one for ever: a text, a list of parts, or an exception;
an exception inside a list is raised after the parts before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from onceflow.clients.llm import Finish, Llm, LlmLimits, Price, Request, Usage, tokens_about

Answer = str | BaseException | Sequence[str | BaseException | Usage | Finish]


class ScriptedModel:
    """The back end; `requests` are the calls it got."""

    def __init__(
        self,
        *answers: Answer,
        name: str = "scripted",
        context_tokens: int | None = None,
        writes: bool = True,
    ) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self.writes = writes
        self.requests: list[Request] = []
        self.closed = False
        self._answers: list[Answer] = list(answers) or ["a scripted answer"]

    async def stream(self, request: Request) -> AsyncIterator[str | Usage | Finish]:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        parts = [answer] if isinstance(answer, str | BaseException) else list(answer)
        said = 0
        ended = False
        for part in parts:
            if isinstance(part, BaseException):
                raise part
            said += len(part) if isinstance(part, str) else 0
            ended = ended or isinstance(part, Finish)
            yield part
        if not ended:
            asked = len(request.prompt) + len(request.data)
            yield Usage(tokens_about(asked), tokens_about(said))
            yield Finish("stop")

    async def close(self) -> None:
        self.closed = True


class ScriptedLlm(Llm):
    """An `Llm` over a `ScriptedModel`, which is `.scripted`."""

    def __init__(
        self,
        *answers: Answer,
        context_tokens: int | None = None,
        price: Price | None = None,
        limits: LlmLimits | None = None,
        writes: bool = True,
    ) -> None:
        self.scripted = ScriptedModel(*answers, context_tokens=context_tokens, writes=writes)
        super().__init__(self.scripted, price=price, limits=limits)
