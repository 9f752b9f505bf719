"""Ranking texts by their relevance to others, offline."""
