"""Installing on the disk: the steps of ``core.bootstrap.install_steps``, each of them durable before the next."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from replicated_db.core.bootstrap.install_steps import Next, OnDisk, Part, Step, next_step
from replicated_db.core.errors import StoreFailure
from replicated_db.shell.bootstrap.candidate import candidate_folder
from replicated_db.shell.bootstrap.transfer_desk import checkpoints_folder
from transport.files.durable_files import sync_folder, write_durably

OnStep = Callable[[Next], None]


def journal_of(database: Path) -> Path:
    """Return the journal that says that a database's candidate is whole and checked."""
    return database.with_name(database.name + ".install")


def replaced_folder(database: Path) -> Path:
    """Return the folder of what an install puts aside."""
    return database.with_name(database.name + ".replaced")


def look(database: Path) -> OnDisk:
    """Return what is on the disk."""
    tree = _tree(database)
    return OnDisk(
        journal=journal_of(database).exists(),
        replaced=replaced_folder(database).exists(),
        tree=tree.exists(),
        coming=frozenset(part for part in Part if (tree / part.value).is_dir()),
        in_place=frozenset(part for part in Part if _place(database, part).exists()),
    )


def finish(database: Path, on_step: OnStep = lambda _: None) -> int:
    """Finish an install that has begun, or clean up after one that has not; return the number of steps.

    Call it before a database is opened. ``on_step`` is told each step before it is done. Raises StoreFailure.
    """
    steps = 0
    try:
        while (step := next_step(look(database))).step is not Step.NOTHING:
            on_step(step)
            _do(database, step)
            steps += 1
    except OSError as error:
        raise StoreFailure(f"{database}: {error}; an install is not finished") from error
    return steps


def install(database: Path, record: str, on_step: OnStep = lambda _: None) -> None:
    """Put the candidate's tree, which is whole, checked and durable, in the database's place. Raises StoreFailure.

    ``record`` is kept in the journal, for people.
    """
    if look(database).coming != frozenset(Part):
        raise StoreFailure(f"{_tree(database)}: the tree is not whole")
    try:
        _clear(replaced_folder(database))
        for part in Part:
            sync_folder(_tree(database) / part.value)
        write_durably(journal_of(database), record)
    except OSError as error:
        raise StoreFailure(f"{database}: {error}; nothing was installed") from error
    finish(database, on_step)


def _do(database: Path, step: Next) -> None:
    parent = database.parent
    if step.step is Step.PUT_ASIDE and step.part is not None:
        aside = replaced_folder(database)
        aside.mkdir(exist_ok=True)
        _clear(aside / step.part.value)
        _place(database, step.part).rename(aside / step.part.value)
        sync_folder(aside)
    elif step.step is Step.PUT_IN_PLACE and step.part is not None:
        (_tree(database) / step.part.value).rename(_place(database, step.part))
        sync_folder(_tree(database))
    elif step.step is Step.FORGET_JOURNAL:
        journal_of(database).unlink()
    elif step.step is Step.REMOVE_REPLACED:
        _clear(replaced_folder(database))
    elif step.step is Step.REMOVE_TREE:
        _clear(_tree(database))
    sync_folder(parent)


def _clear(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _tree(database: Path) -> Path:
    return candidate_folder(database) / "tree"


def _place(database: Path, part: Part) -> Path:
    return database if part is Part.DATABASE else checkpoints_folder(database)
