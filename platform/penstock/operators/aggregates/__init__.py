"""Aggregating operators without windows, and the schemas that they share with the window operators."""
