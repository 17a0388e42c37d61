"""What an owner does with a partition: its actors, their turns and commits, and what it answers about them."""
