"""The result of convergence.py as a table, as a page and as a figure."""

import importlib
from pathlib import Path
from typing import Any

from results import table

PAPER = {"15 GB": (75.60, 92.71), "25 GB": (75.65, 92.70), "35 GB": (75.61, 92.65), "60 GB": (75.63, 92.70)}
PAPER_PLAIN = (75.61, 92.69)
"""Top-1 and top-5 accuracy of ResNet50 on ImageNet-1k after 90 epochs on two nodes, by the memory of a node."""

SIGNIFICANT = 0.05
COLORS = {"plain": "black", "pool": "tab:blue", "former pool": "tab:cyan", "slot": "tab:orange"}
CONTROL = "tab:red"
NODES = "three nodes"
"""The settings of nodes begin with it. They are recorded without a mount."""

HEADINGS = [
    "setting",
    "seeds",
    "accuracy, %",
    "less plain",
    "95 % interval",
    "p, t-test",
    "Holm",
    "Wilcoxon",
    "loss, less plain",
    "rank correlation",
    "class mix",
    "redirected",
]


def _line(row: dict[str, Any]) -> list[str]:
    accuracy, less, loss = row["accuracy"], row["accuracy_less_plain"], row["loss_less_plain"]
    deviation = "" if accuracy["deviation"] is None else f" ± {accuracy['deviation'] * 100:.2f}"
    return [
        row["setting"],
        str(row["seeds"]),
        f"{accuracy['mean'] * 100:.2f}{deviation}",
        f"{less['mean'] * 100:+.2f}" if less else "",
        interval(less, 100, 2) if less else "",
        *(_p(less.get(name) if less else None) for name in ("t_p", "holm_p", "wilcoxon_p")),
        f"{loss['mean']:+.4f} ({interval(loss, 1, 4)})" if loss else "",
        "" if row["rank_correlation"] is None else f"{row['rank_correlation']:.3f}",
        f"{row['class_mix']:.2f}",
        "" if row["redirected"] is None else f"{row['redirected']:.0%}",
    ]


def interval(less: dict[str, float | None], times: float, places: int) -> str:
    low, high = less["low"], less["high"]
    return "-" if low is None or high is None else f"{low * times:+.{places}f} to {high * times:+.{places}f}"


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def findings(report: dict[str, Any]) -> list[str]:
    """The findings, a sentence each."""
    rows = [row for row in report["rows"] if row["accuracy_less_plain"]]
    mounted = [row for row in rows if row["chunk_size"]]
    with_interval = [row for row in mounted if row["accuracy_less_plain"]["low"] is not None]
    found = []
    if with_interval:
        found.append(_of_mounts(with_interval))
        lowest = min(with_interval, key=lambda row: float(row["accuracy_less_plain"]["low"]))
        found.append(
            f"The least favourable interval is that of {lowest['setting']}: "
            f"{interval(lowest['accuracy_less_plain'], 100, 2)} points. So this measurement does not rule out a loss "
            f"of {max(0.0, -100 * lowest['accuracy_less_plain']['low']):.2f} points there."
        )
    elif mounted:
        found.append(
            "With one seed there is no interval, so these accuracies do not show whether mounts differ from plain "
            "reading."
        )
    found += [_of_halves(row) for row in mounted if len(row["halves"]) > 1]
    for both in report["together"]:
        less = both["accuracy_less_plain"]
        if less["low"] is not None:
            found.append(
                f"The {both['settings']} settings of the {both['kind']} together: {less['mean'] * 100:+.2f} points, "
                f"compared with plain reading in {_counted(both['seeds'])} ({interval(less, 100, 2)}, "
                f"p {_p(less['t_p'])})."
            )
    found += _of_laps(report)
    found += [
        _of_control(row) for row in rows if not row["chunk_size"] and row["accuracy_less_plain"]["low"] is not None
    ]
    for row in rows:
        if row["wrong_labels"] or row["not_once"]:
            found.append(f"{row['setting']}: {row['wrong_labels']} wrong labels, {row['not_once']} samples not once.")
    return found


def _of_mounts(rows: list[dict[str, Any]]) -> str:
    alone = [row for row in rows if _is_low(row["accuracy_less_plain"]["t_p"])]
    corrected = [row for row in rows if _is_low(row["accuracy_less_plain"]["holm_p"])]
    by_chance = f"of {len(rows)} settings, chance alone would give {len(rows) * SIGNIFICANT:.1f}"
    if not alone:
        return f"No setting of a mount differs from plain reading with p < {SIGNIFICANT}; {by_chance}."
    names = "; ".join(f"{row['setting']} ({row['accuracy_less_plain']['mean'] * 100:+.2f})" for row in alone)
    counted = "1 setting of a mount differs" if len(alone) == 1 else f"{len(alone)} settings of a mount differ"
    return (
        f"{counted} from plain reading with p < {SIGNIFICANT}: {names}; {by_chance}. "
        f"Corrected for the number of settings: {len(corrected) or 'none'}."
    )


def _of_halves(row: dict[str, Any]) -> str:
    first, others = (
        f"{half['accuracy_less_plain']['mean'] * 100:+.2f} points (p {_p(half['accuracy_less_plain']['t_p']) or '-'})"
        for half in row["halves"]
    )
    seeds = [half["seeds"] for half in row["halves"]]
    return (
        f"{row['setting']} has more seeds than other settings. The first {seeds[0]} differ from plain reading by "
        f"{first}, the other {seeds[1]} by {others}."
    )


def _of_laps(report: dict[str, Any]) -> list[str]:
    """The rank correlation of successive epochs, by policy."""
    of_kind: dict[str, list[float]] = {}
    for row in report["rows"]:
        if row["chunk_size"] and row["rank_correlation"] is not None:
            of_kind.setdefault(row["kind"], []).append(row["rank_correlation"])
    by_chance = 1 / (report["images"] - 1) ** 0.5
    return [
        f"Successive epochs of the {kind} have a rank correlation of {_span(values)}; two random shuffles have "
        f"0 ± {by_chance:.3f}."
        for kind, values in of_kind.items()
    ]


def _span(values: list[float]) -> str:
    """The least and the most, or one number if both read the same."""
    return " to ".join(dict.fromkeys(f"{value:.3f}" for value in (min(values), max(values))))


def _is_low(value: float | None) -> bool:
    return value is not None and value < SIGNIFICANT


def _of_control(row: dict[str, Any]) -> str:
    less = row["accuracy_less_plain"]
    verdict = "differs from plain reading" if _is_low(less["t_p"]) else "shows no difference from plain reading"
    figures = f"{less['mean'] * 100:+.2f} points, {interval(less, 100, 2)}, p {_p(less['t_p'])}"
    what = "" if row["kind"].startswith(NODES) else "The control "
    return f'{what}"{row["setting"]}" {verdict}: {figures}.'


def page(report: dict[str, Any]) -> str:
    """The page, in Markdown."""
    on, rows = report["machine"], report["rows"]
    seeds, fewest = (extreme(row["seeds"] for row in rows) for extreme in (max, min))
    few = f"{fewest} to " if fewest < seeds else ""
    former = report["commits"].get("against")
    hours = sum((row["record_s"] + row["train_s"]) * row["seeds"] for row in rows) / 3600
    lines = [
        "# Convergence (§5.6)",
        "",
        "Does redirection change the accuracy of a trained network? This experiment trains a small ResNet on "
        f"{report['images']:,} images of {report['data']} and tests it on {report['test_images']:,} others, for "
        f"{report['epochs']} epochs with {few}{_counted(seeds)}. It first records the orders of the samples through "
        "mounts, with an ordinary DataLoader of two workers, and then trains from memory in these orders. For the "
        "network only the order matters. The seed sets the first weights, the order of the loader and the chunks. "
        "Each setting is compared with plain reading of the same seed. The processes ran for "
        f"{hours:.1f} hours in all, on {on['cores']} cores, {on['cpu']}.",
        "",
        "K is the number of samples in a chunk; the percentage is the share of the samples in memory. The label of an "
        'image is its directory, except with "labels in files", where each image may stand in for any other. The files '
        "lie class by class, but redoxfs builds chunks of several classes.",
        "",
        "The settings without K are controls. They read in another random order, in one random order for all epochs, "
        'or in the order of a directory. "class shards, buffer" is the method of WebDataset, on shards of one class, '
        "with a buffer of a tenth of the images. *Redirected* is the share of opens that returned another file. *Class "
        "mix* compares the classes of a batch with their shares in the dataset. A random order has 1, and batches of "
        "few classes have more." + (f' "former pool" is the pool of commit {former}.' if former else ""),
        "",
        table(HEADINGS, map(_line, rows)),
        "",
        *(f"- {line}" for line in findings(report)),
        "",
        "![Accuracy over epochs, and the differences from plain reading](convergence.svg)",
        "",
        "The paper trains ResNet50 on ImageNet-1k for 90 epochs on two nodes, once for each size of memory "
        "(top-1 and top-5 accuracy, %). It gives no spread, so nobody can judge differences of a few hundredths:",
        "",
        table(
            ["memory of a node", "top-1", "top-5", "top-1 less PyTorch"],
            [
                *(
                    [name, f"{top1:.2f}", f"{top5:.2f}", f"{top1 - PAPER_PLAIN[0]:+.2f}"]
                    for name, (top1, top5) in PAPER.items()
                ),
                ["PyTorch", f"{PAPER_PLAIN[0]:.2f}", f"{PAPER_PLAIN[1]:.2f}", ""],
            ],
        ),
        "",
        "This experiment is smaller than the paper's: it has smaller images, a smaller network and one node. It adds "
        f"{'several seeds, a test, ' if seeds > 1 else ''}several sizes of chunks, both policies, and controls.",
    ]
    return "\n".join(lines) + "\n"


def page_short(report: dict[str, Any]) -> str:
    """What holds: of mounts, the finding that says the most against them, and of the pool as a whole."""
    mounted = [row for row in report["rows"] if row["chunk_size"] and row["accuracy_less_plain"]]
    told = [_of_mounts(mounted)] if any(row["accuracy_less_plain"]["low"] is not None for row in mounted) else []
    told += [
        f"The settings of the {both['kind']} together: {both['accuracy_less_plain']['mean'] * 100:+.2f} points "
        f"({interval(both['accuracy_less_plain'], 100, 2)})."
        for both in report["together"]
        if both["accuracy_less_plain"]["low"] is not None
    ]
    return " ".join(told) or f"{len(mounted)} settings were measured, with too few seeds to compare them."


def page_retained(report: dict[str, Any]) -> str:
    """The page of the settings that retain samples, in Markdown."""
    on, rows = report["machine"], report["rows"]
    lines = [
        "# Convergence with memory for half, and on nodes (§5.6)",
        "",
        "Samples that stay in memory from epoch to epoch are not read again. Does a network notice? This is [the same "
        f"experiment](convergence.md) with {_counted(max(row['seeds'] for row in rows))} and memory for half of the "
        'samples, most of which are retained. "three nodes" is what the core of three nodes that together hold '
        "everything gives a data-parallel job, in step and without a mount. They exchange the default share of "
        'samples, or, with "no exchange", only what a node lacks. Each is to be judged beside "another shuffle", which '
        f"differs from plain reading by chance alone. {on['cores']} cores, {on['cpu']}.",
        "",
        table(HEADINGS, map(_line, rows)),
        "",
        *(f"- {line}" for line in findings(report)),
        "",
        "![Accuracy over epochs, and the differences from plain reading](convergence-retained.svg)",
    ]
    return "\n".join(lines) + "\n"


def page_retained_short(report: dict[str, Any]) -> str:
    """What holds: each setting's interval, beside that of another shuffle."""
    named = [
        row for row in report["rows"] if row["accuracy_less_plain"] and row["accuracy_less_plain"]["low"] is not None
    ]
    told = [f"{row['setting']}: {interval(row['accuracy_less_plain'], 100, 2)}" for row in named]
    return f"Accuracy less plain, points: {'; '.join(told)}." if told else "Too few seeds to compare the settings."


def _counted(seeds: int) -> str:
    return "one seed, which is too few to tell a small difference from chance" if seeds == 1 else f"{seeds} seeds"


def plot(report: dict[str, Any], path: Path) -> None:
    """Accuracy over epochs, and the difference of each setting from plain reading with its interval."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(10, 5), dpi=150, layout="constrained")
    curves, differences = figure.subplots(1, 2, width_ratios=(1, 1.2))
    epochs = range(1, report["epochs"] + 1)
    named: set[str] = set()
    for row in filter(_has_curve, report["rows"]):
        kind = row["kind"] if row["kind"] in COLORS else "control"
        curves.plot(
            epochs,
            [value * 100 for value in row["accuracy_by_epoch"]],
            color=COLORS.get(kind, CONTROL),
            linewidth=2 if kind == "plain" else 1,
            label=None if kind in named else kind,
        )
        named.add(kind)
    curves.set(xlabel="epoch", ylabel="accuracy on the test images (%)", xticks=list(epochs))
    curves.legend()
    if left_out := [row for row in report["rows"] if not _has_curve(row)]:
        ends = ", ".join(f"{row['setting']} ({row['accuracy']['mean']:.0%})" for row in left_out)
        curves.set_title(f"not shown: {ends}", fontsize="small")
    rows = [row for row in reversed(report["rows"]) if _in_figure(row)]
    for place, row in enumerate(rows):
        less = row["accuracy_less_plain"]
        low, mean, high = (less[name] * 100 for name in ("low", "mean", "high"))
        differences.errorbar(
            mean, place, xerr=[[mean - low], [high - mean]], fmt="o", capsize=3, color=COLORS.get(row["kind"], CONTROL)
        )
    differences.axvline(0, color="black", linewidth=1)
    differences.set_yticks(range(len(rows)), [row["setting"] for row in rows])
    differences.set(xlabel="accuracy less plain (percentage points, 95 % interval)")
    figure.savefig(path)


MOST_SHOWN = 0.05
"""A control that loses more would leave no room for the others."""


def _has_curve(row: dict[str, Any]) -> bool:
    less = row["accuracy_less_plain"]
    return not less or less["mean"] > -MOST_SHOWN


def _in_figure(row: dict[str, Any]) -> bool:
    less = row["accuracy_less_plain"]
    return _has_curve(row) and bool(less) and less["low"] is not None
