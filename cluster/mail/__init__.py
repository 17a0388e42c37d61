"""Events of one partition from their delivery to their acknowledgement: lists, moves to HELD, floors."""
