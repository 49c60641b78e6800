"""The operator protocol and the built-in operators, the elements of a chain."""
