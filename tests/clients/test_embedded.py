"""The embedded model and vectors: offline, extractive, no worse than the first sentences."""

import logging
import subprocess
import sys

import numpy as np
import pytest

from onceflow.clients import Embedder, Llm, embed
from onceflow.clients.embedded import summary
from onceflow.clients.sentences import sentences
from onceflow.clients.text import strip_markup

from .hostile import failure

ARTICLE = """\
The town council voted on Tuesday to rebuild the old harbour bridge for four million euros.

Dr. Ada Lindqvist, who led the study, said the bridge had been built in 1931 and was no longer \
safe for lorries. "We measured cracks of up to 3.5 mm in the northern pillar," she told reporters.

Share this page
Cookie settings

Local shop owners had asked the council to keep one lane of the bridge open during the work. The \
mayor said that the bridge would be closed for eleven months, and that a ferry would run \
every ten minutes instead.

It was sunny on the day of the vote. Members of the council drank coffee in the break.

Work on the bridge begins in March, and the council expects the rebuilt bridge to carry lorries \
of up to forty tonnes.
"""


def test_a_summary_is_sentences_of_the_text_in_their_order() -> None:
    picked = summary(ARTICLE)
    assert len(picked) == 3
    places = [ARTICLE.find(sentence) for sentence in picked]
    assert -1 not in places
    assert places == sorted(places)
    assert picked[0].startswith("The town council voted")
    assert not any("sunny" in s or "Cookie" in s for s in picked)


def test_about_as_many_words_as_asked_for() -> None:
    for words in (20, 40, 60):
        picked = summary(ARTICLE, words)
        assert 0 < sum(len(s.split()) for s in picked) <= max(words, 25)
    assert len(summary(ARTICLE, 10_000)) == 8  # all sentences, no menu lines


def test_fragments_and_code_are_left_out_where_there_is_enough_else() -> None:
    whole = ["The closure is written here.", "Types have a size.", "Memory is freed by the caller."]
    broken = ["an object of this type for you.", "if (prepare (&call, abi) == OK)"]
    assert set(summary("\n".join([*broken, *whole]), words=100)) == set(whole)
    assert summary("\n".join([*broken, whole[0]]), words=100)[0] == broken[0], "better than nothing"


@pytest.mark.parametrize("text", ["", " \n\n ", "----", "\n".join(["***"] * 50)])
def test_nothing_gives_nothing(text: str) -> None:
    assert summary(text) == []


def test_the_same_sentence_is_said_once() -> None:
    text = "The bridge will be rebuilt in March by the council. " * 30
    text += "A ferry will run meanwhile."
    assert len(summary(text)) == 2


@pytest.mark.parametrize(
    "text",
    ["a" * 300_000, "a. " * 100_000, "A b c d e. " * 30_000, "\n" * 300_000, "。" * 100_000],
)
def test_odd_texts_end(text: str) -> None:
    assert sum(map(len, summary(text))) <= 3 * 1000


async def test_it_streams_sentence_by_sentence_and_reports_usage() -> None:
    stream = Llm().stream(f"Summarize:\n{ARTICLE}")
    parts = [part async for part in stream]
    assert [part.strip() for part in parts] == summary(ARTICLE)
    assert stream.text == " ".join(summary(ARTICLE))
    assert (stream.usage.estimated, stream.usage.cost, stream.model) == (True, 0.0, "embedded")


async def test_data_and_whole_prompts_are_summarized_too() -> None:
    llm = Llm()
    assert not llm.writes
    wanted = " ".join(summary(ARTICLE))
    assert await llm.stream("Be brief", data=ARTICLE).read() == wanted
    assert await llm.stream(ARTICLE).read() == wanted
    assert await llm.summarize(ARTICLE).read() == wanted


async def test_no_text_is_no_summary() -> None:
    assert await failure(Llm().stream("Summarize:\n \n").read()) == "transient empty_answer"


async def test_a_raw_page_is_read_without_its_markup() -> None:
    paragraphs = "".join(f"<p>{line}</p>" for line in ARTICLE.split("\n"))
    page = f"<!doctype html><head><title>x</title><script>var a='<p>'</script></head>{paragraphs}"
    assert await Llm().stream(f"Summarize:\n{page}").read() == " ".join(summary(ARTICLE))


@pytest.mark.parametrize("text", ["<p>" + "<script" * 99_999, "<p>" + "<" * 99_999, "<p><!--" * 9])
def test_D08_D09_unclosed_markup_ends(text: str) -> None:
    assert len(strip_markup(text)) <= len(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Mr. Smith met Dr. A. B. Jones. So.", ["Mr. Smith met Dr. A. B. Jones.", "So."]),
        ("See No. 5 and Fig. 2 for it. So.", ["See No. 5 and Fig. 2 for it.", "So."]),
        ("It rose 3.5 pct. to $1.2bn. Good.", ["It rose 3.5 pct. to $1.2bn.", "Good."]),
        ('He said "No." She left.', ['He said "No."', "She left."]),
        ("Heading\nText here. More.", ["Heading", "Text here.", "More."]),
        ("- a point\n2. another", ["a point", "another"]),
        ("これは文です。次の文です。", ["これは文です。", "次の文です。"]),
        ("Er kam z.B. Montag. Gut.", ["Er kam z.B. Montag.", "Gut."]),
        ("In the U.S. Congress met. Then left.", ["In the U.S. Congress met.", "Then left."]),
    ],
)
def test_sentences(text: str, wanted: list[str]) -> None:
    assert sentences(text) == wanted


async def test_vectors_have_length_one_and_mean_something() -> None:
    embedder = Embedder()
    vectors = await embedder.embed(
        ["the cat sat on the mat", "a kitten lay on the rug", "interest rates rose again", ""]
    )
    assert vectors.shape == (4, 256)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors[:3], axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.1
    assert np.isfinite(vectors).all()
    assert (await embedder.embed([])).shape == (0, 256)
    assert (await embedder.embed(["x"] * 600)).shape == (600, 256)


class Vectors:
    name = "scripted"

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    async def vectors(self, texts: object) -> object:
        return self.answers.pop(0)

    async def close(self) -> None:
        return None


@pytest.mark.parametrize(
    "answer",
    [
        [[1.0, 2.0]],
        [[1.0, 2.0], [1.0]],
        [[], []],
        [],
        [[1.0, float("nan")], [1.0, 1.0]],
        [[1.0, float("inf")], [1.0, 1.0]],
        [["a", "b"], ["c", "d"]],
        None,
    ],
)
async def test_M12_wrong_vectors_are_not_used(answer: object) -> None:
    embedder = Embedder(Vectors(answer))
    assert await failure(embedder.embed(["a", "b"])) == "transient bad_vectors"


async def test_M12_the_dimension_does_not_change() -> None:
    embedder = Embedder(Vectors([[1.0, 2.0]], [[1.0, 2.0, 3.0]]))
    await embedder.embed(["a"])
    assert await failure(embedder.embed(["a"])) == "transient bad_vectors"


def test_importing_the_clients_loads_no_library() -> None:
    heavy = ["aiohttp", "openai", "trafilatura", "numpy", "wordllama", "ada_url", "protego", "lxml"]
    code = (
        "import sys; import onceflow.clients; onceflow.clients.Http(); onceflow.clients.Llm();"
        f" print([n for n in {heavy!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_loading_the_model_leaves_the_programs_logging_as_it_was() -> None:
    """The package behind it calls `logging.basicConfig` when it is imported."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with embed._log_as_it_was():
        root.addHandler(logging.NullHandler())
        root.setLevel(logging.INFO)
    assert (root.handlers, root.level) == (handlers, level)
