"""Figures, pictures and pages made from what runs and experiments wrote."""
