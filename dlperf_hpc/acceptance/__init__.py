"""The acceptance pack: what a first run on a GPU node must show, as one command with a budget."""
