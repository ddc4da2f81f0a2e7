"""The server's metrics.

state.py        the server's state at one moment, read on the loop
families.py     that state as Prometheus metrics
exposition.py   families as text
scrapes.py      one scrape at a time, from the state to the text

`fencepost generate` prints dashboard.json, for Grafana, and alerts.yml, for Prometheus.
"""
