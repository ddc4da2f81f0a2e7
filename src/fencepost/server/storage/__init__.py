"""Topics and partitions on the disk, and the chores that keep them in shape."""
