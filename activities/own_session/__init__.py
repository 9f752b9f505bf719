"""What an activity asks and tells the session that started it."""
