"""Parallel-R1: train language models to think in parallel, exactly, from a laptop up."""

__version__ = "0.1.0"
