"""From plain text to files of training samples: what the ``prepare`` verb does."""
