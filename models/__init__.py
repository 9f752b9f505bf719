"""What is true, and the rules that follow from data alone: no clock, no network, no chance."""
