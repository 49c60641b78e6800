"""Kernels that hash, index and split keys; called by state tables and the network."""
