"""What volumes and buckets have in common: an owner and two quotas, checked by the body alone."""

from __future__ import annotations

from om_processors.errors import OMError
from om_processors.namespace import quota
from om_processors.namespace.names import check_text
from schemas.records.messages import CreateBucket, CreateVolume, SetBucketProperty, SetVolumeProperty
from schemas.result_codes import INVALID_REQUEST


def check_quotas(where: str, body: CreateVolume | CreateBucket | SetVolumeProperty | SetBucketProperty) -> None:
    """Raise OMError unless both quotas are legal; ``where`` is as in ``bucket /v/b``."""
    quota.check_value(where, "quota_in_bytes", body.quota_in_bytes)
    quota.check_value(where, "quota_in_namespace", body.quota_in_namespace)


def check_change(where: str, body: SetVolumeProperty | SetBucketProperty) -> None:
    """Raise OMError unless a request sets something, and only what is legal; ``where`` is as in ``bucket /v/b``."""
    if body.owner is None and body.quota_in_bytes is None and body.quota_in_namespace is None:
        raise OMError(INVALID_REQUEST, f"nothing to set on {where}: no owner, no quota")
    if body.owner is not None:
        check_text("owner", body.owner)
        if not body.owner:
            raise OMError(INVALID_REQUEST, f"an empty owner for {where}")
    check_quotas(where, body)
