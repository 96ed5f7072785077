"""The audit of whole logs, once: ``python -m spark_streaming.jobs.audit_batch --config FILE``, or by ``spark-submit``.

Reads all topics to their current ends through the same operator as the running audit (with a fresh checkpoint, thrown
away) and judges every replica at the last barrier of its shard. The oracle then computes that barrier's digest from
all operations. The partitions of dn.log that have a Genesis are judged in the same way, as ``pipelines``. For each
pipeline the oracle also computes the digests that the members' stored bytes must have at the newest index that a
majority of the members has reported, and compares their reports with them.
Progress goes to stderr; the last line of stdout is one JSON object::

    {"ok": bool, "shards": [{"shard", "barrier_offset", "index", "log_digest" (hex16), "log_chain" (hex),
      "oracle_digest", "oracle_rows", "oracle_agrees" (null if "late" or "base"), "late",
      "base" (null or {"offset", "index"}), "broken" (reason or null),
      "false_counters": [...],
      "replicas": [{"node", "verdict", "basis", "differing_slots", "differences", "evidence", "reason"}]}],
     "pipelines": [as shards, and "blocks": {"log_offset", "index", "containers", "members": [{"node", "verdict",
      "reason", "containers": [{"container_id", "expected", "found", "blocks": [block keys, hex]}]}]}]}

With ``semantics`` in the configuration, it also has "semantics": {"findings": [{"check", "shard", "subject", "said",
"found"}], "left_out": [why, ...]} (``spark_streaming/batch/semantics.py``), and a finding makes "ok" false.

"late": the log holds requests that each replica executes (late validation), so the log alone does not give the rows.
``log_digest`` is then null until a DigestBase, and a verdict's ``basis`` says that it rests on the replicas alone.

"base": the log was trimmed. It is judged from this base on, with the base's sums; the oracle has nothing to compute
from, and stored bytes are compared among the members alone.

Exit status 0 needs all of this: every shard of the cluster and every pipeline has a barrier; all its replicas are
``equal`` there (a replica that has not reported is ``unknown``); the oracle agrees with the log's sums; no log is
broken; no member's stored bytes are ``diverged``. Scans of stored bytes are rare, so ``unknown`` is accepted for stored
bytes unless the configuration says ``require_blocks``. Exit status 1 otherwise, 2 for a wrong configuration.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from confluent_kafka import KafkaException
from pyspark.errors import PySparkException

from spark_streaming.batch.audit_once import audit_once
from spark_streaming.batch.oracle import OracleError
from spark_streaming.configuration.audit_config import AuditConfig, load_config
from spark_streaming.records.session import build_session, is_submitted


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, audit, print the result."""
    parser = argparse.ArgumentParser(description="Audit the logs to their current end and say whether all agree.")
    parser.add_argument("--config", type=Path, required=True, help=f"JSON file (see {AuditConfig.__module__})")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
        session = build_session(config.spark(submitted=is_submitted()))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        result = audit_once(session, config)
    except (PySparkException, KafkaException, OracleError) as error:
        print(f"audit failed: {str(error)[:2000]}", file=sys.stderr)
        return 1
    finally:
        session.stop()
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
