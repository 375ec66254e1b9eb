"""build_catalog: samples, groups, classes and tables of a tree."""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from auto_trees import make
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import Options, catalog_of, opened

from redoxfs.dataset import Catalog, ClassesError, build_catalog, read_tree
from redoxfs.dataset.bases import BASES, bases_of, stem_bases
from redoxfs.dataset.groups import TOGETHER
from redoxfs.dataset.splits import SPLIT_WORDS, is_split, parts_named, split_of_name
from redoxfs.dataset.stems import hash_text, stems_of
from redoxfs.dataset.table import FOLDERS_MAX, HEADERS, SPLIT_HEADERS


def catalog(root: Path, classes: str = "dir", samples: tuple[str, ...] = (), groups: str | None = None) -> Catalog:
    found = catalog_of(root, Options(classes=classes, samples=samples, groups=groups))
    check(found)
    return found


def check(found: Catalog) -> None:
    """Check the invariants of every catalog."""
    tree, count = found.tree, len(found.class_of)
    assert len(found.member_at) == count + 1
    assert found.member_at[-1] == len(found.members)
    assert (np.diff(found.class_of) >= 0).all()
    assert sorted(set(found.class_of.tolist())) == list(range(len(found.class_names)))
    assert len(set(found.class_names)) == len(found.class_names) == len(found.tree_of_class)
    assert sorted(set(found.tree_of_class.tolist())) == list(range(len(found.class_trees)))
    assert len(set(found.members.tolist())) == len(found.members) == int((found.sample_of >= 0).sum())
    kinds: dict[int, list[bytes]] = {}
    for sample in range(count):
        members = found.members[found.member_at[sample] : found.member_at[sample + 1]].tolist()
        assert found.sample_bytes[sample] == sum(int(tree.size[entry]) for entry in members)
        assert [int(found.sample_of[entry]) for entry in members] == [sample] * len(members)
        assert [int(found.member_of[entry]) for entry in members] == list(range(len(members)))
        kind = [tree.extensions[tree.extension[entry]] for entry in members]
        assert kinds.setdefault(int(found.class_of[sample]), kind) == kind
        assert all(tree.is_file(entry) for entry in members)
    assert "\n" not in found.verdict.line


def content(found: Catalog) -> dict[str, list[list[str]]]:
    """Class name -> its samples, each as the paths of its members."""
    result: dict[str, list[list[str]]] = {name: [] for name in found.class_names}
    for sample, number in enumerate(found.class_of.tolist()):
        members = found.members[found.member_at[sample] : found.member_at[sample + 1]].tolist()
        result[found.class_names[number]].append([found.tree.path(entry).decode() for entry in members])
    return result


def flat(found: Catalog) -> dict[str, list[str]]:
    return {name: [path for sample in samples for path in sample] for name, samples in content(found).items()}


def test_the_directory_is_the_class_and_formats_stay_apart(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/1.jpg", "train/cat/2.PNG", "train/cat/3.JPG", "val/cat/1.jpg", "train/cat/notes.txt")
    make(tmp_path, "train/dog/4.jpg", "val/dog/2.jpg")
    found = catalog(tmp_path)
    assert flat(found) == {
        "train/cat *.jpg": ["train/cat/1.jpg", "train/cat/3.JPG"],
        "train/cat *.png": ["train/cat/2.PNG"],
        "train/dog": ["train/dog/4.jpg"],
        "val/cat": ["val/cat/1.jpg"],
        "val/dog": ["val/dog/2.jpg"],
    }
    assert [found.class_trees[at] for at in found.tree_of_class] == ["train", "train", "train", "val", "val"]
    assert found.sample_files == 6
    assert found.verdict.mode == "dir"


def test_a_split_in_the_name_of_a_file_keeps_a_directory_apart(tmp_path: Path) -> None:
    make(tmp_path, "cat/train_1.jpg", "cat/val_1.jpg", "cat/2_TRAIN.jpg", "cat/train3.jpg", "cat/trained.jpg")
    make(tmp_path, "dog/4.jpg")
    assert flat(catalog(tmp_path)) == {
        "cat": ["cat/trained.jpg"],
        "cat (train)": ["cat/2_TRAIN.jpg", "cat/train3.jpg", "cat/train_1.jpg"],
        "cat (val)": ["cat/val_1.jpg"],
        "dog": ["dog/4.jpg"],
    }


def test_any_never_mixes_splits(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg", "Val2/4.jpg", "train-clean-100/5.jpg")
    make(tmp_path, "more/COCO_val2014_6.jpg", "more/7.jpg", "val/a/ILSVRC_val_8.jpg", "images_test/9.jpg")
    found = catalog(tmp_path, "any")
    assert flat(found) == {
        ".": ["more/7.jpg"],
        "images_test": ["images_test/9.jpg"],
        "train": ["train/a/1.jpg", "train/b/2.jpg"],
        "train-clean-100": ["train-clean-100/5.jpg"],
        "val": ["more/COCO_val2014_6.jpg", "val/a/3.jpg", "val/a/ILSVRC_val_8.jpg"],
        "val2": ["Val2/4.jpg"],
    }
    assert found.class_trees == found.class_names
    # A sampler draws from the same classes, and nothing is redirected.
    drawn = catalog(tmp_path, "sampler")
    assert flat(drawn) == flat(found)
    assert (drawn.is_for_sampler, found.is_for_sampler) == (True, False)
    assert drawn.verdict.line == (
        "not redirecting: a sampler draws from 9 samples"
        " (images_test 1, train 2, train-clean-100 1, val 3, and 1 more), by --classes sampler"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("TrainVideo", "TestVideo"),
        ("TrainValVideo", "TestVideo"),
        ("mytrain", "mytest"),
        ("trainA", "testA"),
        ("fold=train", "fold=test"),
        ("COCOTrain", "elsewhere"),
    ],
)
@pytest.mark.parametrize("classes", ["any", "table"])
def test_directories_that_are_splits_in_words_of_any_form_never_mix(
    tmp_path: Path, one: str, other: str, classes: str
) -> None:
    root = tmp_path / "root"
    make(root, f"{one}/a/1.jpg", f"{one}/a/2.jpg", f"{other}/a/3.jpg", f"{other}/a/4.jpg")
    rows = "".join(f"{one if number < 3 else other}/a/{number}.jpg,cat\n" for number in range(1, 5))
    found = catalog(root, "any" if classes == "any" else table(tmp_path, "path,class\n" + rows))
    assert sorted(flat(found).values()) == sorted(
        [f"{name}/a/{number}.jpg" for number in numbers] for name, numbers in ((one, (1, 2)), (other, (3, 4)))
    )


@pytest.mark.parametrize(
    "names",
    [
        ("contest", "mytrain", "other"),
        ("validator", "trainer", "evaluation"),
        ("training", "validator"),
        ("Gestest", "mytrain/mytest"),
        ("latest", "valley", "devil", "extravagant"),
    ],
)
def test_a_word_inside_another_is_no_split_unless_a_directory_beside_differs_in_it_alone(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    make(tmp_path, *(f"{name}/1.jpg" for name in names))
    assert set(flat(catalog(tmp_path, "any"))) <= {".", "training"}


def test_splits_in_names_of_files_of_any_form_never_mix(tmp_path: Path) -> None:
    splits = {
        "train": ["trainset_1", "train_1", "TrainVideo2", "0003train", "train\u2013001"],
        "trainval": ["TrainVal_1"],
        "test": ["0001test", "testset_1", "MyTest4", "TESTdata_2", "v3+test", "test\uff081\uff09", "pr\xe9test"],
        "val": ["7val", "valdata_3", "COCOVal2", "COCO_val2014_6", "val\u56fe_1"],
        "extra": ["extra_1", "0002_extra"],
    }
    plain = ["1", "contest_1", "trainer", "an_extra_hat", "valley2", "xtrain"]
    make(tmp_path, *(f"{name}.jpg" for name in (*chain(*splits.values()), *plain)))
    expected = {split: sorted(f"{name}.jpg" for name in names) for split, names in {**splits, ".": plain}.items()}
    assert {split: sorted(names) for split, names in flat(catalog(tmp_path, "any")).items()} == expected


pieces_of_names = st.sampled_from(["train", "Val", "TEST", "set", "Data", "x", "Y", "AB", "\xe9", "3", "_", "+"])


@settings(max_examples=50)
@given(st.sets(st.lists(pieces_of_names, min_size=1, max_size=6).map("".join), min_size=1, max_size=12))
def test_files_and_directories_name_splits_in_the_same_words(names: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), *names)
        found = catalog(Path(folder), "none").tree
    files = np.flatnonzero(found.kind_mask(stat.S_IFREG))
    for entry, bits in zip(files.tolist(), split_of_name(found, files).tolist(), strict=True):
        words = {word for at, word in enumerate(SPLIT_WORDS) if bits >> at & 1}
        assert {part for word in words for part in parts_named(word)} == parts_named(found.name(entry))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"train", True),
        (b"TRAIN2017", True),
        (b"train-clean-100", True),
        (b"dev-other", True),
        (b"test_A", True),
        (b"TrainingSet", True),
        (b"testdata", True),
        (b"holdout", True),
        (b"trainer", False),
        (b"trainA", False),
        (b"value", False),
        (b"mytest", False),
        (b"seg_train", True),
        (b"trainval", True),
        (b"extra", True),
        (b"my_test_640", False),
        (b"contest", False),
        (b"", False),
    ],
)
def test_names_of_splits(name: bytes, expected: bool) -> None:
    assert is_split(name) is expected


def test_none_redirects_nothing_and_counts(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.jpg", "cat/2.jpg")
    found = catalog(tmp_path, "none")
    assert (len(found.class_of), found.sample_files, found.verdict.mode) == (0, 2, "none")


def test_samples_by_extension_and_never_hidden(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "a/.2.jpg", ".b/3.jpg", "a/@eaDir/4.jpg", "a/5.json", "a/6.flac", "a/jpg", "a/.jpg")
    assert sorted(chain(*flat(catalog(tmp_path, "any")).values())) == ["a/1.jpg", "a/6.flac"]


def test_a_compressed_volume_is_a_sample_and_other_compressed_files_are_not(tmp_path: Path) -> None:
    make(
        tmp_path,
        "a/1.nii.gz",
        "a/2.NII.GZ",
        "a/3.gz",
        "a/4.csv.gz",
        "a/.nii.gz",
        "a/xnii.gz",
        "a/5.nii",
        "a/6.nii.gz.md5",
    )
    assert sorted(chain(*flat(catalog(tmp_path, "any")).values())) == ["a/1.nii.gz", "a/2.NII.GZ", "a/5.nii"]


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        (("*.bin",), ["a/1.bin", "b/c/2.bin"]),
        (("a/*",), ["a/1.bin", "a/3.jpg"]),
        (("b/*.bin",), ["b/c/2.bin"]),
        (("*.JPG",), []),
        (("1.*", "b/*"), ["a/1.bin", "b/c/2.bin"]),
        (("[13].???",), ["a/1.bin", "a/3.jpg"]),
        (("é*",), []),
    ],
)
def test_samples_by_glob(tmp_path: Path, globs: tuple[str, ...], expected: list[str]) -> None:
    make(tmp_path, "a/1.bin", "b/c/2.bin", "a/3.jpg", "a/.1.bin")
    found = catalog(tmp_path, "any", samples=globs)
    assert sorted(chain(*flat(found).values())) == expected
    if not expected:
        assert found.verdict.line == f"not redirecting: no file matches --samples {' '.join(globs)}"


def test_too_many_files_of_one_stem_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.jpg", *(f"cat/1.t{n}" for n in range(64)))
    with pytest.raises(ClassesError, match="65 files belong to cat/1"):
        catalog(tmp_path, groups="stem")


def test_files_of_one_stem_are_one_sample_in_role_order(tmp_path: Path) -> None:
    make(tmp_path, "d/1.jpg", "d/1.txt", "d/1.seg.png", "d/2.txt", "d/2.jpg", "d/2.SEG.png", "d/3.jpg", "d/3.txt")
    make(tmp_path, "d/img.0001.jpg", "d/img.0002.jpg", "d/alone.txt", "e/1.txt", "f/9.jpg")
    found = catalog(tmp_path, "dir", groups="stem")
    assert content(found) == {
        "d *.jpg": [["d/img.0001.jpg"], ["d/img.0002.jpg"]],
        "d *.jpg+.seg.png+.txt": [["d/1.jpg", "d/1.seg.png", "d/1.txt"], ["d/2.jpg", "d/2.SEG.png", "d/2.txt"]],
        "d *.jpg+.txt": [["d/3.jpg", "d/3.txt"]],
        "f": [["f/9.jpg"]],
    }


def test_incomplete_groups_are_not_redirected_and_counted(tmp_path: Path) -> None:
    make(tmp_path, "d/1.jpg", "d/1.JPG", "d/2.jpg", "d/3.jpg", "d/3.txt", "x.txt", "val/readme.md")
    (tmp_path / "d/2.txt").symlink_to("../x.txt")
    found = catalog(tmp_path, "any", groups="stem")
    assert content(found) == {".": [["d/3.jpg", "d/3.txt"]]}
    assert found.verdict.saw == (
        "not redirected: 1 groups with a symlink among their files",
        "not redirected: 1 groups with two files of one suffix",
        TOGETHER,
    )
    # With a sampler each open returns its own file, so labels that were read once stay right.
    assert TOGETHER not in catalog(tmp_path, "sampler", groups="stem").verdict.saw


stem_parts = st.text("ab.", min_size=1, max_size=6)


@given(st.sets(stem_parts, max_size=12).map(sorted))
def test_a_stem_joins_the_shortest_stem_that_it_extends(names: list[str]) -> None:
    stems = {
        name: os.path.splitext(name)[0] if name.rfind(".") > 0 and name.lstrip(".") == name else None for name in names
    }
    plain = [name for name in names if stems[name] is not None or "." not in name]
    known = {stems[name] or name for name in plain}
    for name, base in zip(plain, stem_bases([name.encode() for name in plain]), strict=True):
        stem = stems[name] or name
        shorter = [other for other in known if stem == other or stem.startswith(other + ".")]
        assert base.decode() == min(shorter, key=len)


parts_of_names = st.text("aB.-\xe4", min_size=1, max_size=4)
# Some keys are alike over the length at which they are compared at once.
names_of_files = st.tuples(st.sampled_from(["", "x" * 7, "x" * 8, "x" * 17]), parts_of_names).map("".join)


@settings(max_examples=50)
@given(st.sets(names_of_files.filter(lambda name: name.strip(".") != ""), max_size=12), st.sampled_from([*BASES]))
def test_groups_are_those_of_a_plain_model(names: set[str], groups: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), "e/lone", *(f"{above}/{name}" for above in ("d", "e") for name in names))
        found = catalog(Path(folder), "any", ("*",), groups)
    tree = found.tree
    files = np.flatnonzero(tree.kind_mask(stat.S_IFREG))
    first_of, length = bases_of(tree, files, groups)
    expected: dict[tuple[int, bytes], list[tuple[bytes, int]]] = {}
    for directory in np.unique(tree.parent[files]).tolist():
        own = files[tree.parent[files] == directory].tolist()
        for entry, base in zip(own, BASES[groups]([tree.name(entry) for entry in own]), strict=True):
            at = len([*chain(*expected.values())])
            members = expected.setdefault((directory, base), [])
            members.append((tree.name(entry)[len(base) :].lower(), entry))
            assert (length[at], files[first_of[at]]) == (len(base), members[0][1])
    whole = [
        [entry for _, entry in sorted(members)]
        for (_, base), members in expected.items()
        if len({role for role, _ in members}) == len(members) and not base.startswith(b".")
    ]
    samples = np.split(found.members, found.member_at[1:-1]) if len(found.members) else []
    assert sorted(sample.tolist() for sample in samples) == sorted(whole)


def test_a_template_joins_across_directories(tmp_path: Path) -> None:
    make(tmp_path, "images/train/1.jpg", "masks/train/1.png", "images/train/2.jpg", "masks/train/2.png")
    make(tmp_path, "images/val/3.jpg", "masks/val/3.png", "images/val/4.jpg", "masks/val/5.png", "other.jpg")
    template = "images/{key}.jpg, masks/{key}.png"
    found = catalog(tmp_path, "any", groups=template)
    assert content(found) == {
        "train": [["images/train/1.jpg", "masks/train/1.png"], ["images/train/2.jpg", "masks/train/2.png"]],
        "val": [["images/val/3.jpg", "masks/val/3.png"]],
    }
    assert found.verdict.saw == ("not redirected: 2 keys that lack a file of the template", TOGETHER)
    make(tmp_path, "images/cat/6.jpg", "masks/cat/6.png", "images/dog/7.jpg", "masks/dog/7.png")
    assert list(content(catalog(tmp_path, "dir", groups=template))) == ["images/cat", "images/dog"]


def test_a_template_may_join_below_any_directory(tmp_path: Path) -> None:
    make(tmp_path, *(f"{split}/{kind}" for split in ("train", "val") for kind in ("images/1.jpg", "masks/1.png")))
    make(tmp_path, "train/images/a/2.jpg", "val/masks/a/2.png", "images/3.jpg", "masks/3.png", "a/b/images/4.jpg")
    found = catalog(tmp_path, "any", groups="*/images/{key}.jpg,*/masks/{key}.png")
    assert content(found) == {split: [[f"{split}/images/1.jpg", f"{split}/masks/1.png"]] for split in ("train", "val")}
    assert "not redirected: 2 keys that lack a file of the template" in found.verdict.saw
    # What a * stands for is the same, and not what another stands for.
    make(tmp_path, "a/x/b/1", "b/y/a/1", "a/y/b/1")
    assert list(content(catalog(tmp_path, "any", groups="*/x/*/{key},*/y/*/{key}")).values()) == [
        [["a/x/b/1", "a/y/b/1"]]
    ]


def test_groups_of_a_template_have_kinds_and_one_file_of_the_globs(tmp_path: Path) -> None:
    make(tmp_path, *(f"{place}/{name}" for place in "ab" for name in ("1.jpg", "2.jpg", "3.png", "4.txt", ".5.jpg")))
    make(tmp_path, "a/6.jpg", "a/is.jpg", "b/is.jpg")
    template = "a/{key},b/{key}"
    found = catalog(tmp_path, "any", groups=template)
    kinds = [("1.jpg", "2.jpg", "is.jpg"), ("3.png",), ("4.txt",)]
    assert sorted(content(found).values()) == [[[f"a/{name}", f"b/{name}"] for name in names] for names in kinds]
    assert "not redirected: 1 keys that lack a file of the template" in found.verdict.saw
    some = catalog(tmp_path, "any", samples=("a/[12].jpg",), groups=template)
    assert content(some) == {".": [["a/1.jpg", "b/1.jpg"], ["a/2.jpg", "b/2.jpg"]]}
    assert "not redirected: 1 keys that lack a file of the template" in some.verdict.saw
    # A key is not empty.
    assert list(content(catalog(tmp_path, "any", groups="a/is{key}jpg")).values()) == [[["a/is.jpg"]]]
    assert not len(catalog(tmp_path, "any", groups="a/is.{key}jpg").class_of)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("images", "'images' needs exactly one {key}"),
        ("{key}/{key}.jpg", "needs exactly one {key}"),
        ("a/{key}.jpg,a/{key}.jpg", "the same pattern twice"),
        ("*/a/{key},b/{key}", "differ in their number of *"),
        ("a/{key},a/{key}.jpg", "a/1.jpg matches both a/{key} and a/{key}.jpg"),
    ],
)
def test_a_wrong_template_is_an_error(tmp_path: Path, template: str, words: str) -> None:
    make(tmp_path, "a/1.jpg")
    with pytest.raises(ClassesError) as caught:
        catalog(tmp_path, "any", groups=template)
    assert words in str(caught.value)


def test_a_malformed_template_is_an_error_even_where_nothing_is_redirected(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg")
    for classes in ("auto", "none"):
        with pytest.raises(ClassesError, match="needs exactly one"):
            catalog(tmp_path, classes, groups="bar")


def test_a_template_that_matches_nothing_redirects_nothing(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg")
    found = catalog(tmp_path, "any", groups="b/{key}.jpg")
    assert found.verdict.line.startswith("not redirecting: no complete sample for --groups b/{key}.jpg")


def test_hard_links_across_classes_are_an_error(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.jpg", "dog/2.jpg")
    os.link(tmp_path / "cat/1.jpg", tmp_path / "cat/again.jpg")
    assert flat(catalog(tmp_path))["cat"] == ["cat/1.jpg", "cat/again.jpg"]
    os.link(tmp_path / "cat/1.jpg", tmp_path / "dog/1.jpg")
    with pytest.raises(ClassesError, match=r"cat/again.jpg and dog/1.jpg are one file \(hard links\)"):
        catalog(tmp_path)
    assert len(flat(catalog(tmp_path, "any"))["."]) == 4


def test_hard_links_are_names_of_one_inode_at_one_device(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/3.jpg")
    os.link(tmp_path / "cat/1.jpg", tmp_path / "dog/1.jpg")
    with opened(tmp_path) as fd:
        tree = read_tree(fd)
    in_dog = tree.parent == [tree.path(entry) for entry in range(len(tree))].index(b"dog")
    elsewhere = replace(tree, device=tree.device + in_dog.astype(np.uint64))
    assert flat(build_catalog(elsewhere, classes="dir"))["dog"] == ["dog/1.jpg", "dog/3.jpg"]
    os.link(tmp_path / "cat/2.jpg", tmp_path / "dog/2.jpg")
    with pytest.raises(ClassesError, match=r"cat/[12].jpg and dog/[12].jpg are one file \(hard links\)"):
        catalog(tmp_path)


@pytest.mark.parametrize("target", ["../all/1.jpg", "../short/1.jpg", "{root}/all/1.jpg"])
def test_dir_refuses_a_symlink_from_another_directory(tmp_path: Path, target: str) -> None:
    make(tmp_path, "all/1.jpg", "more/2.jpg")
    (tmp_path / "short").symlink_to("all")
    assert flat(catalog(tmp_path)) == {"all": ["all/1.jpg"], "more": ["more/2.jpg"]}
    (tmp_path / "all/same.jpg").symlink_to("1.jpg")
    assert flat(catalog(tmp_path)) == {"all": ["all/1.jpg"], "more": ["more/2.jpg"]}
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1.jpg").symlink_to(target.format(root=tmp_path))
    with pytest.raises(ClassesError, match=r"cat/1.jpg is a symlink to all/1.jpg, whose class is another directory"):
        catalog(tmp_path)
    assert flat(catalog(tmp_path, "any")) == {".": ["all/1.jpg", "more/2.jpg"]}


def table(base: Path, text: str | bytes) -> str:
    path = base / "labels.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    make(root, "train/1.jpg", "train/2.jpg", "val/3.jpg", "val/4.jpg", "train/5.bin", "train/6,x.jpg")
    return root


def test_a_table_gives_the_classes(tmp_path: Path, root: Path) -> None:
    rows = '\ufeffid, class ,path\n1,cat,train/1.jpg\n\n2,cat,./val/3.jpg\n3,dog,train/5.bin\n4,dog,"train/6,x.jpg"\n'
    found = catalog(root, table(tmp_path, rows + "2,cat,val/3.jpg\n"))
    assert flat(found) == {
        "cat (train)": ["train/1.jpg"],
        "cat (val)": ["val/3.jpg"],
        "dog (train) *.bin": ["train/5.bin"],
        "dog (train) *.jpg": ["train/6,x.jpg"],
    }
    assert found.class_trees == ["train", "val"]
    assert found.verdict.mode == "csv"
    assert flat(catalog(root, table(tmp_path, rows), samples=("*.bin",))) == {"dog (train)": ["train/5.bin"]}


def test_compressed_files_of_two_kinds_stay_apart(tmp_path: Path) -> None:
    root = tmp_path / "root"
    names = ("1.nii.gz", "2.NII.GZ", "3.json.gz", "4.txt.gz", "5.gz", "6.001.gz")
    make(root, *(f"a/{name}" for name in names))
    rows = "".join(f"a/{name},cat\n" for name in names)
    found = catalog(root, table(tmp_path, f"path,class\n{rows}"))
    assert sorted(flat(found).values()) == [
        ["a/1.nii.gz", "a/2.NII.GZ"],
        ["a/3.json.gz"],
        ["a/4.txt.gz"],
        ["a/5.gz", "a/6.001.gz"],
    ]
    assert sorted(flat(catalog(root, "any", samples=("*.gz", "*.GZ"))).values()) == sorted(flat(found).values())


def test_digits_before_a_split_word_are_no_part_of_it(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg", "2017val/1.jpg", "2017val/2.jpg")
    assert flat(catalog(tmp_path)) == {"cat": ["cat/1.jpg", "cat/2.jpg"], "dog": ["dog/1.jpg", "dog/2.jpg"]}


def test_a_table_reads_names_that_are_not_utf8(tmp_path: Path, root: Path) -> None:
    with open(os.fsencode(root) + b"/caf\xe9.jpg", "wb"):
        pass
    found = catalog(root, table(tmp_path, b"path,class\ncaf\xe9.jpg,cat\n"))
    assert [found.tree.name(entry) for entry in found.members.tolist()] == [b"caf\xe9.jpg"]


def test_paths_of_a_table_may_be_those_in_the_only_folder_that_has_them(tmp_path: Path, root: Path) -> None:
    make(root, "img/7.jpg", "img/8.jpg", "masks/8.jpg")
    for text, words in (
        ("path,class\n7.jpg,cat\n8.jpg,dog\n", ""),
        ("path,class\n8.jpg,dog\n7.jpg,cat\n", "line 2: no such file in the source: 8.jpg; "),
        ("path,class\n7.jpg,cat\ntrain/1.jpg,dog\n", "line 3: no such file in the source: train/1.jpg; "),
    ):
        where = table(tmp_path, text)
        if words:
            with pytest.raises(ClassesError, match=words):
                catalog(root, where)
            continue
        found = catalog(root, where)
        assert [found.tree.path(entry) for entry in found.members.tolist()] == [b"img/7.jpg", b"img/8.jpg"]
        assert [found.class_names[at] for at in found.class_of.tolist()] == ["cat", "dog"]
        assert f"2 rows in {where}, whose paths are relative to img/" in found.verdict.saw


@pytest.mark.parametrize(
    ("stem", "suffix", "folder"),
    [("{}", ".jpg", "img/"), ("img/{}", ".JPG", ""), ("./img/{}", ".nii.gz", ""), ("v.{}", ".mp4", "img/")],
)
def test_a_table_may_lack_suffixes(tmp_path: Path, root: Path, stem: str, suffix: str, folder: str) -> None:
    """Files of other kinds, directories and longer names beside them are not meant."""
    paths = [f"img/{Path(stem.format(number)).name}{suffix}" for number in (7, 8)]
    make(root, *paths, *(f"ann/{Path(path).name.removesuffix(suffix)}.json" for path in paths), "img/70.png")
    make(root, "img/7.1.png", "img/8.d/frame.png", "frames/7/1.png")
    rows = [f"{stem.format(7)},cat", f"{stem.format(8)},dog"]
    where = table(tmp_path, "\n".join(["image_id,label", *rows]))
    found = catalog(root, where)
    assert flat(found) == {"cat": paths[:1], "dog": paths[1:]}
    relative = f"are relative to {folder} and " if folder else ""
    assert found.verdict.saw[0] == f"2 rows in {where}, whose paths {relative}lack {suffix}"


def test_the_first_rows_of_a_table_without_suffixes_may_mean_one_file_alone(tmp_path: Path) -> None:
    """The image of the first row is not there, but its mask is: the table means the images."""
    root = tmp_path / "root"
    make(root, "img/2.jpg", "img/3.jpg", "masks/1.png", "masks/2.png", "masks/3.png")
    where = table(tmp_path, "path,class\n1,cat\n2,cat\n3,dog\n")
    with pytest.raises(ClassesError, match=r"line 3: img/2.jpg and masks/2.png are there: write each path with its"):
        catalog(root, where)


def test_the_folder_of_the_paths_is_not_looked_for_among_many(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root, "img/7.jpg")
    where = table(tmp_path, "path,class\n7.jpg,cat\n")
    for number in range(FOLDERS_MAX - 1):
        (root / str(number)).mkdir()
    assert flat(catalog(root, where)) == {"cat": ["img/7.jpg"]}
    (root / "more").mkdir()
    with pytest.raises(ClassesError, match=r"to the source; for the one folder .* among 1,000 folders at most"):
        catalog(root, where)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "no column 'path'"),
        ("path,weather\n", 1, "no column 'class' among path, weather; rename the right one to class; understood are"),
        ("sample,class\n", 1, "no column 'path' among sample, class; rename the right one to path; understood are"),
        ("path;class\n", 1, "no column 'path' among path;class; its fields must have commas between them; rename"),
        ("path,class,path\n", 1, "more than one column 'path'"),
        ("path,label,Target\n", 1, "each of the columns label, Target may be the class; rename the right one to class"),
        ("file,image,label\n", 1, "each of the columns file, image may be the path; rename the right one to path"),
        ("file,label,split\nval/3.jpg,cat\n", 2, "2 of at least 3 fields; each row needs file, label, split"),
        (
            "path,class,split,fold\nval/3.jpg,cat,a,1\nval/3.jpg,cat,a,2\n",
            3,
            "val/3.jpg is 'cat' (split a/fold 2) here and 'cat' (split a/fold 1) in line 2; a file has one class and"
            " one split",
        ),
        ("path,class\ntrain/1.jpg,cat\ntrain/9.jpg,cat\n", 3, "no such file in the source: train/9.jpg"),
        ("path,class\nval/4.jpg,cat\n3,cat\n", 3, "; val/3.jpg is there: write each path with its folder and suffix"),
        ("path,class\n3,cat\n1,dog\n", 3, "no such file in the source: 1.jpg (without .jpg in the table); paths"),
        ("path,class\n5,cat\n", 2, "no such file in the source: 5; paths"),
        ("path,class\n3,cat\n4,dog\n", 3, "val/4.jpg and val/4.png are there: write each path with its suffix"),
        ("path,class\ntwo,cat\n", 2, "; train/two.jpg is there: write each path with its folder and suffix"),
        ("path,class\ntrain/two,cat\n", 2, "; train/two.jpg is there: write each path with its suffix"),
        ("path,class\n/train/1.jpg,cat\n", 2, "paths are relative to the source"),
        ("path,class\ntrain/1.jpg/x,cat\n", 2, "no such file"),
        ("path,class\n../root/train/1.jpg,cat\n", 2, "no such file"),
        ("path,class\ntrain,cat\n", 2, "is a directory"),
        ("path,class\nlink.jpg,cat\n", 2, "is a symlink"),
        ("path,class\n\n\ntrain/1.jpg\n", 4, "1 of at least 2 fields"),
        ("path,class\ntrain/1.jpg,\n", 2, "no class for train/1.jpg"),
        ('path,class,x\ntrain/1.jpg,cat,"a\nb"\ntrain/1.jpg,dog,\n', 4, "'dog' here and 'cat' in line 2"),
        ("path,class\ntrain/1.jpg,cat\ntrain/1h.jpg,dog\n", 3, "the same file (a hard link)"),
    ],
)
def test_a_wrong_table_is_an_error_with_its_line(tmp_path: Path, root: Path, text: str, line: int, words: str) -> None:
    (root / "link.jpg").symlink_to("train/1.jpg")
    os.link(root / "train/1.jpg", root / "train/1h.jpg")
    # Its name is between that of 1 and that of 1.jpg.
    make(root, "train/1-b.jpg", "train/two.jpg", "train/two.png", "val/4.png", "val/3.json", "val/3.1.jpg")
    where = table(tmp_path, text)
    with pytest.raises(ClassesError) as caught:
        catalog(root, where)
    assert str(caught.value).startswith(f"{where}, line {line}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [
        "path,class",
        "file_name,label",
        "filename,target",
        "File Name,Labels",
        "image,category",
        "IMAGE_PATH,class_name",
        "img,Class",
        "path,class,label,image",
        "id,path,image,target",
    ],
)
def test_headers_that_people_have_are_understood(tmp_path: Path, root: Path, header: str) -> None:
    columns = header.split(",")
    known = {name: at for at, name in enumerate(columns)}
    path_at = known.get("path", 1 if columns[0] == "id" else 0)
    class_at = known.get("class", len(columns) - 1)
    rows = []
    for path, name in (("train/1.jpg", "cat"), ("train/2.jpg", "dog")):
        fields = ["other"] * len(columns)
        fields[path_at], fields[class_at] = path, name
        rows.append(",".join(fields))
    found = catalog(root, table(tmp_path, "\n".join([header, *rows])))
    assert flat(found) == {"cat (train)": ["train/1.jpg"], "dog (train)": ["train/2.jpg"]}


def test_the_headers_are_those_of_the_documents() -> None:
    text = (Path(__file__).parent.parent / "docs/classes.md").read_text()
    for what, headers in {**HEADERS, "split, optional": SPLIT_HEADERS}.items():
        assert f"| {what} | {', '.join(f'`{header}`' for header in headers)} |" in text


def test_columns_that_are_not_read_are_named(tmp_path: Path, root: Path) -> None:
    where = table(tmp_path, ",path,age,class,xmin\n0,train/1.jpg,7,cat,3\n")
    assert (
        f"not read from {where}: age, xmin; a script that looks these up by file name gets those of another file"
        in catalog(root, where).verdict.saw
    )
    assert not any("not read" in line for line in catalog(root, table(tmp_path, "path,class,split\n")).verdict.saw)


def test_a_column_of_a_table_keeps_its_splits_apart(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root, *(f"{number}.jpg" for number in range(6)), "val/6.jpg")
    rows = zip(range(6), ("train", "val", "", "train", "3/4", "no split"), strict=True)
    text = "".join(f"{number}.jpg,cat,{split}\n" for number, split in rows)
    for header in ("split", "Fold", "subset", "k_fold"):
        found = catalog(root, table(tmp_path, f"path,class,{header}\n{text}val/6.jpg,cat,train\n"))
        assert flat(found) == {
            f"cat (no {header})": ["2.jpg"],
            f"cat ({header} '3/4')": ["4.jpg"],
            f"cat ({header} no split)": ["5.jpg"],
            f"cat ({header} train)": ["0.jpg", "3.jpg"],
            f"cat ({header} val)": ["1.jpg"],
            f"cat (val/{header} train)": ["val/6.jpg"],
        }
        crossing = f"no sample crosses between the 5 values of {header}"
        assert sum(crossing in line for line in found.verdict.saw) == 1


def test_a_split_and_a_fold_are_both_kept_apart(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root, *(f"{number}.jpg" for number in range(5)))
    rows = (("train", 0), ("train", 1), ("train", 0), ("val", 0), ("val", ""))
    text = "".join(f"{number}.jpg,{fold},cat,{split}\n" for number, (split, fold) in enumerate(rows))
    found = catalog(root, table(tmp_path, "path,fold,class,split\n" + text))
    assert flat(found) == {
        "cat (fold 0/split train)": ["0.jpg", "2.jpg"],
        "cat (fold 0/split val)": ["3.jpg"],
        "cat (fold 1/split train)": ["1.jpg"],
        "cat (no fold/split val)": ["4.jpg"],
    }


def test_files_of_a_group_or_of_an_inode_have_one_split(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root, "1.jpg", "1.txt", "2.jpg", "2.txt")
    where = table(tmp_path, "path,class,split\n1.jpg,cat,a\n1.txt,cat,b\n2.jpg,cat,a\n")
    with pytest.raises(ClassesError, match=r"1.txt is 'cat' \(split b\), but 1.jpg of the same group is 'cat' \(split"):
        catalog(root, where, groups="stem")
    (root / "1.txt").unlink()
    os.link(root / "1.jpg", root / "1.txt")
    with pytest.raises(ClassesError, match=r"1.txt is 'cat' \(split b\), and 1.jpg of line 2 is the same file"):
        catalog(root, where)


def test_a_missing_table_is_an_error(root: Path) -> None:
    with pytest.raises(ClassesError, match="--classes dri: no such file; write auto, dir, any, sampler, none, or"):
        catalog(root, "dri")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_a_table_that_is_not_utf8_is_an_error(root: Path, tmp_path: Path, encoding: str) -> None:
    """Some spreadsheets save "Unicode text" so."""
    with pytest.raises(ClassesError, match=r"--classes .*labels.csv: not UTF-8 but perhaps UTF-16; save it as a csv"):
        catalog(root, table(tmp_path, "path,class\ntrain/1.jpg,a\n".encode(encoding)))


def test_a_table_that_can_be_read_once_only_is_an_error(root: Path, tmp_path: Path) -> None:
    """As `--classes <(grep …)`: whoever looked at its header left nothing to read. A FIFO would wait for a writer."""
    os.mkfifo(tmp_path / "table.csv")
    with pytest.raises(ClassesError, match=r"--classes .*table.csv: not a regular file, and a table is read more than"):
        catalog(root, os.fspath(tmp_path / "table.csv"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab")), max_size=10), st.integers(0, 10))
def test_the_line_of_the_first_bad_row_is_named(rows: list[tuple[int, str]], bad_at: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = Path(base) / "root"
        make(root, *(f"{at}.jpg" for at in range(6)))
        lines = [f"{at}.jpg,{name}" for at, name in rows]
        lines.insert(min(bad_at, len(lines)), "missing.jpg,a")
        said: dict[str, str] = {}
        rows_said = (text.split(",") for text in lines)
        bad = (path == "missing.jpg" or said.setdefault(path, name) != name for path, name in rows_said)
        number = list(bad).index(True) + 2
        with pytest.raises(ClassesError, match=f"line {number}: "):
            catalog(root, table(Path(base), "path,class\n" + "\n".join(lines) + "\n"))


def test_a_table_labels_a_group_by_any_of_its_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root, "1.jpg", "1.txt", "2.jpg", "2.txt", "3.jpg", "3.txt")
    found = catalog(root, table(tmp_path, "path,class\n1.txt,cat\n2.jpg,cat\n2.txt,cat\n"), groups="stem")
    assert content(found) == {"cat": [["1.jpg", "1.txt"], ["2.jpg", "2.txt"]]}
    with pytest.raises(ClassesError, match=r"line 3: 1.txt is 'dog', but 1.jpg of the same group is 'cat' in line 2"):
        catalog(root, table(tmp_path, "path,class\n1.jpg,cat\n1.txt,dog\n"), groups="stem")


def test_samples_are_numbered_by_class_then_directory_then_name(tmp_path: Path) -> None:
    make(tmp_path, "b/2.jpg", "b/1.jpg", "a/z/1.jpg", "a/9.jpg", "a-b/1.jpg")
    assert flat(catalog(tmp_path, "any")) == {
        ".": ["a/9.jpg", "a-b/1.jpg", "a/z/1.jpg", "b/1.jpg", "b/2.jpg"],
    }


@given(st.lists(st.binary(min_size=1, max_size=9).filter(lambda name: b"/" not in name), min_size=1, max_size=20))
def test_hashes_are_those_of_the_pieces(names: list[bytes]) -> None:
    name_at = np.cumsum([0, *map(len, names)], dtype=np.int64)
    text = np.frombuffer(b"".join(names), np.uint8)
    (stems,) = stems_of(text, name_at, np.arange(len(names)))
    expected: list[bytes] = [name[:dot] if (dot := name.rfind(b".")) > 0 else name for name in names]
    assert stems.whole().tolist() == [hash_text(stem) for stem in expected]
    owner, place = stems.cuts()
    heads = stems.hash_of(stems.start[owner], place).tolist()
    separators = set(b"_-. ()")
    assert heads == [hash_text(stem[:at]) for stem in expected for at in range(1, len(stem)) if stem[at] in separators]
