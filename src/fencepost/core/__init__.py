"""Rules without I/O, threads or clocks: events in, decisions out."""
