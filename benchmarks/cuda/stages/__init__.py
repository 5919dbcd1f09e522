"""One module for each stage; its `run(size)` measures, and returns an `Outcome`."""
