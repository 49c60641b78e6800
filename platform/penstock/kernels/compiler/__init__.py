"""Compiling, bundling and loading of kernels; used by every kernel."""
