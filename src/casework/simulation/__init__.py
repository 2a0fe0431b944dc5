"""The simulator: every race replayed from a seed; see docs/design/simulator.md."""
