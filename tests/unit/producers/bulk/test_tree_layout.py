"""Where files go: legal names, pure, spread over the shards."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.bulk.tree_layout import MAX_VOLUMES, OneBucket, TreeLayout, bucket_of
from schemas.sharding import shard_of

LEGAL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=80)
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


@given(path=PATHS)
def test_every_path_has_a_legal_place_and_always_the_same(path):
    volume, bucket = TreeLayout().bucket_for(path)
    assert LEGAL.fullmatch(volume)
    assert LEGAL.fullmatch(bucket)
    assert (volume, bucket) == TreeLayout().bucket_for(path)
    assert volume in TreeLayout().volume_names()


@pytest.mark.parametrize(
    ("path", "bucket"),
    [
        ("os.py", "root"),
        ("asyncio/base_events.py", "asyncio"),
        ("asyncio/deep/er/x.py", "asyncio"),
        ("lib-dynload/_ssl.so", "lib-dynload"),
    ],
)
def test_the_first_part_names_the_bucket(path, bucket):
    assert TreeLayout().bucket_for(path)[1] == bucket


@pytest.mark.parametrize("part", ["Lib", "python3.11", "a", "__pycache__", "ünïcode", "...", "root", "x" * 300])
def test_a_changed_part_carries_a_hash(part):
    name = bucket_of(part)
    assert LEGAL.fullmatch(name)
    assert re.search(r"(^|-)[0-9a-f]{8}$", name)


def test_parts_that_look_alike_have_buckets_of_their_own():
    parts = ["Lib", "lib.", "LIB", "lib", "l.ib", ".lib", "root", "ROOT", "x" * 100, "x" * 101]
    assert len({bucket_of(part) for part in parts}) == len(parts)


def test_files_of_one_directory_stay_together():
    assert len({TreeLayout().bucket_for(f"a/b/{number}.py") for number in range(100)}) == 1


@pytest.mark.parametrize("shards", [1, 2, 3, 4])
def test_the_volumes_of_the_default_rule_reach_every_shard(shards):
    assert {shard_of(volume, shards) for volume in TreeLayout().volume_names()} == set(range(shards))


def test_directories_spread_over_all_volumes():
    layout = TreeLayout()
    places = {layout.bucket_for(f"package/{number}/x.py")[0] for number in range(500)}
    assert places == set(layout.volume_names())


@pytest.mark.parametrize(
    "rule", [TreeLayout(), OneBucket(volume="v", bucket="b")], ids=lambda rule: type(rule).__name__
)
def test_what_is_no_relative_path_is_refused(rule):
    for path in ("", "/etc/passwd"):
        with pytest.raises(ValueError, match="not the relative path"):
            rule.bucket_for(path)
    with pytest.raises(UnicodeEncodeError):
        rule.bucket_for("\udcff/file")


def test_every_file_goes_into_the_one_bucket():
    rule = OneBucket(volume="v", bucket="b")
    assert {rule.bucket_for(path) for path in ("a", "a/b", "ü/c")} == {("v", "b")}


def test_a_bucket_name_keeps_54_characters_of_the_part():
    assert bucket_of("x" * 54) == "x" * 54
    assert re.fullmatch(r"x{54}-[0-9a-f]{8}", bucket_of("x" * 55))
    assert re.fullmatch(r"x{53}-[0-9a-f]{8}", bucket_of("x" * 53 + "_" + "y" * 20)), "and no hyphen at their end"


def test_a_part_of_three_characters_is_a_name():
    assert bucket_of("abc") == "abc"
    assert re.fullmatch("ab-[0-9a-f]{8}", bucket_of("ab"))


@pytest.mark.parametrize("prefix", ["", "-a", "a-", "A", "a b", "x" * 59])
def test_an_illegal_prefix_is_refused_by_name(prefix):
    with pytest.raises(ValueError, match="prefix"):
        TreeLayout(prefix=prefix)


@pytest.mark.parametrize("volumes", [1, MAX_VOLUMES])
def test_the_least_and_the_greatest_number_of_volumes_are_taken(volumes):
    assert TreeLayout(volumes=volumes).volumes == volumes


@pytest.mark.parametrize("volumes", [0, MAX_VOLUMES + 1])
def test_an_illegal_number_of_volumes_is_refused(volumes):
    with pytest.raises(ValueError, match=str(volumes)):
        TreeLayout(volumes=volumes)


def test_the_longest_legal_prefix_gives_legal_volumes():
    layout = TreeLayout(prefix="x" * 58, volumes=MAX_VOLUMES)
    assert all(LEGAL.fullmatch(volume) for volume in layout.volume_names())
