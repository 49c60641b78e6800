"""The vocabulary every other package speaks: ids, stream elements, clock, errors; imports nothing of penstock above itself."""
