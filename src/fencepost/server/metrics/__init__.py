"""The server's metrics: `scrape.py`, one pass over the views (`server.views`) and counters, from the loop to the text.

`fencepost generate` prints dashboard.json, for Grafana, and alerts.yml, for Prometheus.
"""
