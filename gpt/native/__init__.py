"""C++ kernels, for processors on which they are faster than torch."""
