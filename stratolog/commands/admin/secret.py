"""``admin make-secret``: the file with the cluster's secret."""

from __future__ import annotations

import typer

from stratolog.brokers.at_rest import with_stored_key
from stratolog.commands.common.invocation import JsonOption, settings_of
from stratolog.commands.common.output import console, print_json
from stratolog.configuration.cluster_secret import make_secret, read_secret


def make_cluster_secret(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Make the file with the cluster's secret, where the setting 'cluster_secret_file' says, unless it is there.

    All nodes, datanodes and operators of a cluster need the same: copy the file, readable by its owner alone. To change
    it, stop the nodes, replace it everywhere, and start them; nothing that is stored depends on it.
    """
    settings = with_stored_key(settings_of(context))
    path = settings.secret_file
    made = make_secret(path, settings.keys())
    if not made:
        read_secret(path, settings.key_encryption_file)
    if as_json:
        print_json({"path": str(path), "made": made})
    else:
        console.print(
            f"{path} {'is made' if made else 'is there already'}", markup=False, highlight=False, soft_wrap=True
        )
