"""`fencepost generate`: files for Prometheus and Grafana, on stdout."""

from __future__ import annotations

import json

import click

_TARGET = "127.0.0.1:9644"


@click.group()
def generate() -> None:
    """Print a dashboard, alerts and a configuration for monitoring.

    \b
    Examples:
      fencepost generate prometheus-config > prometheus.yml
      fencepost generate alerts > fencepost-alerts.yml
      fencepost generate grafana-dashboard > fencepost.json
    """


@generate.command("grafana-dashboard")
def grafana_dashboard() -> None:
    """Print a dashboard for Grafana.

    Import it in Grafana (Dashboards, New, Import), or put it into a folder of provisioned dashboards.

    \b
    Examples:
      fencepost generate grafana-dashboard > fencepost.json
    """
    from fencepost.server.metrics.dashboard import make_dashboard

    click.echo(json.dumps(make_dashboard(), indent=2))


@generate.command("prometheus-config")
@click.option(
    "--target", "targets", multiple=True, metavar="HOST:PORT", help=f"HTTP port of a server [default: {_TARGET}]."
)
@click.option("--https", is_flag=True, help="The port speaks HTTPS (http.listener).")
@click.option("--user", help="Log in as this user, with the password in the file fencepost-password.")
def prometheus_config(targets: tuple[str, ...], https: bool, user: str | None) -> None:
    """Print a scrape configuration for Prometheus.

    \b
    Examples:
      fencepost generate prometheus-config > prometheus.yml
      fencepost generate prometheus-config --target logs-1:9644 --https --user prometheus
    """
    from fencepost.server.metrics import alerts as rules

    click.echo(rules.prometheus_config(targets or (_TARGET,), https=https, user=user))


@generate.command()
def alerts() -> None:
    """Print alerting rules for Prometheus.

    They expect the job name `fencepost`, as `prometheus-config` writes it. Each rule says what to do about it; adjust
    thresholds to your load.

    \b
    Examples:
      fencepost generate alerts > fencepost-alerts.yml
      fencepost generate alerts | promtool check rules
    """
    from fencepost.server.metrics.alerts import alert_rules

    click.echo(alert_rules())
