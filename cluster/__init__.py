"""Nodes, partitions, deployments, drain, operators' views: who serves which actor, and how (PROTOCOL 3)."""
