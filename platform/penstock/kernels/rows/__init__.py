"""Kernels that order, filter, split and join rows; called by state tables, operators and the network."""
