"""NATS: connection, topology, frame store, delivery, timers, the in-memory twin (`seam` is the contract)."""
