"""`--classes auto` on trees shaped like common datasets: the table in docs/classes.md, row by row."""

from __future__ import annotations

import os
import random
import string
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from redoxfs.dataset import Catalog, build_catalog, look_beside, read_tree
from redoxfs.dataset.errors import ClassesError
from redoxfs.doctor.verdict import fitting


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def catalog(root: Path, classes: str = "auto", groups: str | None = None) -> Catalog:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        tree = read_tree(fd, workers=2)
        return build_catalog(tree, classes=classes, groups=groups, root_fd=fd, beside=look_beside(fd))
    finally:
        os.close(fd)


def numbers(key: str, count: int) -> list[int]:
    """Numbers without meaning, other ones for each key: 0 and others below 100,000, ascending."""
    return sorted(random.Random(key).sample(range(100_000), count))


def imagenet(root: Path) -> None:
    for at, wnid in enumerate(("n01440764", "n01443537", "n01484850")):
        make(root, *(f"train/{wnid}/{wnid}_{at + 7 * i}.JPEG" for i in range(12)))
        make(root, *(f"val/{wnid}/ILSVRC2012_val_{at + 3 * i:08d}.JPEG" for i in range(5)))


def imagenet_as_downloaded(root: Path) -> None:
    """CLS-LOC. The labels of val/ and test/ are in the development kit."""
    for at, wnid in enumerate(("n01440764", "n01443537")):
        make(root, *(f"train/{wnid}/{wnid}_{at + 7 * i}.JPEG" for i in range(12)))
    make(root, *(f"val/ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, 11)))
    make(root, *(f"test/ILSVRC2012_test_{i:08d}.JPEG" for i in range(1, 11)))


def imagenet_det(root: Path) -> None:
    """The boxes are in Annotations/, which is another archive."""
    for at, wnid in enumerate(("n01440764", "n01443537")):
        make(root, *(f"train/ILSVRC2013_train/{wnid}/{wnid}_{at + 7 * i}.JPEG" for i in range(12)))
    make(root, *(f"train/ILSVRC2014_train_0000/ILSVRC2014_train_{i:08d}.JPEG" for i in range(5)))
    make(root, *(f"val/ILSVRC2012_val_{i:08d}.JPEG" for i in range(5)))


def imagenet_det_train(root: Path) -> None:
    """ILSVRC2013_train alone: a split, but its whole name is not a split word."""
    for at, wnid in enumerate(("n01440764", "n01443537")):
        make(root, *(f"ILSVRC2013_train/{wnid}/{wnid}_{at + 7 * i}.JPEG" for i in range(12)))


def imagenet_s(root: Path) -> None:
    """The label of train-semi/ is a mask."""
    for at, wnid in enumerate(("n01440764", "n01443537")):
        names = [f"{wnid}_{at + 7 * i}" for i in range(12)]
        make(root, *(f"train/{wnid}/{name}.JPEG" for name in names))
        make(root, *(f"train-semi/{wnid}/{name}.JPEG" for name in names[:5]))
        make(root, *(f"train-semi-segmentation/{wnid}/{name}.png" for name in names[:5]))
        for i in range(4):
            make(root, f"validation/{wnid}/ILSVRC2012_val_{at + 3 * i:08d}.JPEG")
            make(root, f"validation-segmentation/{wnid}/ILSVRC2012_val_{at + 3 * i:08d}.png")
    make(root, *(f"test/ILSVRC2012_test_{i:08d}.JPEG" for i in range(5)))


def tiny_imagenet(root: Path) -> None:
    make(root, "wnids.txt", "words.txt", "val/val_annotations.txt")
    for wnid in ("n01443537", "n01629819"):
        make(root, f"train/{wnid}/{wnid}_boxes.txt", *(f"train/{wnid}/images/{wnid}_{i}.JPEG" for i in range(5)))
    for split in ("val", "test"):
        make(root, *(f"{split}/images/{split}_{i}.JPEG" for i in range(5)))


def imagenette(root: Path) -> None:
    imagenet(root)
    make(root, "train/.DS_Store", "val/.DS_Store")


def imagenette_with_noisy_labels(root: Path) -> None:
    imagenette(root)
    make(root, "noisy_imagenette.csv")


def random_uuid(key: str) -> uuid.UUID:
    return uuid.UUID(int=random.Random(key).getrandbits(128), version=4)


def inaturalist(root: Path) -> None:
    for at, name in enumerate(
        ("00000_Animalia_Annelida_Lumbricus_terrestris", "00001_Plantae_Tracheophyta_Acer_rubrum")
    ):
        for split in ("train", "val"):
            make(root, *(f"{split}/{name}/{random_uuid(f'{split}{at}{i}')}.jpg" for i in range(8)))
    make(root, *(f"public_test/{uuid.UUID(int=1 << 126 | i, version=4)}.jpg" for i in range(8)))


def places365(root: Path) -> None:
    for name in ("airfield", "airplane_cabin"):
        make(root, *(f"train/{name}/{i:08d}.jpg" for i in range(1, 9)))
        make(root, *(f"val/{name}/Places365_val_{i * 7 + len(name):08d}.jpg" for i in range(4)))


def places365_with_lists(root: Path) -> None:
    places365(root)
    (root / "train.txt").write_text("train/airfield/00000001.jpg\n")


def eurosat(root: Path) -> None:
    for name in ("AnnualCrop", "Forest", "SeaLake"):
        make(root, *(f"2750/{name}/{name}_{i}.jpg" for i in range(1, 12)))


def flower_photos(root: Path) -> None:
    make(root, "LICENSE.txt")
    for at, name in enumerate(("daisy", "dandelion", "tulips")):
        make(root, *(f"{name}/{10140303 + at * 50 + i}_{0xB88D3D6CEC + i * 7919 + at:x}_n.jpg" for i in range(12)))


def oxford_pets(root: Path) -> None:
    make(root, "annotations/list.txt")
    for name in ("Abyssinian", "beagle"):
        make(root, *(f"images/{name}_{i}.jpg" for i in range(1, 6)))
        make(root, *(f"annotations/trimaps/{name}_{i}.png" for i in range(1, 6)))


def visual_genome(root: Path) -> None:
    make(
        root, *(f"VG_100K/{2316003 + i * 7}.jpg" for i in range(8)), *(f"VG_100K_2/{51 + i * 9}.jpg" for i in range(8))
    )


def msr_vtt(root: Path) -> None:
    make(
        root, *(f"TrainValVideo/video{i}.mp4" for i in range(8)), *(f"TestVideo/video{7010 + i}.mp4" for i in range(8))
    )


def aflw(root: Path) -> None:
    for at, folder in enumerate((0, 2, 3)):
        make(root, *(f"flickr/{folder}/image{i * 7 + at:05d}.jpg" for i in range(8)))


def redcaps(root: Path) -> None:
    for at, name in enumerate(("itookapicture", "earthporn")):
        make(root, *(f"{name}/{0xABC12 + at * 977 + i * 65537:x}z.jpg" for i in range(12)))


def dogs_vs_cats(root: Path) -> None:
    make(root, *(f"train/{name}.{i}.jpg" for name in ("cat", "dog") for i in range(5)))
    make(root, *(f"test1/{i}.jpg" for i in range(1, 6)), "sampleSubmission.csv")


def roboflow(root: Path) -> None:
    make(root, "README.dataset.txt", "README.roboflow.txt")
    for split in ("train", "valid", "test"):
        for name in ("rust", "healthy"):
            for i in numbers(split + name, 6):
                make(root, f"{split}/{name}/{name}-{i}_jpg.rf.{random_uuid(f'{name}{i}').hex}.jpg")


def unpacked_twice(root: Path) -> None:
    """Kaggle's archives: each folder lies in one of the same name."""
    for split in ("training_set", "test_set"):
        for name in ("cats", "dogs"):
            make(root, *(f"{split}/{split}/{name}/{name[:3]}.{i}.jpg" for i in numbers(split + name, 8)))
        make(root, f"{split}/{split}/_DS_Store")


def intel(root: Path) -> None:
    for split in ("seg_train", "seg_test"):
        for name in ("buildings", "sea"):
            make(root, *(f"{split}/{split}/{name}/{i}.jpg" for i in numbers(split + name, 8)))


def asl_alphabet(root: Path) -> None:
    for letter in string.ascii_uppercase:
        make(root, *(f"asl_alphabet_train/asl_alphabet_train/{letter}/{letter}{i}.jpg" for i in range(1, 6)))
        make(root, f"asl_alphabet_test/asl_alphabet_test/{letter}_test.jpg")


def svhn_like(root: Path) -> None:
    for split in ("train", "trainval", "extra"):
        for name in ("house", "number"):
            make(root, *(f"{split}/{name}/{name}_{i}.png" for i in numbers(split + name, 6)))


def mnist_png(root: Path) -> None:
    for at, split in enumerate(("training", "testing")):
        for digit in range(10):
            make(root, *(f"{split}/{digit}/{at}{i * 10 + digit}.png" for i in range(6)))


def other_classes_to_test(root: Path) -> None:
    """Few-shot: the classes of test/ are new."""
    for split, names in (("train", ("cat", "dog")), ("test", ("eel", "fox"))):
        for name in names:
            make(root, *(f"{split}/{name}/{name}_{i}.jpg" for i in range(6)))


def two_trainings(root: Path) -> None:
    """Two releases, or two cameras: no other part of the data shows that these are classes."""
    for at, split in enumerate(("train2014", "train2017")):
        for name in ("cat", "dog"):
            make(root, *(f"{split}/{name}/{name}_{at}{i}.jpg" for i in range(6)))


def one_folder_to_test(root: Path) -> None:
    """Keras needs a folder in test/, of any name."""
    cats_and_dogs(root)
    make(root, *(f"test/unknown/{i}.jpg" for i in range(8)))


def listed_classes(root: Path) -> None:
    cats_and_dogs(root)
    (root / "classes.txt").write_text("cats\ndogs\n")


def labels_line_by_line(root: Path) -> None:
    cats_and_dogs(root)
    (root / "classes.txt").write_text("cats\ndogs\ncats\n")


def list_of_other_names(root: Path) -> None:
    cats_and_dogs(root)
    (root / "classes.txt").write_text("cats\ndogs\neels\n")


def label_beside_the_image(root: Path) -> None:
    cats_and_dogs(root)
    (root / "train/cats/cat.0.txt").write_text("dogs\n")


def images_and_masks_by_split(root: Path) -> None:
    for name in ("beach", "city"):
        make(root, *(f"train_images/{name}/{name}_{i}.jpg" for i in range(6)))
        make(root, *(f"train_masks/{name}/{name}_{i}.png" for i in range(6)))
        make(root, *(f"val_images/{name}/{name}_{10 + i}.jpg" for i in range(6)))


def flat_masks(root: Path) -> None:
    cats_and_dogs(root)
    make(root, *(f"test/{i:03d}.jpg" for i in range(6)), *(f"test_masks/{i:03d}.png" for i in range(6)))


def camera_rig(root: Path) -> None:
    for split in ("train", "val"):
        for at, name in enumerate(("ring_front_left", "ring_rear_right", "stereo_front")):
            make(root, *(f"{split}/{name}/{len(split)}{at}{315966 + i * 7919}.jpg" for i in range(6)))


def sensor_suite(root: Path) -> None:
    for split in ("train", "val"):
        for at, name in enumerate(("CAM_FRONT", "LIDAR_TOP", "RearCamera")):
            make(root, *(f"{split}/{name}/{len(split)}{at}{315966 + i * 7919}.png" for i in range(6)))


def imagenet_one_a_class(root: Path) -> None:
    for at, wnid in enumerate(("n01440764", "n01443537", "n01484850")):
        make(root, f"train/{wnid}/{wnid}_{at}.JPEG", f"val/{wnid}/ILSVRC2012_val_{at:08d}.JPEG")


def cifar_equal_names(root: Path) -> None:
    for split in ("train", "test"):
        for name in ("airplane", "automobile", "bird"):
            make(root, *(f"{split}/{name}/{i:04d}.png" for i in range(10)))


def cifar_mixed_numbers(root: Path) -> None:
    """Numbered through the whole split, in the order of the dataset's arrays."""
    for split in ("train", "test"):
        order = random.Random(split).sample(range(30), 30)
        for at, name in enumerate(("airplane", "automobile", "bird")):
            make(root, *(f"{split}/{name}/{i:04d}.png" for i in order[at * 10 : at * 10 + 10]))


def cifar_running_numbers(root: Path) -> None:
    """Numbered through the whole split, class after class. Classes of one size would look like offset pairs."""
    for split in ("train", "test"):
        for first, last, name in ((0, 10, "airplane"), (10, 22, "automobile"), (22, 30, "bird")):
            make(root, *(f"{split}/{name}/{i:04d}.png" for i in range(first, last)))


def offset_pairs(root: Path) -> None:
    for split in ("train", "test"):
        for at, name in enumerate(("airplane", "automobile", "bird")):
            make(root, *(f"{split}/{name}/{at * 10 + i:04d}.png" for i in range(10)))


def class_named_files(root: Path) -> None:
    for split in ("train", "val"):
        for name in ("airplane", "automobile"):
            make(root, *(f"{split}/{name}/{name}_{i:04d}.png" for i in range(10)))


def cats_and_dogs(root: Path) -> None:
    """cats_and_dogs_filtered, with the other files that are common in such folders."""
    make(
        root,
        "README.md",
        "LICENSE.txt",
        "vectorize.py",
        "train/cats/Thumbs.db",
        ".git/index",
        "train/cats/.cache/7.jpg",
    )
    for name in ("cats", "dogs"):
        make(root, f"train/{name}/{name[:3]}.{len(name) if name == 'dogs' else 0}.jpg")
        make(root, *(f"train/{name}/{name[:3]}.{i}.jpg" for i in numbers("train" + name, 7)))
        make(root, *(f"validation/{name}/{name[:3]}.{i}.jpg" for i in numbers("validation" + name, 4)))


def coco(root: Path) -> None:
    make(root, "annotations/instances_train2017.json", "annotations/instances_val2017.json")
    for split in ("train2017", "val2017"):
        make(root, *(f"{split}/{i:012d}.jpg" for i in range(5)))


def coco_without_annotations(root: Path) -> None:
    for split in ("train2017", "val2017"):
        make(root, *(f"{split}/{i:012d}.jpg" for i in range(5)))


def yolo(root: Path) -> None:
    make(root, "data.yaml")
    for split in ("train", "val"):
        for i in range(4):
            make(root, f"images/{split}/{split}{i}.jpg", f"labels/{split}/{split}{i}.txt")


def cityscapes(root: Path) -> None:
    for split, city in (("train", "aachen"), ("train", "bochum"), ("val", "frankfurt"), ("val", "munster")):
        for i in range(4):
            make(
                root,
                f"leftImg8bit/{split}/{city}/{city}_{i:06d}_000019_leftImg8bit.png",
                f"gtFine/{split}/{city}/{city}_{i:06d}_000019_gtFine_labelIds.png",
            )


def renamed_cityscapes(root: Path) -> None:
    for split, city in (("train", "aachen"), ("val", "frankfurt")):
        for i in range(4):
            make(
                root,
                f"{split}/view/{city}_{i:06d}_leftImg8bit.png",
                f"{split}/answer/{city}_{i:06d}_gtFine_labelIds.png",
            )


def cities(root: Path) -> None:
    """Cityscapes' images under a name without meaning."""
    for split, city in (("train", "aachen"), ("train", "bochum"), ("val", "frankfurt"), ("val", "munster")):
        make(root, *(f"{split}/{city}/{city}_{i:06d}_000019.png" for i in range(4)))


def voc(root: Path) -> None:
    for i in range(4):
        make(root, f"JPEGImages/2007_{i:06d}.jpg", f"Annotations/2007_{i:06d}.xml")
        make(root, f"SegmentationClass/2007_{i:06d}.png")


def librispeech(root: Path) -> None:
    for split in ("train-clean-100", "dev-other"):
        for speaker in (19, 26):
            make(root, *(f"{split}/{speaker}/198/{speaker}-198-{i:04d}.flac" for i in range(4)))
            make(root, f"{split}/{speaker}/198/{speaker}-198.trans.txt")


def clips(root: Path) -> None:
    for split in ("train", "test"):
        for name in ("archery", "bowling"):
            make(root, *(f"{split}/{name}/clip{i:02d}_f{j:04d}_crop.png" for i in range(4) for j in range(6)))


def flat_kaggle(root: Path) -> None:
    make(root, *(f"{name}.{i}.jpg" for name in ("cat", "dog") for i in range(5)))


def utkface(root: Path) -> None:
    for part in ("part1", "part2", "part3"):
        make(root, *(f"{part}/{20 + i}_{i % 2}_0_2017010{i}{part[-1]}.jpg.chip.jpg" for i in range(6)))
    make(root, "landmark_list_part1.txt")


def symlinks_by_class(root: Path) -> None:
    make(root, *(f"all/{i:04d}.jpg" for i in range(6)))
    for i in range(6):
        link = root / "by_class" / ("cat" if i % 2 else "dog") / f"{i:04d}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../all/{i:04d}.jpg")


def hub_cache(root: Path) -> None:
    make(root, "datasets--cats/refs/main", *(f"datasets--cats/blobs/{i:064x}" for i in range(4)))
    for i in range(4):
        link = root / "datasets--cats/snapshots/abc123/train" / ("cat" if i % 2 else "dog") / f"{i}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../../blobs/{i:064x}")


def rgb_and_depth(root: Path) -> None:
    for i in range(5):
        make(root, f"rgb/{i:04d}.png", f"depth/{i:04d}.png")


def unnamed_pair(root: Path) -> None:
    for i in range(5):
        make(root, f"first/{i:04d}.png", f"second/{i:04d}.png")


def pair_with_own_words(root: Path) -> None:
    for i in range(5):
        make(root, f"one/img_{i:04d}.png", f"two/seg_{i:04d}.png")


def partial_pair(root: Path) -> None:
    """Only one in five files has a partner. The others were lost."""
    make(root, *(f"first/{i:04d}.png" for i in range(20)), *(f"second/{i:04d}.png" for i in range(0, 100, 5)))


def hard_links(root: Path) -> None:
    cats_and_dogs(root)
    os.link(root / "train/cats/cat.0.jpg", root / "train/cats/again.jpg")


def hard_links_across(root: Path) -> None:
    cats_and_dogs(root)
    (root / "train/cats/near.jpg").symlink_to("cat.0.jpg")
    os.link(root / "train/cats/cat.0.jpg", root / "train/dogs/again.jpg")


def symlinks_across(root: Path) -> None:
    cats_and_dogs(root)
    (root / "train/cats/near.jpg").symlink_to("cat.0.jpg")
    (root / "train/dogs/again.jpg").symlink_to("../cats/cat.0.jpg")


def symlinks_in_one_directory(root: Path) -> None:
    cats_and_dogs(root)
    (root / "train/cats/near.jpg").symlink_to("cat.0.jpg")


def pix2pix(root: Path) -> None:
    for i in range(4):
        make(root, f"A/left_{i}.jpg", f"B/right_{i}.jpg")


def cyclegan(root: Path) -> None:
    make(root, *(f"trainA/a{i}.jpg" for i in range(4)), *(f"trainB/b{i}.jpg" for i in range(4)))


def sign_language(root: Path) -> None:
    for at, letter in enumerate("ABCDE"):
        make(root, *(f"{letter}/{letter}{at * 10 + i}.jpg" for i in range(4)))


def busi(root: Path) -> None:
    for name in ("benign", "malignant"):
        for i in range(4):
            make(root, f"{name}/{name} ({i}).png", f"{name}/{name} ({i})_mask.png")


def two_formats(root: Path) -> None:
    for at, name in enumerate(("cat", "dog")):
        for i in range(4):
            make(root, f"{name}/{at}{i}.jpg", f"{name}/{at}{i}.png")


def unknown_beside(root: Path) -> None:
    for at, name in enumerate(("cat", "dog")):
        make(root, *(f"{name}/{at}{i}.jpg" for i in range(4)), *(f"{name}/{at}{i}.points" for i in range(4)))


def arrays_beside(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "answers.npz")


def name_splits(root: Path) -> None:
    for at, name in enumerate(("cat", "dog")):
        make(root, *(f"{name}/{split}_{at}{i}.jpg" for split in ("train", "val") for i in range(4)))


def split_inside_class(root: Path) -> None:
    for at, name in enumerate(("cat", "dog")):
        make(root, *(f"{name}/{split}/{at}{i}{split}.jpg" for split in ("train", "val") for i in range(4)))


def domains(root: Path) -> None:
    for at, domain in enumerate(("painting", "cartoon")):
        for name in ("dog", "horse"):
            make(root, *(f"{domain}/{name}/{name}{at}{i}.jpg" for i in range(4)))


def uneven_depth(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "train/dogs/puppies/dog.100.jpg")


def one_class(root: Path) -> None:
    make(root, *(f"cats/cat.{i}.jpg" for i in range(4)))


def empty(root: Path) -> None:
    del root


def text_only(root: Path) -> None:
    make(root, "pos/1.rtf", "neg/2.rtf")


def packed_table(root: Path) -> None:
    cats_and_dogs(root)
    make(root, "extra/answers.csv.gz")


# (the tree, words that the line must have, whether each split is redirected)
REDIRECTED: list[tuple[Callable[[Path], None], str, dict[str, bool]]] = [
    (imagenet, "6 class directories (train 3, val 3)", {"train": True, "val": True}),
    (imagenet_one_a_class, "6 class directories", {"train": True, "val": True}),
    (imagenet_as_downloaded, "2 class directories (train 2)", {"train": True, "val": False, "test": False}),
    (imagenette, "6 class directories", {"train": True, "val": True}),
    (inaturalist, "4 class directories (train 2, val 2)", {"train": True, "val": True, "public_test": False}),
    (cifar_mixed_numbers, "6 class directories (test 3, train 3)", {"train": True, "test": True}),
    (cifar_running_numbers, "6 class directories (test 3, train 3)", {"train": True, "test": True}),
    (cats_and_dogs, "4 class directories (train 2, validation 2)", {"train": True, "validation": True}),
    (roboflow, "6 class directories", {"train": True, "valid": True, "test": True}),
    (unpacked_twice, "4 class directories", {"training_set/training_set": True, "test_set/test_set": True}),
    (intel, "4 class directories", {"seg_train/seg_train": True, "seg_test/seg_test": True}),
    (svhn_like, "6 class directories", {"train": True, "trainval": True, "extra": True}),
    (one_folder_to_test, "4 class directories", {"train": True, "validation": True, "test": False}),
    (listed_classes, "4 class directories", {"train": True, "validation": True}),
]

# The options that a line may suggest. It always suggests a sampler and FILE.csv.
DIR, ANY, STEM = "--classes dir", "--classes any", "--groups stem"

# (the tree, words that the line must have, the options that it suggests besides a table)
REFUSED: list[tuple[Callable[[Path], None], str, set[str]]] = [
    (imagenet_det, "samples lie at more than one place", {ANY}),
    (imagenet_det_train, "no other split has the same directories", {DIR, ANY}),
    (
        imagenet_s,
        "train/n01440764/n01440764_0.JPEG and train-semi/n01440764/n01440764_0.JPEG may be parts of one sample",
        set(),
    ),
    (tiny_imagenet, "looks like a label table", set()),
    (imagenette_with_noisy_labels, "noisy_imagenette.csv looks like a label table", {DIR}),
    (places365, "train/airfield/00000001.jpg and train/airplane_cabin/00000001.jpg", {DIR}),
    (places365_with_lists, "train.txt looks like a label table", {DIR}),
    (eurosat, "nothing shows that 2750/AnnualCrop and 2750/Forest are classes: there is no second split", {DIR}),
    (flower_photos, "nothing shows that daisy and dandelion are classes: there is no second split", {DIR, ANY}),
    (oxford_pets, "annotations/list.txt looks like a label table", set()),
    (visual_genome, "VG_100K and VG_100K_2 are named like numbered things", {ANY}),
    (msr_vtt, "nothing shows that TestVideo and TrainValVideo are classes", {ANY}),
    (aflw, "nothing shows that flickr/0 and flickr/2 are classes", {DIR, ANY}),
    (redcaps, "nothing shows that earthporn and itookapicture are classes", {DIR}),
    (dogs_vs_cats, "test1/1.jpg lies directly in the split test1", set()),
    (sign_language, "nothing shows that A and B are classes", {DIR, ANY}),
    (asl_alphabet, "no other split has the same directories", {DIR}),
    (mnist_png, "the names of all their directories are numbers", {DIR}),
    (other_classes_to_test, "test/eel and test/fox are classes: no other split has the same directories", {DIR}),
    (two_trainings, "no other split has the same directories", {DIR}),
    (cities, "no other split has the same directories", {DIR}),
    (labels_line_by_line, "classes.txt looks like a label table", {DIR}),
    (list_of_other_names, "classes.txt looks like a label table", {DIR}),
    (label_beside_the_image, "train/cats/cat.0.txt looks like a label table", {DIR}),
    (images_and_masks_by_split, "train_images/beach/beach_0.jpg and train_masks/beach/beach_0.png", set()),
    (flat_masks, "test/000.jpg and test_masks/000.png may be parts of one sample", set()),
    (camera_rig, "train/ring_front_left and train/ring_rear_right are named like cameras or sensors", set()),
    (sensor_suite, "train/CAM_FRONT and train/LIDAR_TOP are named like cameras or sensors", set()),
    (offset_pairs, "airplane/0000.png and test/airplane/0001.png are numbered in a row", {DIR, ANY}),
    (class_named_files, "airplane_0000.png and train/automobile/automobile_0000.png may be parts", {DIR}),
    (cifar_equal_names, "test/airplane/0000.png and test/automobile/0000.png may be parts of one sample", {DIR}),
    (coco, "annotations/instances_train2017.json looks like a label table", set()),
    (coco_without_annotations, "train2017/000000000000.jpg lies directly in the split", {ANY}),
    (yolo, "data.yaml looks like a label table", set()),
    (cityscapes, "gtFine is named like a part of each sample", set()),
    (renamed_cityscapes, "train/answer/aachen_000000_gtFine_labelIds.png and train/view/aachen_000000_", {DIR}),
    (voc, "Annotations/2007_000000.xml looks like a label table", set()),
    (librispeech, "198.trans.txt looks like a label table", set()),
    (clips, "clip00_f0000_crop.png has more in its name than an identity (00 and 0000)", {DIR}),
    (flat_kaggle, "cat.0.jpg lies at the top", set()),
    (utkface, "landmark_list_part1.txt looks like a label table", set()),
    (symlinks_by_class, "by_class/cat/0001.jpg is a symlink", {ANY}),
    (hub_cache, "is a symlink", set()),
    (rgb_and_depth, "depth is named like a part of each sample", set()),
    (unnamed_pair, "and the script does not pair first/0000.png and second/0000.png: --classes dir", {DIR}),
    (pair_with_own_words, "the script does not pair one/img_0000.png and two/seg_0000.png: --classes dir", {DIR}),
    (partial_pair, "and the script does not pair first/0000.png and second/0000.png: --classes dir", {DIR}),
    (hard_links, "train/cats/again.jpg has a second name (hard link)", {DIR}),
    (hard_links_across, "train/cats/cat.0.jpg and train/dogs/again.jpg in another directory are one file", set()),
    (symlinks_across, "train/dogs/again.jpg is a symlink to train/cats/cat.0.jpg in another directory", {ANY}),
    (symlinks_in_one_directory, "train/cats/near.jpg is a symlink, so", {DIR, ANY}),
    (pix2pix, "two sides of a pair", set()),
    (cyclegan, "trainA is named like a part", set()),
    (busi, "benign/benign (0).png and benign (0)_mask.png may be parts of one sample", set()),
    (two_formats, "cat/00.jpg and 00.png may be parts of one sample", {STEM, DIR}),
    (unknown_beside, "cat/00.points is not a sample and may hold labels", set()),
    (arrays_beside, "answers.npz may hold labels", {DIR}),
    (name_splits, "the script does not use train and 00 in cat/train_00.jpg: --classes dir", {DIR}),
    (split_inside_class, "lies directly in the split cat/train", {ANY}),
    (domains, "cartoon holds directories of samples but is not named like a split", {DIR}),
    (uneven_depth, "train/dogs holds both samples and directories of samples", {DIR, ANY}),
    (one_class, "cats is the only directory with samples in .", {ANY}),
    (empty, "the source holds no files", set()),
    (text_only, "--samples GLOB", set()),
    (packed_table, "extra/answers.csv.gz looks like a label table", {DIR}),
]


def made(tmp_path: Path, build: Callable[[Path], None], name: str = "source") -> Path:
    root = tmp_path / name
    root.mkdir()
    build(root)
    return root


def check_redirected(root: Path, words: str, splits: dict[str, bool]) -> None:
    found = catalog(root)
    assert found.verdict.mode == "dir", found.verdict.line
    assert words in found.verdict.line
    assert "\n" not in found.verdict.line
    assert {finding.split: finding.redirected for finding in found.verdict.splits} == splits
    redirected = [finding for finding in found.verdict.splits if finding.redirected]
    assert len(found.class_of) == sum(finding.samples for finding in redirected)
    assert found.sample_files == sum(finding.samples for finding in found.verdict.splits)
    for entry in found.members.tolist():
        path = Path(found.tree.path(entry).decode())
        assert splits[str(path.parent.parent)]


def check_refused(root: Path, words: str, offered: set[str]) -> None:
    found = catalog(root)
    assert found.verdict.mode == "none", found.verdict.line
    assert words in found.verdict.line
    assert "\n" not in found.verdict.line
    assert found.verdict.line.startswith("not redirecting: ")
    assert {option for option in (DIR, ANY, STEM) if option in found.verdict.line} == offered, found.verdict.line
    for always in (
        "--classes sampler",
        "--classes FILE.csv, for one label a file (boxes, pairs and order would be wrong)",
    ):
        assert always in found.verdict.line or "no files" in found.verdict.line
    assert found.verdict.line.count("--groups") == found.verdict.line.count("the script opens them together, each time")
    assert (found.sample_of == -1).all()
    assert not any(finding.redirected for finding in found.verdict.splits)


@pytest.mark.parametrize(("build", "words", "splits"), REDIRECTED, ids=[row[0].__name__ for row in REDIRECTED])
def test_each_split_of(tmp_path: Path, build: Callable[[Path], None], words: str, splits: dict[str, bool]) -> None:
    check_redirected(made(tmp_path, build), words, splits)


@pytest.mark.parametrize(("build", "words", "offered"), REFUSED, ids=[row[0].__name__ for row in REFUSED])
def test_nothing_is_redirected_of(tmp_path: Path, build: Callable[[Path], None], words: str, offered: set[str]) -> None:
    check_refused(made(tmp_path, build), words, offered)


def test_a_source_named_like_half_of_a_pair_is_refused(tmp_path: Path) -> None:
    cityscapes(tmp_path)
    check_refused(tmp_path / "leftImg8bit", "the source is called leftImg8bit", set())


def test_a_source_named_for_the_kind_of_its_files_is_told_how_to_remove_the_doubt(tmp_path: Path) -> None:
    for name in ("audio", "Images"):
        make(tmp_path / name, "train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg", "val/dog/4.jpg")
        check_refused(
            tmp_path / name,
            f"the source is called {name}, which names a part of each sample, so its labels may lie beside it; "
            f"if {name} names only the kind of its files, and the directory is the label: --classes dir; ",
            {DIR, ANY},
        )


def test_odd_names_stay_on_one_line(tmp_path: Path) -> None:
    make(tmp_path, "a\nb.csv", "cat/1.jpg", "dog/2.jpg")
    line = catalog(tmp_path).verdict.line
    assert line.startswith("not redirecting: a\\nb.csv looks like a label table")
    assert line.isprintable()


def test_with_groups_auto_redirects_nothing(tmp_path: Path) -> None:
    cats_and_dogs(tmp_path)
    assert catalog(tmp_path, groups="stem").verdict.mode == "none"
    assert catalog(tmp_path, classes="dir", groups="stem").verdict.mode == "dir"


def test_equal_names_in_sibling_classes_are_redirected_on_request(tmp_path: Path) -> None:
    cifar_equal_names(tmp_path)
    found = catalog(tmp_path, classes="dir")
    assert found.class_names == [
        f"{split}/{name}" for split in ("test", "train") for name in ("airplane", "automobile", "bird")
    ]
    assert found.class_trees == ["test", "train"]


def test_a_few_chance_twins_are_no_doubt(tmp_path: Path) -> None:
    """Two classes of 30 of 1,000 numbers share one by chance."""
    drawn = random.Random(0).sample(range(1000), 62)
    for split in ("train", "val"):
        make(tmp_path, *(f"{split}/cat/{i:04d}.jpg" for i in drawn[:30]))
        make(tmp_path, *(f"{split}/dog/{i:04d}.jpg" for i in drawn[29:59]))
    assert catalog(tmp_path).verdict.mode == "dir"
    make(tmp_path, *(f"train/dog/{i:04d}.jpg" for i in drawn[:3]))
    assert catalog(tmp_path).verdict.mode == "none"


@pytest.mark.parametrize(
    ("one", "other"),
    [("train/cats/cat.0.jpg", "validation/cats/again.jpg"), ("train/cats/1.jpg", "train/cats/val_1.jpg")],
    ids=["two directories", "two names"],
)
def test_no_option_is_offered_that_refuses_a_file_in_two_splits(tmp_path: Path, one: str, other: str) -> None:
    cats_and_dogs(tmp_path)
    make(tmp_path, one)
    os.link(tmp_path / one, tmp_path / other)
    line = catalog(tmp_path).verdict.line
    assert "--classes any" not in line
    assert "--classes sampler" not in line
    assert "--classes FILE.csv, for one label a file" in line
    assert ("else: --classes FILE.csv" in line) == (DIR in line)
    # What `doctor` and `status` make of it.
    assert fitting(line) == ({"classes": "dir"} if DIR in line else {})
    for classes in ("any", "sampler"):
        with pytest.raises(ClassesError, match="are one file"):
            catalog(tmp_path, classes)
