"""Kernels of aggregates, windows and their accumulators; called by state tables and operators."""
