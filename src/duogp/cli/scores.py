"""Metrics of a model as the commands print them."""

from duogp.cli.output import number, percent
from duogp.reports.scores import TITLES


def metric_pairs(found: dict[str, float]) -> list[tuple[str, str]]:
    """Metrics for `print_pairs`; shares in per cent."""
    shares = ("coverage", "accuracy")
    return [(TITLES.get(n, n), percent(v) if n.startswith(shares) else number(v)) for n, v in found.items()]
