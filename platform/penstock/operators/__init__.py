"""What a chain is made of: the operator protocol and the built-in operators."""
