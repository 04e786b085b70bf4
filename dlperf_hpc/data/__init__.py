"""Files of training samples: what is written by ``prepare`` and read by the training feeds."""
