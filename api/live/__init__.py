"""How watchers learn what is new: one shared read of a session for all of them."""
