"""Let the tokenizer of an exported folder end texts at a line end, as docs/export.md says, and
print its id.
"""

import sys

from transformers import AutoTokenizer

AutoTokenizer.from_pretrained(sys.argv[1], eos_token="\n").save_pretrained(sys.argv[1])
print(AutoTokenizer.from_pretrained(sys.argv[1]).eos_token_id)
