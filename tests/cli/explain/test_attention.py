import pytest
import torch

from cli.conftest import Call
from gpt.checkpoint import Loaded
from gpt.inspection.tracing.edits import zero
from gpt.inspection.views.attention import ablate_heads, attention_patterns, summarize_head

VIEW = "explain attention --prompt 'It was'"
LABELS = ["I", "t", "␣", "w", "a", "s"]
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def ids(loaded: Loaded) -> torch.Tensor:
    return torch.tensor(loaded.tokenizer.encode("It was").tolist())


@pytest.fixture
def patterns(loaded: Loaded, ids: torch.Tensor) -> torch.Tensor:
    return attention_patterns(loaded.model, ids)


def rows_of(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.split()[:1] == ["0"]]


def test_the_table_has_a_row_for_every_head(
    run: Call, loaded: Loaded, ids: torch.Tensor, patterns: torch.Tensor
) -> None:
    out = run(VIEW).out
    changes = ablate_heads(loaded.model, ids)
    assert len(rows_of(out)) == 2
    for head, row in enumerate(rows_of(out)):
        expected = [f"{value:.3f}" for value in vars(summarize_head(patterns[0, head])).values()]
        assert row == ["0", str(head), *expected, f"{changes[0, head]:+.4f}"]
    assert run(f"{VIEW} --layer 0").out == out


@pytest.mark.parametrize("chosen", [[], [0], [0, 1]], ids=str)
def test_json_holds_the_weights_and_the_figures_of_the_heads_that_are_shown(
    run: Call, loaded: Loaded, ids: torch.Tensor, patterns: torch.Tensor, chosen: list[int]
) -> None:
    options = [part for pair in zip(("--layer", "--head"), map(str, chosen), strict=False) for part in pair]
    found = run(f"{VIEW} --json", *options).json
    assert found["labels"] == LABELS
    assert [found["layer"], found["head"]] == [*chosen, None, None][:2]
    torch.testing.assert_close(torch.tensor(found["weights"]), patterns[tuple(chosen)], rtol=0, atol=1e-6)
    changes, shown = ablate_heads(loaded.model, ids), chosen[1:] or [0, 1]
    assert [(figures["layer"], figures["head"]) for figures in found["heads"]] == [(0, head) for head in shown]
    for figures, head in zip(found["heads"], shown, strict=True):
        assert figures["without_it"] == pytest.approx(float(changes[0, head]), abs=1e-6)
        for name, value in vars(summarize_head(patterns[0, head])).items():
            assert figures[name] == pytest.approx(value)


def test_an_edit_changes_weights_and_figures(run: Call, loaded: Loaded, ids: torch.Tensor) -> None:
    found = run(f"{VIEW} --json --edit blocks.0.attn.hook_q:1=0").json
    edits = {"blocks.0.attn.hook_q": zero(1)}
    weights, changes = (look(loaded.model, ids, edits) for look in (attention_patterns, ablate_heads))
    torch.testing.assert_close(torch.tensor(found["weights"]), weights, rtol=0, atol=1e-6)
    assert found["weights"][0][1][-1] == pytest.approx([1 / 6] * 6)  # no query, no preference
    assert [figures["without_it"] for figures in found["heads"]] == pytest.approx(changes[0].tolist())


def test_one_head_is_a_matrix_of_shades(run: Call) -> None:
    out = run(f"{VIEW} --layer 0 --head 0").out.splitlines()
    assert out[0].startswith("layer 0, head 0: rows: queries; columns: keys")
    assert [line[0] for line in out[2:]] == LABELS
    assert "██" in out[2]  # the first token looks at itself


def test_one_token_has_no_loss_to_change(run: Call) -> None:
    assert [row[-1] for row in rows_of(run("explain attention --prompt I").out)] == ["-", "-"]
    heads = run("explain attention --prompt I --json").json["heads"]
    assert [figures["without_it"] for figures in heads] == [None, None]
