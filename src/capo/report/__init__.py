"""Figures, statistics and pages made from data files."""
