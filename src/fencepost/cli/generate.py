"""`fencepost generate`: files for Prometheus and Grafana, on stdout."""

from __future__ import annotations

import json
from importlib.resources import files

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
    click.echo(_file("dashboard.json"), nl=False)


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
    lines = [
        "global:",
        "  scrape_interval: 15s",
        "rule_files:",
        "  - fencepost-alerts.yml  # fencepost generate alerts > fencepost-alerts.yml",
        "scrape_configs:",
        "  - job_name: fencepost",
    ]
    if https:
        lines += ["    scheme: https", "    # tls_config: {ca_file: ca.pem}"]
    if user is not None:
        lines += [
            "    basic_auth:",
            f"      username: {_text(user)}",
            "      password_file: fencepost-password  # a user who may DESCRIBE the cluster",
        ]
    lines += ["    static_configs:", f"      - targets: [{', '.join(map(_text, targets or (_TARGET,)))}]"]
    click.echo("\n".join(lines))


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
    click.echo(_file("alerts.yml"), nl=False)


def _file(name: str) -> str:
    return files("fencepost.server.metrics").joinpath(name).read_text(encoding="utf-8")


def _text(value: str) -> str:
    """Return a YAML scalar in double quotes, whose escapes are those of JSON."""
    return json.dumps(value, ensure_ascii=False)
