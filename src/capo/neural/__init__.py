"""CAPO with networks."""
