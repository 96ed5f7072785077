"""Stratolog: the command, the local stack, the settings, and the public SDK.

The SDK is ``producers``. It is loaded when one of its names is first used, so ``import stratolog`` and the command stay
quick. Programs import its names from here, never from the packages beneath::

    from stratolog import Client
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from producers import (
        UNLIMITED,
        AclView,
        AllocateBlock,
        AsyncClient,
        AsyncKeyFile,
        BlockLocation,
        BucketInfo,
        BucketView,
        Client,
        ClientClosed,
        ClusterSecret,
        CommitKey,
        CommitWay,
        Consistency,
        CreateBucket,
        CreatedSnapshot,
        CreateKey,
        CreateSnapshot,
        CreateVolume,
        Credentials,
        DatanodeError,
        DeleteBucket,
        DeleteKey,
        DeleteSnapshot,
        DeleteVolume,
        Exists,
        InvalidArgument,
        KeyInfo,
        KeyInput,
        KeyOutput,
        KeySession,
        KeyView,
        ListedBucket,
        ListedVolume,
        LogDigestBase,
        NotConnected,
        NotFound,
        OutcomeUnknown,
        PutKey,
        RenameKey,
        RenameSnapshot,
        RequestBody,
        RequestFailed,
        Response,
        RetryableError,
        SetBucketProperty,
        SetSnapshotProperty,
        SetVolumeProperty,
        SnapshotDiffEntry,
        SnapshotDiffProgress,
        SnapshotInfo,
        SnapshotView,
        StratologError,
        StreamOptions,
        TlsFiles,
        TooManyInFlight,
        UsageView,
        View,
        VolumeInfo,
        VolumeView,
        parse_credentials,
    )
else:
    # Hidden from type checkers: in a module with __getattr__ they accept every misspelt name.

    def __getattr__(name: str) -> object:
        """Load a name of the SDK at its first use."""
        if name not in __all__:
            raise AttributeError(f"module 'stratolog' has no attribute {name!r}")
        import producers

        value = getattr(producers, name)
        globals()[name] = value
        return value


__all__ = [
    "AclView",
    "AllocateBlock",
    "AsyncClient",
    "AsyncKeyFile",
    "BlockLocation",
    "BucketInfo",
    "BucketView",
    "Client",
    "ClientClosed",
    "ClusterSecret",
    "CommitKey",
    "CommitWay",
    "Consistency",
    "CreateBucket",
    "CreateKey",
    "CreateSnapshot",
    "CreateVolume",
    "CreatedSnapshot",
    "Credentials",
    "DatanodeError",
    "DeleteBucket",
    "DeleteKey",
    "DeleteSnapshot",
    "DeleteVolume",
    "Exists",
    "InvalidArgument",
    "KeyInfo",
    "KeyInput",
    "KeyOutput",
    "KeySession",
    "KeyView",
    "ListedBucket",
    "ListedVolume",
    "LogDigestBase",
    "NotConnected",
    "NotFound",
    "OutcomeUnknown",
    "PutKey",
    "RenameKey",
    "RenameSnapshot",
    "RequestBody",
    "RequestFailed",
    "Response",
    "RetryableError",
    "SetBucketProperty",
    "SetSnapshotProperty",
    "SetVolumeProperty",
    "SnapshotDiffEntry",
    "SnapshotDiffProgress",
    "SnapshotInfo",
    "SnapshotView",
    "StratologError",
    "StreamOptions",
    "TlsFiles",
    "TooManyInFlight",
    "UNLIMITED",
    "UsageView",
    "View",
    "VolumeInfo",
    "VolumeView",
    "parse_credentials",
]


def __dir__() -> list[str]:
    """List the SDK's names too, loaded or not."""
    return sorted({*globals(), *__all__})
