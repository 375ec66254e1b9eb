"""Panels and queries of the dashboard for Grafana, as scripts/grafana_dashboard.py puts them together.

``instance`` and ``mount`` together identify a mount: two machines may serve the same path. ``redoxfs_up`` has no
``node``, so no query selects it by one. Rates are over ``$__rate_interval``, which Grafana derives from the interval of
scrapes.
"""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    timeseries,
)
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.common import (
    AxisPlacement,
    BigValueColorMode,
    BigValueGraphMode,
    HeatmapCellLayout,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Of a panel, and so of its queries."""

OF_TARGET = 'job=~"$job",instance=~"$instance"'
OF_UP = f'{OF_TARGET},mount=~"$mount"'
OF_MOUNT = f'{OF_UP},node=~"$node"'

MOUNT = "{{instance}} {{mount}}"
"""The legend of one line a mount."""

BY_MOUNT = "instance, mount"

WAITED = "in_flight|demand|remote"
"""Outcomes of opens whose bytes were not in memory when the open came."""

WIDTH = 24
"""Columns of Grafana's grid."""

GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"

OUTCOMES = {
    "resident": GREEN,
    "in_flight": YELLOW,
    "demand": "orange",
    "remote": BLUE,
    "direct": "purple",
    "failed": RED,
}
"""The same colour in each panel."""

EACH_S = "suffix:/s"
"""The unit of things in a second."""


def value(name: str, *labels: str, of: str = OF_MOUNT) -> str:
    """The series of a metric, for the mounts that the variables select."""
    return f"redoxfs_{name}{{{','.join((of, *labels))}}}"


def rate(name: str, *labels: str) -> str:
    return f"rate({value(name, *labels)}[$__rate_interval])"


def total(name: str, *labels: str, by: str = "") -> str:
    """The rate of all series together, or together for each ``by``."""
    return f"sum{f' by ({by})' if by else ''}({rate(name, *labels)})"


def from_storage(by: str = "") -> str:
    """The rate of bytes from storage. The counter has those of --cache too, which only some mounts have."""
    read = rate("storage_read_bytes_total")
    without = f"{read} - ({rate('cache_read_bytes_total')} or 0 * {read})"
    return f"sum by ({by})({without})" if by else without


def share(part: str, whole: str) -> str:
    """Nothing, and not NaN, while there is nothing to take a share of."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, name: str, *labels: str, by: str = "") -> str:
    series = total(f"{name}_bucket", *labels, by=f"le, {by}" if by else "le")
    return f"histogram_quantile({q}, {series})"


def query(expression: str, legend: str = MOUNT) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).range()


def instant(expression: str, legend: str = "__auto") -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).instant()


def lettered(queries: Sequence[prometheus.Dataquery]) -> list[prometheus.Dataquery]:
    return [each.ref_id(chr(ord("A") + number)) for number, each in enumerate(queries)]


def thresholds(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    made = [Threshold(value=at, color=color) for at, color in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: prometheus.Dataquery,
    is_stacked: bool = False,
    most: float | None = None,
    soft_most: float | None = None,
    width: int = 12,
) -> timeseries.Panel:
    """Lines over time, from zero.

    The legend has a row for each mount, with the last and the largest value; names that are fixed stand in one line.
    ``soft_most`` is the least end of the axis, where usual values are zero.
    """
    by_mount = any("{{instance}}" in str(each.build().legend_format) for each in queries)
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE if by_mount else LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"] if by_mount else [])
    )
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .unit(unit)
        .min(0)
        .targets([*lettered(queries)])
        .legend(legend)
        .tooltip(tooltip)
        .fill_opacity(30 if is_stacked else 8)
        .line_width(1)
        .show_points(VisibilityMode.AUTO)
        .span(width)
        .height(9)
    )
    if most is not None:
        panel.max(most)
    if soft_most is not None:
        panel.axis_soft_max(soft_most)
    if is_stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    return panel


def coloured(panel: timeseries.Panel) -> timeseries.Panel:
    """With the colours of outcomes, which are its legend."""
    for name, color in OUTCOMES.items():
        panel.override_by_name(name, [DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})])
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    expression: str,
    *steps: tuple[float | None, str],
    decimals: int | None = None,
    width: int = 3,
) -> stat.Panel:
    """One large number with its course behind it, coloured by ``steps``."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .unit(unit)
        .targets([*lettered([query(expression, title)])])
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(thresholds(*(steps or ((None, BLUE),))))
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.AREA)
        .span(width)
        .height(4)
    )
    if decimals is not None:
        panel.decimals(decimals)
    return panel


def variable(name: str, label: str, description: str, metric: str, of: str) -> dashboard.QueryVariable:
    """A choice of values of the label ``name``, of all of them at first."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(PROMETHEUS)
        .query({"query": f"label_values(redoxfs_{metric}{f'{{{of}}}' if of else ''}, {name})", "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        # Also what has no such label, and what was not there yet when the page was loaded.
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def times() -> heatmap.Panel:
    return (
        heatmap.Panel()
        .title("How long opens took")
        .description(
            "How many opens took how long. Brighter cells have more opens. Each row is twice as long as the one below."
        )
        .datasource(PROMETHEUS)
        .targets(
            [
                *lettered(
                    [
                        query(
                            f"sum by (le) (increase({value('open_duration_seconds_bucket')}[$__rate_interval]))",
                            "{{le}}",
                        ).format(PromQueryFormat.HEATMAP)
                    ]
                )
            ]
        )
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("Blues")
            .scale(HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .y_axis(heatmap.YAxisConfig().unit(units.Seconds).axis_placement(AxisPlacement.LEFT))
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.AUTO))
        .show_tooltip()
        .span(8)
        .height(9)
    )
