"""Kernels that order rows, build rows and join them; called by state tables."""
