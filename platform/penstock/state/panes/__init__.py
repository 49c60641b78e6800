"""Tables of windows, running aggregates and sessions; opened by `state.store`."""
