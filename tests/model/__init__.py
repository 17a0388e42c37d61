"""An explicit-state model of the protocol as it is implemented, and its exhaustive, bounded search. See README.md."""
