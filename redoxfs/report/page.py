"""The page: what happened, mounts beside each other, each mount, tables of figures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from redoxfs import __version__
from redoxfs.report.charts import scrolled, written
from redoxfs.report.html import Html, escaped, joined, tag
from redoxfs.report.inputs import Figures, Input, MountRun
from redoxfs.report.mounts import compared, facts, of_mount
from redoxfs.report.words import Run

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1d2127;--soft:#5b626d;--rule:#dfe2e7;--tint:#f4f5f7;
--served:#2f5fc4;--storage:#b4530a;--wait:#a12a5e;--shuffle:#1b7a4b;
--resident:#7fa3e6;--in_flight:#e2b45f;--demand:#b4530a;--remote:#8b5bc9;--direct:#8d95a1;--failed:#c62030}
@media (prefers-color-scheme:dark){:root{--paper:#14171c;--ink:#e7e9ee;--soft:#a2aab7;--rule:#323843;--tint:#1d2129;
--served:#8cb0ff;--storage:#f09a52;--wait:#f08bb4;--shuffle:#63cf97;
--resident:#4f74bd;--in_flight:#c4913a;--demand:#f09a52;--remote:#b48bef;--direct:#7b8391;--failed:#ff7078}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:72rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 .3rem;overflow-wrap:anywhere}
h2{font-size:1.25rem;line-height:1.25;margin:2.5rem 0 .3rem;overflow-wrap:anywhere}
h3{font-size:1rem;margin:0;overflow-wrap:anywhere}
section{border-top:1px solid var(--rule);margin-top:2.5rem}
section>h2{margin-top:1.5rem}
.story{font-size:1.1rem;max-width:46rem;margin:.6rem 0 1rem}
.facts,.about,figcaption p,footer{color:var(--soft);font-size:.875rem;max-width:46rem;margin:.1rem 0;
overflow-wrap:anywhere}
.advice{max-width:46rem;margin:1rem 0;padding:.6rem 1rem .6rem 2rem;background:var(--tint);
border-left:3px solid var(--storage);overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:0 2.5rem}
figure{margin:1.8rem 0 0;min-width:0;display:flex;flex-direction:column}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;list-style:none;margin:.4rem 0 0;padding:0;font-size:.8125rem}
.key{display:inline-block;width:.75em;height:.75em;margin-right:.4em;border-radius:2px}
.plot{position:relative;margin:auto 0 1.9rem 4.4rem;height:11rem}
.legend+.plot,figcaption+.plot{top:0}figcaption,.legend{margin-bottom:.9rem}.legend{margin-top:-.5rem!important}
.plot svg{display:block;width:100%;height:100%;overflow:visible}
.ys span{position:absolute;right:100%;margin-right:.5rem;transform:translateY(-50%);white-space:nowrap}
.xs span{position:absolute;top:100%;margin-top:.25rem;transform:translateX(-50%);white-space:nowrap}
.xs .first{transform:none}.xs .last{transform:translateX(-100%)}
.ys,.xs{color:var(--soft);font-size:.75rem;font-variant-numeric:tabular-nums}
.grid{stroke:var(--rule);vector-effect:non-scaling-stroke;stroke-width:1px}
.line{fill:none;stroke-width:1.5px;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.area{stroke:none}
.mark{stroke:var(--ink);stroke-dasharray:3 3;vector-effect:non-scaling-stroke;stroke-width:1px}
.band{fill:var(--ink);opacity:0}.band:hover{opacity:.08}
details{margin:0 0 .5rem;font-size:.8125rem}
summary{cursor:pointer;color:var(--soft)}
.scroll{overflow-x:auto;max-width:100%;position:relative}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--served);outline-offset:2px}
table{border-collapse:collapse;font-size:.8125rem;font-variant-numeric:tabular-nums;margin:.5rem 0}
th,td{padding:.2rem .9rem .2rem 0;text-align:right;white-space:nowrap;font-weight:400}
th:first-child{text-align:left}
thead th{color:var(--soft);vertical-align:bottom}
tbody tr{border-top:1px solid var(--rule)}
.barred th:first-child{white-space:normal;min-width:6rem;max-width:18rem;overflow-wrap:anywhere}
.bars{width:14rem;min-width:5rem}
.bar{display:block;height:.7em;border-radius:1px}
footer{margin-top:3rem}
@media (max-width:40rem){.plot{margin-left:3.9rem}body{font-size:15px}}
@media print{.band{display:none}details{display:none}}
"""

KINDS = (
    "served", "storage", "wait", "shuffle", "resident", "in_flight", "demand", "remote", "direct", "failed"
)  # fmt: skip


BEGIN = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="redoxfs">'
"""Of each page."""


def page(inputs: Sequence[Input]) -> str:
    """A whole HTML document, which needs nothing else: no network, no script."""
    runs = _runs([each for each in inputs if isinstance(each, MountRun)])
    results = [each for each in inputs if isinstance(each, Figures)]
    title = "redoxfs report"
    if len(runs) == 1:
        title = f"redoxfs at {runs[0].name}"
    parts: list[Html] = [tag("h1", title)]
    if len(runs) == 1:
        parts += [facts(runs[0]), of_mount(runs[0])]
    elif runs:
        parts.append(compared(runs))
        parts += [tag("section", tag("h2", run.name), facts(run), of_mount(run)) for run in runs]
    parts += map(_result, results)
    parts.append(tag("footer", f"Made by redoxfs {__version__}. The page needs no network and no script."))
    colors = "".join(
        f".line.{kind}{{stroke:var(--{kind})}}.area.{kind}{{fill:var(--{kind})}}"
        f".key.{kind},.bar.{kind}{{background:var(--{kind})}}"
        for kind in KINDS
    )
    head = (
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escaped(title)}</title><style>{STYLE}{colors}</style>'
    )
    return f"{BEGIN}{head}</head>\n<body>{tag('main', joined(parts))}</body></html>\n"


def _runs(mounts: Sequence[MountRun]) -> list[Run]:
    """Runs with a name each: histories of one mountpoint are told apart by where they came from."""
    runs = [Run(each.history) for each in mounts]
    times = Counter(run.name for run in runs)
    return [
        replace(run, told_by=each.name) if times[run.name] > 1 else run for run, each in zip(runs, mounts, strict=True)
    ]


def _result(result: Figures) -> Html:
    return tag(
        "section",
        tag("h2", result.name),
        tag("p", result.about, class_="facts") if result.about else Html(),
        scrolled(written(result.table)),
    )
