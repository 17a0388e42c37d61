"""Steps: those that this node runs, the loop of async ones, and the queues of those that workers run."""
