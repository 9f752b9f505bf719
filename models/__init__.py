"""Plain data and pure rules: no clock, no network, no randomness."""
