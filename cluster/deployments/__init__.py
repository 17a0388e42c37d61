"""Which code there is and who can run what: what nodes registered, where new actors start, pins."""
