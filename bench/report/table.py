"""Tables: the figures of every section, broker beside broker, and the goals with what was reached."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.goals import Judgement, judge
from bench.results import Results, Series

_MOST_COLUMNS = 4


def show(results: Results, console: Console) -> None:
    about = results.about
    machine = about["machine"]
    console.print(
        f"\n[bold]{about['date']}[/bold], {machine['cores']} cores {machine['cpu']}, "
        f"{machine['memory_gib']} GiB, {machine['system']}, load before {machine['load_before']}; {about['run']}"
    )
    console.print(", ".join(f"{name} {version}" for name, version in about["versions"].items()), highlight=False)
    for section in results.sections():
        console.print(_figures(results, section))
    console.print(_goals(list(judge(results))))


def _figures(results: Results, section: str) -> Table:
    """A row for everything that was measured and a column for whom, or the other way round where there are many."""
    targets, measured = results.targets(section), results.labels(section)
    across = len(targets) > _MOST_COLUMNS
    unit = next(series.unit for series in results if series.section == section)
    title = f"{section}, {unit}: median (min..max)" if across else f"{section}: median (min..max)"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("what", no_wrap=across)
    for heading in [" ".join(labels) for labels in measured] if across else targets:
        table.add_column(heading, justify="right")
    for row in targets if across else measured:
        if isinstance(row, str):
            cells = [results.get(section, labels, row) for labels in measured]
        else:
            cells = [results.get(section, row, target) for target in targets]
        what = row if isinstance(row, str) else " ".join(row) or section
        table.add_row(what, *("" if cell is None else _cell(cell, with_unit=not across) for cell in cells))
    return table


def _cell(series: Series, *, with_unit: bool) -> str:
    text = f"{number(series.median)} {series.unit}" if with_unit else number(series.median)
    if len(series.values) > 1:
        text += f" ({number(min(series.values))}..{number(max(series.values))})"
    if series.server_cpu and series.unit == "MB/s":
        text += f"\nserver {sum(series.server_cpu) / len(series.server_cpu):.2f} CPU s"
        if series.client_cpu:
            text += f", client {sum(series.client_cpu) / len(series.client_cpu):.2f}"
    return text


def _goals(judgements: list[Judgement]) -> Table:
    met = sum(judgement.met for judgement in judgements)
    table = Table(title=f"goals: {met} of {len(judgements)} reached", title_justify="left", title_style="bold")
    for heading in ("goal", "of", "ratio", "spread", ""):
        table.add_column(heading)
    for judgement in judgements:
        table.add_row(
            f"{judgement.goal.section} {' '.join(judgement.labels)}",
            f"{judgement.goal.ours} {judgement.goal}",
            number(judgement.median),
            f"{number(min(judgement.values))}..{number(max(judgement.values))}",
            "[green]reached[/green]" if judgement.met else "[red]missed[/red]",
        )
    return table


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
