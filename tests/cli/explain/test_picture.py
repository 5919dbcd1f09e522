from pathlib import Path

from cli.conftest import Call


def test_a_picture_is_a_page(here: Path, tmp_path: Path, run: Call) -> None:
    assert (
        run(f"explain picture --checkpoint runs/tiny --prompt 'It was' --html {tmp_path}/it.html").out
        == f"{tmp_path}/it.html\n"
    )
    page = (tmp_path / "it.html").read_text(encoding="utf-8")
    assert '"labels":["I","t","\\u2423","w","a","s"]' in page
    assert '"parts":["embedding","position","attn","mlp"]' in page
