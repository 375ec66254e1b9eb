"""The decision which files of a tree are samples, and which classes they form: from a tree to its catalog."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redoxfs.arrays import offsets_of, ranges
from redoxfs.dataset.beside import Beside
from redoxfs.dataset.catalog import TURN_OFF, Catalog, Finding, Mode, Verdict
from redoxfs.dataset.classes import Classes, label_by_directory, label_by_table, make_classes, refuse_two_labels
from redoxfs.dataset.classes_dir import apply_classes_dir
from redoxfs.dataset.errors import ClassesError, show
from redoxfs.dataset.evidence import judge
from redoxfs.dataset.groups import TOGETHER, Groups, check_groups, make_groups
from redoxfs.dataset.members import LABELLED, MEMBER, Contents, read_labels, role_of
from redoxfs.dataset.samples import sample_mask
from redoxfs.dataset.script_splits import script_splits
from redoxfs.dataset.tree import CONTROL_NAME, Tree

NAMED = ("auto", "dir", "any", "sampler", "none")
"""All else is the path of a table, or names a member (`redoxfs.dataset.members`)."""


def is_table(classes: str) -> bool:
    """Whether a value of --classes is the path of a table."""
    return classes not in NAMED and not classes.startswith(MEMBER)


# Class trees named in the verdict's line before "and N more". It has to stay one line.
TREES_SHOWN = 4


def check_options(classes: str, groups: str | None, *, reads_members: bool = False) -> None:
    """Find what is wrong with options of `build_catalog` before there is a tree. Raises ClassesError.

    ``reads_members``: it will have the contents of files.
    """
    check_groups(groups)
    if role_of(classes) is not None and not reads_members:
        raise ClassesError(_members_elsewhere(classes))
    if is_table(classes):
        from redoxfs.dataset.table import check_table

        check_table(classes)


def build_catalog(
    tree: Tree,
    *,
    classes: str = "auto",
    samples: tuple[str, ...] = (),
    groups: str | None = None,
    root_fd: int | None = None,
    beside: Beside | None = None,
    contents: Contents | None = None,
) -> Catalog:
    """Decide which files of `tree` are redirected, and within which classes.

    `classes` is auto, dir, any, sampler, none, member:SUFFIX, or the path of a csv. `samples` are globs replacing the
    list of data extensions. `groups` is None, "stem" or a template. `root_fd`, open on the directory, and `beside` are
    evidence for auto, which redirects less without them. `contents` reads members. Raises ClassesError if the options
    contradict the tree or each other. If nothing can be redirected, that is no error, and the verdict gives the reason.
    """
    check_groups(groups)
    mask = sample_mask(tree, samples)
    sample_files = int(np.count_nonzero(mask))
    saw = [f"{tree.skipped:,} sockets, fifos and devices are left out"] if tree.skipped else []
    if tree.control_left_out:
        saw.append(f"{show(CONTROL_NAME)} in the source is left out: the mount's control folder has that name")
    splits: tuple[Finding, ...] = ()
    if classes == "none":
        line = "not redirecting: --classes none; every open returns the file that it names"
        return _nothing(tree, Verdict(classes, "none", line, tuple(saw)), sample_files)
    if classes == "auto":
        judged = judge(tree, mask, grouped=groups is not None, root_fd=root_fd, beside=beside)
        splits = judged.findings
        if judged.refusal is not None:
            line = f"not redirecting: {judged.refusal}"
            return _nothing(tree, Verdict(classes, "none", line, tuple(saw), splits), sample_files)
    mode: Mode = "dir" if classes in ("auto", "dir") else "csv"
    if classes in ("any", "sampler"):
        mode = "any" if classes == "any" else "sampler"
    if role_of(classes) is not None:
        mode = "member"
    nothing = _no_samples(mode, samples, groups)
    columns: tuple[frozenset[str], ...] = ()
    if mode == "csv":
        from redoxfs.dataset.table import label_groups, read_table

        table = read_table(tree, classes)
        sample_files = int(np.count_nonzero(mask | (table.label >= 0)))
        if not samples:
            # The table lists the samples, whatever their extensions.
            mask = table.label >= 0
        found = make_groups(tree, mask, groups, named=bool(samples))
        label = label_groups(tree, table, found)
        found, label = found.only(label >= 0), label[label >= 0]
        labels = label_by_table(tree, found, table.class_of[label], table.classes, table.split_of[label], table.splits)
        saw += table.saw
        columns = table.split_values
    else:
        found = make_groups(tree, mask, groups, named=bool(samples))
        if classes == "auto":
            found = found.only(_lies_in(tree, found, judged.directories))
        if classes == "dir":
            by_dir = apply_classes_dir(tree, mask, found, grouped=groups is not None, root_fd=root_fd)
            found = found.only(_lies_in(tree, found, by_dir.directories))
            splits = by_dir.findings
            saw += by_dir.warnings
            if by_dir.left_out is not None and len(found):
                saw.append(f"not redirected: {by_dir.left_out}")
            elif by_dir.left_out is not None:
                nothing = f"not redirecting: {by_dir.left_out}"
        if mode == "dir":
            labels = label_by_directory(tree, found)
        elif mode == "member":
            if contents is None:
                raise ClassesError(_members_elsewhere(classes))
            labels = label_by_table(tree, found, *read_labels(tree, found, classes, contents))
        else:
            labels = label_by_table(tree, found, np.zeros(len(found), np.int64), [""])
    saw += found.saw
    if not len(found):
        return _nothing(tree, Verdict(classes, mode, nothing, tuple(saw), splits), sample_files)
    refuse_two_labels(tree, found, labels)
    made = make_classes(tree, found, labels)
    saw += made.saw
    if mode != "sampler":
        names = [*labels.split_names, *labels.names.values()]
        saw += filter(None, [script_splits(tree, names, columns, beside)])
        # A label is right, whenever it is read.
        has_more = mode != "member" or max(map(len, found.kinds)) > LABELLED
        saw += [TOGETHER] if groups is not None and has_more else []
    verdict = Verdict(classes, mode, _line(classes, mode, made, len(found)), tuple(saw), splits)
    return _number(tree, found, made, verdict, sample_files)


def _members_elsewhere(classes: str) -> str:
    return f"--classes {classes} is for tar archives; the labels of other files belong in a table, FILE.csv"


def _lies_in(tree: Tree, found: Groups, directories: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each sample whether it lies in one of ``directories`` itself."""
    is_one = np.zeros(len(tree), np.bool_)
    is_one[directories] = True
    return is_one[tree.parent[found.first]]


def _no_samples(mode: Mode, samples: tuple[str, ...], groups: str | None) -> str:
    if groups is not None:
        return f"not redirecting: no complete sample for --groups {groups}; check the template against the source"
    if samples:
        return f"not redirecting: no file matches --samples {' '.join(samples)}"
    if mode == "csv":
        return "not redirecting: the table lists no files"
    return "not redirecting: no file has a known data extension; select the samples with --samples GLOB"


def _line(asked: str, mode: Mode, made: Classes, samples: int) -> str:
    """`redirecting within 1,000 class directories (train 500, val 500); …`."""
    weight = made.tree_of[made.class_of] if mode in ("any", "sampler") else made.tree_of
    per_tree = np.bincount(weight, minlength=len(made.trees)).tolist()
    shown = [f"{tree} {count:,}" for tree, count in zip(made.trees, per_tree, strict=True) if tree != "."]
    if len(shown) > TREES_SHOWN:
        shown = shown[:TREES_SHOWN] + [f"and {len(shown) - TREES_SHOWN:,} more"]
    where = f" ({', '.join(shown)})" if shown else ""
    count = len(made.names)
    if mode == "dir":
        what = f"{count:,} class director{'y' if count == 1 else 'ies'}"
        why = TURN_OFF if asked == "auto" else ", by --classes dir"
        return f"redirecting within {what}{where}{why}"
    if mode == "any":
        within = ", within each split" if shown else ""
        return f"redirecting among {samples:,} samples{where}{within}: --classes any says that there are no labels"
    if mode == "sampler":
        return f"not redirecting: a sampler draws from {samples:,} samples{where}, by --classes sampler"
    what = f"{count:,} class{'' if count == 1 else 'es'}"
    if mode == "member":
        return f"redirecting within {what}{where}, by --classes {asked}"
    return f"redirecting within {what}{where} of the table {asked}"


def _number(tree: Tree, found: Groups, made: Classes, verdict: Verdict, sample_files: int) -> Catalog:
    first = found.first
    places, place = np.unique(tree.parent[first], return_inverse=True)
    by_path = sorted(range(len(places)), key=[tree.path(entry) for entry in places.tolist()].__getitem__)
    rank = np.empty(len(places), np.int64)
    rank[by_path] = np.arange(len(places))
    order = np.lexsort((first, rank[place], made.class_of))
    lengths = np.diff(found.member_at)[order]
    return Catalog.of_samples(
        tree,
        offsets_of(lengths),
        found.members[ranges(found.member_at[:-1][order], lengths)],
        class_of=made.class_of[order],
        class_names=made.names,
        class_trees=made.trees,
        tree_of_class=made.tree_of,
        verdict=verdict,
        sample_files=sample_files,
    )


def _nothing(tree: Tree, verdict: Verdict, sample_files: int) -> Catalog:
    return Catalog.of_samples(
        tree,
        np.zeros(1, np.int64),
        np.zeros(0, np.int32),
        class_of=np.zeros(0, np.int32),
        class_names=[],
        class_trees=[],
        tree_of_class=np.zeros(0, np.int32),
        verdict=verdict,
        sample_files=sample_files,
    )
