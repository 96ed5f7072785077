"""``admin digest-base``: new digest sums for a shard whose log has claimed wrong rows."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stratolog.cluster.connection import client_of
from stratolog.cluster.leadership import check_shard
from stratolog.cluster.spark_oracle import open_oracle
from stratolog.commands.admin import replica_base
from stratolog.commands.admin.nodes import Shard
from stratolog.commands.common.invocation import JsonOption, connected_settings_of
from stratolog.commands.common.output import console, print_json, progress
from stratolog.commands.common.waiting import interruptible
from stratolog.configuration.settings import Settings
from stratolog.errors import UserError
from stratolog.extras import check_spark
from stratolog.local import stack

BASIS = "oracle"
_BASE_UNKNOWN = "whether a digest base was logged is not known: 'stratolog debug log' tells; another one does no harm"


def digest_base(
    context: typer.Context,
    shard: Shard,
    *,
    attempts: Annotated[int, typer.Option(min=1, max=100, help="Tries while the shard is being written.")] = 5,
    from_replicas: Annotated[
        bool,
        typer.Option(
            "--from-replicas", help="From equal full scans of a majority, instead of the log: after late validation."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Although the shard's leader holds something else: every replica that differs is flagged."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Restart a shard's digest sums from its live rows, recomputed by Spark with no claim of the log's used.

    To be done after a repair, when the log itself claimed wrong rows. The sums are valid at one index: if the shard is
    written meanwhile, the command tries again; stop the writers if it does not succeed. After late validation the log
    does not say what the rows are: then --from-replicas.
    """
    settings = connected_settings_of(context)
    check_shard(settings, shard)
    if from_replicas:
        _digest_base_from_replicas(settings, shard, attempts, force=force, as_json=as_json)
        return
    check_spark()
    with progress(as_json) as report, interruptible(_BASE_UNKNOWN):
        done = _log_digest_base(settings, shard, attempts, report, force=force)
    if as_json:
        print_json(done)
    else:
        console.print(
            f"shard {shard}: a digest base of {done['rows']:,} rows at index {done['index']}, digest {done['digest']}, "
            f"is in the log (attempt {done['attempts']} of {attempts})", highlight=False, soft_wrap=True,
        )  # fmt: skip


def _digest_base_from_replicas(settings: Settings, shard: int, attempts: int, *, force: bool, as_json: bool) -> None:
    with progress(as_json) as report, interruptible(_BASE_UNKNOWN):
        done = replica_base.log_base(settings, shard, attempts, report, force=force)
    if as_json:
        print_json(done)
    else:
        console.print(
            f"shard {shard}: a digest base at index {done['index']}, digest {done['digest']}, held by "
            f"{', '.join(done['agreeing'])}, is in the log (attempt {done['attempts']} of {attempts})",
            highlight=False, soft_wrap=True,
        )  # fmt: skip


def _log_digest_base(
    settings: Settings, shard: int, attempts: int, report: stack.Report, *, force: bool = False
) -> dict[str, Any]:
    """Compute and log a digest base; raises UserError if the shard was written during every attempt."""
    from producers.errors import RequestFailed
    from schemas.result_codes import INDEX_MOVED

    moved = ""
    with client_of(settings, operator=True) as client, open_oracle(settings, report) as oracle:
        for attempt in range(1, attempts + 1):
            report(f"attempt {attempt}: Spark recomputes the rows of shard {shard}")
            found = oracle(shard)
            slots, sums = found.base()
            try:
                client.log_digest_base(shard, found.index, slots=slots, sums=sums, basis=BASIS, force=force)
            except RequestFailed as error:
                if error.status != INDEX_MOVED:
                    raise
                moved = error.message
                report(f"attempt {attempt}: {moved}")
                continue
            return {
                "shard": shard, "index": found.index, "offset": found.offset, "digest": found.digest,
                "rows": found.rows, "slots": len(slots), "attempts": attempt,
            }  # fmt: skip
    raise UserError(f"shard {shard} was written in each of {attempts} attempts ({moved}): stop the writers")
