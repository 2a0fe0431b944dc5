"""Scenarios: what is run in a simulated world, and what must hold afterwards. Only these import programs."""
