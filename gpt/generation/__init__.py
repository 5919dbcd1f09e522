"""Generation: token sampling, and text from a model; `runtime` prepares a model for it."""
