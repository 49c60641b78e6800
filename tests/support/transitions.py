"""State machines whose transitions are drawn in the docstring of their module."""


def drawn_in(module):
    """Return the transitions that are drawn in a module's docstring."""
    drawn = {}
    for line in (module.__doc__ or "").splitlines():
        left, arrow, right = line.partition("->")
        if arrow and left.strip().isupper():
            drawn[left.strip()] = set(right.split()) - {"."}
    return drawn
