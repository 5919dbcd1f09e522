"""The modules that an exported page's script is bundled from, under Node, on the page as it was
written.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import gpt
from patience import PATIENCE
from programs import find_node

SOURCES = Path(gpt.__file__).parent / "extras" / "web" / "src"
MODULES = {
    "colors.js": ("colorOf", "colorOfBits", "paint"),
    "engine/model.js": ("Model",),
    "engine/sampling.js": ("Twister", "bitsOf", "probabilitiesOf"),
    "engine/source.js": ("LocalSource",),
    "engine/text.js": ("Text",),
    "engine/tokenizer.js": ("Tokenizer",),
    "engine/weights.js": ("decodeBase64",),
    "views/about.js": ("describeMaking", "describeText"),
    "views/heads.js": ("Heads",),
    "views/picture_numbers.js": ("Numbers",),
    "views/picture_parts.js": ("describeParts",),
    "views/kinds.js": ("measureHeads", "mostTelling"),
}
READER = """
import { readFileSync } from "node:fs";
const page = readFileSync(0, "utf8");
const part = (id) => page.match(new RegExp(`id="${id}">([^<]*)<`))?.[1];
const data = JSON.parse(part("data") ?? "null");
const newModel = () => new Model(data, decodeBase64(part("weights")));
const newSource = () => {
  const { tokenizer, labels, learning, facts } = data;
  return new LocalSource(newModel(), new Tokenizer(tokenizer), labels, learning, facts.marks);
};
"""


def run_page(page: str, code: str) -> Any:
    """Return what `code`, which sees the constants above and what the modules export, makes of a
    page.
    """
    imports = [
        f"import {{ {', '.join(names)} }} from '{(SOURCES / file).as_uri()}';"
        for file, names in MODULES.items()
    ]
    program = "\n".join(
        [*imports, READER, f"console.log(JSON.stringify(await (async () => {{ {code} }})()));"]
    )
    command = [find_node(), "--input-type=module", "--eval", program]
    result = subprocess.run(
        command, input=page, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)
