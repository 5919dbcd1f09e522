"""One module for each stage; its `run(workload)` measures, and returns a `StageResult`."""
