"""`redoxfs catalog`: write what a scan of SOURCE found and decided to a file, for mounts with --catalog; or show it."""

import json
import os
import stat
from datetime import datetime
from pathlib import Path
from typing import Any

from redoxfs.cli.jobs import end_as_by_ctrl_c
from redoxfs.cli.options.datasets import CatalogExportOptions, CatalogShowOptions
from redoxfs.cli.table import print_table
from redoxfs.launch.archives import with_archives
from redoxfs.launch.catalogs import check_is_catalog, export_catalog, open_catalog
from redoxfs.launch.errors import DestinationError, SourceUnusableError
from redoxfs.launch.path_status import EXACT_FOLDER, path_status
from redoxfs.launch.say import say
from redoxfs.launch.sizes import counted, format_bytes
from redoxfs.launch.source import catalog_of, check_source, holds_packed, open_root, say_verdict


def run(options: CatalogExportOptions | CatalogShowOptions) -> int:
    """Export a catalog, or show one."""
    return _show(options) if isinstance(options, CatalogShowOptions) else _export(options)


def _export(options: CatalogExportOptions) -> int:
    end_as_by_ctrl_c()
    source = path_status(options.source, options.timeout_s)
    if source.address is not None:
        raise SourceUnusableError(f"{source.asked}: is no directory of files, and a packed dataset needs no catalog")
    source = with_archives(source, options.timeout_s, options.dataset)
    if source.archives is not None:
        raise SourceUnusableError(
            f"{source.asked}: is no directory of files; mount it, and give MOUNTPOINT/{EXACT_FOLDER}"
        )
    check_source(source)
    path = _destination(options.file, source.path)
    root_fd = open_root(source)
    if holds_packed(source, root_fd):
        raise SourceUnusableError(f"{source.asked}: is a packed dataset, whose index is its catalog")
    catalog = catalog_of(source, root_fd, options.dataset, timeout_s=options.timeout_s)
    say_verdict(catalog.verdict)
    length = export_catalog(path, catalog, source, options.dataset)
    files = int(catalog.tree.kind_mask(stat.S_IFREG).sum())
    say(f"{options.file}: {counted(files, 'file')}, {format_bytes(length)}; use it with redoxfs mount --catalog")
    return 0


def _destination(asked: str, source: Path) -> Path:
    """The file to be written. Refused now rather than after the scan."""
    path = Path(os.path.realpath(asked))
    if source in path.parents:
        raise DestinationError(f"{asked}: lies inside SOURCE ({source}), and would be a part of the dataset")
    if not path.parent.is_dir():
        raise DestinationError(f"{asked}: {path.parent} is not a directory")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise DestinationError(f"{asked}: {path.parent} cannot be written to")
    check_is_catalog(path, asked)
    return path


def _show(options: CatalogShowOptions) -> int:
    file = open_catalog(options.file)
    catalog, tree = file.catalog, file.catalog.tree
    regular = tree.kind_mask(stat.S_IFREG)
    facts: dict[str, Any] = {
        **file.about,
        "classes_asked": file.asked["classes"],
        "samples_asked": file.asked["samples"],
        "groups_asked": file.asked["groups"],
        "verdict": catalog.verdict.line,
        "files": int(regular.sum()),
        "directories": int(tree.kind_mask(stat.S_IFDIR).sum()),
        "symlinks": len(tree.link_entry),
        "file_bytes": int(tree.size[regular].sum()),
        "samples": len(catalog.class_of),
        "classes": len(catalog.class_names),
        "class_trees": list(catalog.class_trees),
    }
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print_table(options.file, _rows(facts))
    return 0


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    asked = [f"--classes {'FILE.csv' if facts['classes_asked'] == 'table' else facts['classes_asked']}"]
    asked += [f"--samples {glob}" for glob in facts["samples_asked"]]
    asked += [] if facts["groups_asked"] is None else [f"--groups {facts['groups_asked']}"]
    when = datetime.fromtimestamp(facts["exported_at_s"]).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    directories = counted(facts["directories"], "directory", "directories")
    return [
        ("source", facts["source"]),
        ("exported", f"{when}, by redoxfs {facts['redoxfs']}"),
        ("options", " ".join(asked)),
        ("classes", facts["verdict"]),
        ("files", f"{facts['files']:,} in {directories}, {format_bytes(facts['file_bytes'])}"),
        ("samples", f"{facts['samples']:,} of {counted(facts['classes'], 'class', 'classes')}"),
        ("fingerprint", facts["fingerprint"]),
    ]
