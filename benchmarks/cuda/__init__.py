"""Tests and measurements that need a GPU, in one command: `make cuda`, or `python -m benchmarks.cuda --help`."""
