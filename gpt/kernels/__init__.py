"""Kernels of our own in C++, for processors on which they are quicker than what torch has."""
