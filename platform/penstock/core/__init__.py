"""The vocabulary every other package speaks: ids, stream elements, clock, errors.

Imports nothing of penstock above itself.
"""
