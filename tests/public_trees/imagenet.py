"""ImageNet and datasets made from it."""

from public_trees.public import (
    at,
    below,
    drawn,
    fixed,
    hexes,
    listed,
    named,
    own,
    parent,
    part,
    public,
    some,
    table,
    through,
    whole,
)

WNIDS = "n01440764 n01443537 n01484850 n02085620"
VAL = "ILSVRC2012_val_{k:08d}.JPEG"


def train(root: str = "train") -> list[str]:
    return list(at(root + "/{c}/{c}_{k}.JPEG", c=WNIDS, i=12, k=some(30_000)))


def flat(split: str, files: int = 20) -> list[str]:
    return list(at(f"{split}/ILSVRC2012_{split.rpartition('/')[2]}_{{i:08d}}.JPEG", i=range(1, files)))


def arranged(root: str = "val") -> list[str]:
    return list(at(root + "/{c}/" + VAL, c=WNIDS, i=6, k=some(50_000)))


# The files beside Data in Kaggle's archive.
KAGGLE = [
    *at("ILSVRC/Annotations/CLS-LOC/train/{c}/{c}_{k}.xml", c=WNIDS, i=8, k=some(30_000)),
    *at("ILSVRC/Annotations/CLS-LOC/val/ILSVRC2012_val_{i:08d}.xml", i=range(1, 20)),
    *at("ILSVRC/ImageSets/CLS-LOC/{s}.txt", s="train_cls train_loc val test"),
    *at("LOC_{f}", f="sample_submission.csv synset_mapping.txt train_solution.csv val_solution.csv"),
]
CLSLOC = "ILSVRC/Data/CLS-LOC"

TREES = [
    public(
        "imagenet",
        train(),
        flat("val"),
        flat("test"),
        label=below({"train/": parent}, table),
        split=part(0),
        ideal="train",
    ),
    public("imagenet_arranged", train(), arranged(), label=parent, split=part(0), ideal="dir"),
    public(
        "imagenet_torchvision",
        train(),
        arranged(),
        at("ILSVRC2012_{f}", f="devkit_t12.tar.gz img_train.tar img_val.tar"),
        "meta.bin",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public("imagenet_train_alone", train(), label=parent, split=whole, ideal="dir", source="train"),
    public(
        "imagenet_val_alone",
        train(),
        flat("val"),
        label=below({"train/": parent}, table),
        split=part(0),
        source="val",
    ),
    public(
        "imagenet_kaggle",
        train(f"{CLSLOC}/train"),
        flat(f"{CLSLOC}/val"),
        flat(f"{CLSLOC}/test"),
        KAGGLE,
        label=below({f"{CLSLOC}/train": parent}, table),
        split=part(3),
        ideal="train",
        source=CLSLOC,
    ),
    public(
        "imagenet-object-localization-challenge",
        train(f"{CLSLOC}/train"),
        flat(f"{CLSLOC}/val"),
        flat(f"{CLSLOC}/test"),
        KAGGLE,
        label=below({f"{CLSLOC}/train": parent}, table),
        split=part(3),
        ideal="train",
    ),
    public(
        "imagenet_boxes",
        train(f"{CLSLOC}/train"),
        flat(f"{CLSLOC}/val"),
        KAGGLE,
        label=own,
        split=part(3),
        source=CLSLOC,
        blind="boxes in Annotations, which lies beside Data; SOURCE is that of imagenet_kaggle",
    ),
    public(
        "imagenet_real_labels",
        train(),
        arranged(),
        label=below({"train/": parent}, table),
        split=part(0),
        ideal="train",
        blind="real.json elsewhere has new labels for each file of val; the tree is that of imagenet_arranged",
    ),
    public(
        "imagenet100_kaggle",
        [
            path
            for x, c in enumerate(WNIDS.split(), 1)
            for path in at(f"train.X{x}/{c}/{c}_{{k}}.JPEG", i=12, k=some(30_000))
        ],
        arranged("val.X"),
        "Labels.json",
        label=parent,
        split=named(r"^(train|val)"),
        ideal="dir",
    ),
    public(
        "imagenet_det",
        at("ILSVRC2013_train/{c}/{c}_{k}.JPEG", c=WNIDS, i=10, k=some(30_000)),
        at("ILSVRC2013_train_extra{x}/ILSVRC2013_train_{k:08d}.JPEG", x=3, i=8, k=through(1)),
        at("ILSVRC2014_train_000{x}/ILSVRC2014_train_{k:08d}.JPEG", x=3, i=8, k=through(1)),
        at("ILSVRC2013_DET_val/ILSVRC2012_val_{i:08d}.JPEG", i=range(1, 20)),
        label=own,
        split=named("_(train|val)"),
    ),
    public(
        "imagenet_det_train_alone",
        at("ILSVRC2013_train/{c}/{c}_{k}.JPEG", c=WNIDS, i=10, k=some(30_000)),
        label=own,
        split=whole,
        source="ILSVRC2013_train",
    ),
    public(
        "imagenet_det_kaggle",
        at("train/ILSVRC2013_train/{c}/{c}_{k}.JPEG", c=WNIDS, i=10, k=some(30_000)),
        at("train/ILSVRC2014_train_000{x}/ILSVRC2014_train_{k:08d}.JPEG", x=3, i=8, k=through(1)),
        flat("val"),
        flat("test"),
        label=own,
        split=part(0),
    ),
    public(
        "imagenet_vid",
        at("train/ILSVRC2015_VID_train_0000/ILSVRC2015_train_{v:08d}/{i:06d}.JPEG", v=(0, 1, 7), i=8),
        at("train/ILSVRC2015_VID_train_0001/ILSVRC2015_train_{v:08d}/{i:06d}.JPEG", v=(12, 19), i=8),
        at("val/ILSVRC2015_val_0000{v}000/{i:06d}.JPEG", v="1 2 3", i=8),
        label=own,
        split=part(0),
    ),
    public(
        "ImageNetS50",
        at("train/{c}/{c}_{k}.JPEG", c=WNIDS, i=12, k=through(100, 37)),
        [
            path
            for at_, wnid in enumerate(WNIDS.split())
            for i in range(10)
            for path in (
                f"train-semi/{wnid}/{wnid}_{100 + 37 * (12 * at_ + i)}.JPEG",
                f"train-semi-segmentation/{wnid}/{wnid}_{100 + 37 * (12 * at_ + i)}.png",
            )
        ],
        at(
            "validation/{c}/" + VAL,
            "validation-segmentation/{c}/ILSVRC2012_val_{k:08d}.png",
            c=WNIDS,
            i=6,
            k=some(50_000),
        ),
        at("test/{c}/" + VAL, c=WNIDS, i=6, k=some(50_000)),
        label=below({"train/": parent}, own),
        split=part(0),
        ideal="train",
    ),
    public(
        "tiny-imagenet-200",
        at("train/{c}/images/{c}_{i}.JPEG", c=WNIDS, i=12),
        at("train/{c}/{c}_boxes.txt", c=WNIDS),
        at("val/images/val_{i}.JPEG", i=20),
        "val/val_annotations.txt",
        at("test/images/test_{i}.JPEG", i=20),
        at("{f}.txt", f="wnids words"),
        label=below({"train/": part(1)}, table),
        split=part(0),
        ideal="train",
    ),
    public(
        "imagenette2",
        at("{s}/{c}/{c}_{k}.JPEG", s="train val", c=WNIDS, i=9, k=some(30_000)),
        at("{s}/{c}/" + VAL, s="train val", c=WNIDS, i=2, k=some(50_000)),
        "noisy_imagenette.csv",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "imagewoof",
        at("{s}/{c}/{c}_{k}.JPEG", s="train val", c=WNIDS, i=9, k=some(30_000)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "fall11_whole",
        at("{c}/{c}_{k}.JPEG", c=WNIDS, i=12, k=some(30_000)),
        label=parent,
        split=drawn,
    ),
    public(
        "imagenet21k_resized",
        at("imagenet21k_{s}/{c}/{c}_{k}.JPEG", s="train val", c=WNIDS, i=10, k=some(30_000)),
        at("imagenet21k_small_classes/{c}/{c}_{k}.JPEG", c="n00004475 n00006024", i=5, k=some(30_000)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "imagenet-r",
        at("{c}/{w}_{i}.jpg", c=WNIDS, w="art cartoon deviantart graffiti sketch", i=4),
        "README.txt",
        label=parent,
        split=whole,
        ideal="dir",
    ),
    public(
        "imagenet-a",
        at("{c}/0.{k:06d}_goldfish _ great white shark_0.{k:07d}.jpg", c=WNIDS, i=8, k=some(999_999)),
        "README.txt",
        label=parent,
        split=whole,
        ideal="dir",
    ),
    public("sketch", at("{c}/sketch_{i}.JPEG", c=WNIDS, i=12), label=parent, split=whole, ideal="dir"),
    public(
        "imagenetv2-matched-frequency-format-val",
        at("{c}/{h}.jpeg", c=range(10), i=6, h=hexes(40)),
        label=parent,
        split=whole,
        ideal="dir",
    ),
    public(
        "imagenet-c",
        at("{n}/{s}/{c}/ILSVRC2012_val_{i:08d}.JPEG", n="gaussian_noise fog", s="1 3", c=WNIDS, i=4),
        label=parent,
        split=whole,
        ideal="dir",
    ),
    public(
        "mini-imagenet",
        at("train/{c}/{c}_{k}.JPEG", c="n01532829 n01558993 n01704323", i=12, k=some(9999)),
        at("val/{c}/{c}_{k}.JPEG", c="n01855672 n02091244", i=12, k=some(9999)),
        at("test/{c}/{c}_{k}.JPEG", c="n01930112 n01981276", i=12, k=some(9999)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "mini-imagenet-ravi",
        at("images/{c}{k:08d}.jpg", c=WNIDS, i=10, k=some(10**8)),
        at("{s}.csv", s="train val test"),
        label=named(r"(n\d{8})"),
        split=listed,
    ),
    public(
        "ImageNet-9",
        at("original/val/{c}/{w}_{k}.JPEG", c="00_dog|01_bird|02_wheeled vehicle", w="n02085620", i=6, k=some(9999)),
        at(
            "mixed_rand/val/{c}/fg_{w}_{k}_bg_{k}.JPEG",
            c="00_dog|01_bird|02_wheeled vehicle",
            w="n02085620",
            i=6,
            k=some(9999),
        ),
        label=parent,
        split=whole,
        ideal="dir",
    ),
    public(
        "objectnet-1.0",
        at("images/{c}/{h}.png", c="air_freshener alarm_clock backpack", i=10, h=hexes(15)),
        at("mappings/{f}.json", f="folder_to_objectnet_label objectnet_to_imagenet_1k"),
        "README.md",
        label=parent,
        split=whole,
        ideal="dir",
    ),
    public(
        "webvision",
        at("{s}/q{q:04d}/{k}.jpg", s="flickr google", q=(12, 13, 14), i=8, k=some(10**9)),
        at("info/{f}", f="synsets.txt queries_synsets_map.txt train_filelist_google.txt"),
        at("val_images/val{i:06d}.jpg", i=range(1, 12)),
        label=below({"val_images": table}, parent),
        split=below({"val_images": fixed("val")}, fixed("train")),
        ideal="train",
    ),
]
