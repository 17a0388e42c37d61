"""What this node holds: partitions and lanes, from their attach to their release."""
