"""Helpers of the Python tests: writers, the reference computation, and a mount to look at."""
