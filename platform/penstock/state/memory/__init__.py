"""Budget, limits and the LRU order of keys in memory; used by all state tables."""
