"""The server as a process of its operating system.

child.py         a server as a child process
control.py       the socket on which a backup asks for the data of one moment, and `config reload` for a reload
systemd.py       readiness and signs of life for systemd
reporting.py     log lines on stderr
log_events.py    stable names for the lines of the log
line_thread.py   a thread that writes lines, so that the loop waits for none
stacks.py        what every thread and task does, for a debug bundle
tuning.py        short garbage collections, short waits for the interpreter's lock, freed memory kept, open files
"""
