"""Lessons for English questions: a single fact or a chain of two links, a comparison, two parallel rounds, several parts."""
