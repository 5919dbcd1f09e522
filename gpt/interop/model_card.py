"""A page about an exported model, for whoever finds its folder."""

from collections.abc import Mapping
from typing import Any

from gpt.config import Config


def model_card(name: str, config: Config, state: Mapping[str, Any], parameters: int) -> str:
    """Return Markdown that says what the model of a run is, how well it does, and how to load it."""
    shape, data = config.model, config.data
    corpus = data.path or data.url or data.source
    rows = {
        "parameters": f"{parameters:,}",
        "layers, heads, width": f"{shape.n_layer}, {shape.n_head}, {shape.n_embd}",
        "context": f"{shape.block_size} tokens",
        "tokenizer": f"{data.tokenizer}, {shape.vocab_size} tokens",
        "corpus": str(corpus).rpartition("/")[2],
        "steps": f"{state.get('step', 0):,}",
    }
    if state.get("val_loss") is not None:
        rows["validation loss"] = f"{state['val_loss']:.4f} nats per token"
    unknown = " A character\noutside the vocabulary is read as another one." if data.tokenizer == "char" else ""
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# {name}

| | |
|---|---|
{table}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = AutoModelForCausalLM.from_pretrained("PATH")
ids = tokenizer("ROMEO:", return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens={min(200, shape.block_size // 2)})[0]))
```

The window does not slide in transformers: prompt and text together have at most {shape.block_size} tokens.{unknown}
"""
