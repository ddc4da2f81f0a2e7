"""Reading: fetches from all leaders at once, and ranges of offsets from one."""
