"""Options whose paths are the same in every directory: a command that is printed may be run in another one."""

import os
from dataclasses import replace

from redoxfs.launch.options import MountOptions


def absolute(options: MountOptions) -> MountOptions:
    """The same options, with every path but SOURCE and MOUNTPOINT from the root."""
    from redoxfs.dataset.decision import is_table

    dataset, cluster, sharing = options.dataset, options.cluster, options.cluster.sharing
    classes = dataset.classes
    return replace(
        options,
        dataset=replace(
            dataset,
            classes=_from_root(classes) if classes is not None and is_table(classes) else classes,
            catalog=_from_root(dataset.catalog),
        ),
        cluster=replace(
            cluster,
            sharing=replace(
                sharing,
                tls_cert=_from_root(sharing.tls_cert),
                tls_key=_from_root(sharing.tls_key),
                tls_ca=_from_root(sharing.tls_ca),
            ),
        ),
        cache=replace(options.cache, cache=_from_root(options.cache.cache)),
        state=_from_root(options.state),
        log=_from_root(options.log),
    )


def _from_root(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)
