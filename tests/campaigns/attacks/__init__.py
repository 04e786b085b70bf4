"""What another user of a shared file system may plant, and whether it bites."""
