"""Runs a benchmark's job in a process, meters it from outside and checks its answers. The jobs call it."""
