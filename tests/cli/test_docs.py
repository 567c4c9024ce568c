"""The page of the command line is what the program itself says."""

from scripts.cli_docs import PAGE, page


def test_the_page_is_the_help_of_every_command() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m scripts.cli_docs"
