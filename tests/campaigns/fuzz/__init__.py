"""Coverage-guided fuzzing of the log scanner; what it found is kept in ``findings``."""
