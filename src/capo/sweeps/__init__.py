"""Many trainings: tuning."""
