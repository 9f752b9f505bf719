"""Live updates for watching and polling clients, from one shared read of each session."""
