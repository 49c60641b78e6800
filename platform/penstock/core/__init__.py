"""The shared vocabulary of all packages: ids, stream elements, clock, errors.

Imports no other package of penstock.
"""
