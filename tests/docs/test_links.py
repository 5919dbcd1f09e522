"""Links and formulas of a page, as the site needs them."""

import pytest

from docs.site.links import adapt


@pytest.mark.parametrize(
    ("path", "link", "adapted", "made"),
    [
        ("docs/data.md", "training.md#model", "training.md#model", set()),
        ("docs/data.md", "../README.md#results", "readme.md#results", {"README.md"}),
        ("docs/data.md", "../gpt/system/files.py", "source/gpt/system/files.py.md", {"gpt/system/files.py"}),
        ("docs/book/1_x.md", "../../gpt/system/files.py", "../source/gpt/system/files.py.md", {"gpt/system/files.py"}),
        ("docs/book/1_x.md", "../data.md", "../data.md", set()),
        ("docs/data.md", "../notebooks/1_x.ipynb", "book/1_x.ipynb", set()),
        ("README.md", "docs/data.md", "data.md", set()),
        ("benchmarks/LOG.md", "../docs/attention.png", "../../attention.png", set()),
        ("docs/data.md", "https://arxiv.org/abs/1706.03762", "https://arxiv.org/abs/1706.03762", set()),
        ("docs/data.md", "#here", "#here", set()),
    ],
)
def test_links_lead_to_where_the_site_has_a_file(path: str, link: str, adapted: str, made: set[str]) -> None:
    assert adapt(f"See [it]({link}).", path) == (f"See [it]({adapted}).", made)


def test_formulas_need_no_script_and_code_stays() -> None:
    text, _ = adapt("$x$ and\n\n$$\ny\n$$\n\n`$z$ [a](../b)`\n\n````sh\n```\n$RUN $x\n````\n", "docs/data.md")
    assert text.count("<math") == 2
    assert text.endswith("`$z$ [a](../b)`\n\n````sh\n```\n$RUN $x\n````\n")
