"""Tables of panes, values, collections, timers and join rows; opened by `state.store`."""
