from drills.dependencies import pins
from drills.frame import ROOT, Tally
from drills.supply import FIGURES, check_code


def test_no_code_runs_what_it_reads_or_reaches_the_network() -> None:
    tally = Tally(*FIGURES)
    check_code(tally)
    assert tally.failures == []


def test_the_page_of_dependencies_has_the_pinned_versions() -> None:
    lines = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").splitlines()
    listed = dict(line.strip("| ").split(" | ")[:2] for line in lines if line.startswith("| ") and "==" not in line)
    del listed["package"]
    assert len(listed) > 80
    assert listed.items() <= pins().items(), "run make licenses"
