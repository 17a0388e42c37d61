"""Who may own what, and act: the records of nodes and partitions, the plan that shares partitions out, the lease and its guard."""
