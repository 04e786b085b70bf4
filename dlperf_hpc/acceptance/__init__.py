"""The acceptance pack: what a first run on a GPU node must show, as one command with a time budget.

``pack`` starts each check as a process of its own and keeps the table; ``checks/`` are what runs in
those processes, and may import torch.
"""
