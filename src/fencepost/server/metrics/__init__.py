"""The server's metrics.

state.py        the server's state at one moment, read on the loop
columns.py      partitions and committed offsets, one list per figure
record_lag.py   the lag of groups in records, counted in a thread
families.py     that state as Prometheus metrics
exposition.py   families as text
wide.py         the families with a series per partition, as text
dashboard.py    a Grafana dashboard of these metrics
alerts.py       alerting rules, and a configuration for Prometheus
scrapes.py      one scrape at a time, from the state to the text
"""
