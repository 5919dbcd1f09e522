"""Everything from Python: train, load, save, evaluate, plot."""
