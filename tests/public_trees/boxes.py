"""Boxes and captions: the labels are in a table or in a file beside the picture, in SOURCE or outside it."""

from public_trees.public import (
    at,
    drawn,
    hexes,
    listed,
    named,
    own,
    parent,
    part,
    public,
    some,
    through,
    whole,
)

BOXES = [
    public(
        "coco2017",
        at("{s}2017/{k:012d}.jpg", s="train val test", i=14, k=some(10**6)),
        at("annotations/{f}_{s}2017.json", f="captions instances person_keypoints", s="train val"),
        label=own,
        split=part(0),
    ),
    public(
        "coco2017_images_alone",
        at("{s}2017/{k:012d}.jpg", s="train val test unlabeled", i=14, k=some(10**6)),
        label=own,
        split=part(0),
    ),
    public(
        "coco2014",
        at("images/{s}2014/COCO_{s}2014_{k:012d}.jpg", s="train val", i=14, k=some(10**6)),
        label=own,
        split=part(1),
    ),
    public(
        "coco_stuff",
        at(
            "images/{s}2017/{k:012d}.jpg",
            "annotations/{s}2017/{k:012d}_labelTrainIds.png",
            s="train val",
            i=14,
            k=some(10**6),
        ),
        label=own,
        split=part(1),
    ),
    public(
        "coco_panoptic",
        at("{s}2017/{k:012d}.jpg", "annotations/panoptic_{s}2017/{k:012d}.png", s="train val", i=14, k=some(10**6)),
        "annotations/panoptic_train2017.json",
        label=own,
        split=part(0),
    ),
    public(
        "lvis_v1",
        at("{s}2017/{k:012d}.jpg", s="train val", i=14, k=some(10**6)),
        "lvis_v1_train.json",
        label=own,
        split=listed,
    ),
    public("refcoco_train2014", at("COCO_train2014_{k:012d}.jpg", i=30, k=some(10**6)), label=own, split=listed),
    public(
        "VOC2012",
        at(
            "JPEGImages/2007_{i:06d}.jpg",
            "Annotations/2007_{i:06d}.xml",
            "SegmentationClass/2007_{i:06d}.png",
            "SegmentationObject/2007_{i:06d}.png",
            i=range(27, 45),
        ),
        at("ImageSets/{d}/{s}.txt", d="Main Segmentation", s="train val trainval"),
        label=own,
        split=listed,
    ),
    public(
        "VOCdevkit",
        at("VOC{y}/JPEGImages/{k:06d}.jpg", "VOC{y}/Annotations/{k:06d}.xml", y=(2007, 2012), i=12, k=through(5)),
        label=own,
        split=listed,
    ),
    public(
        "voc_images_by_year",
        at("VOC{y}/JPEGImages/{k:06d}.jpg", y=(2007, 2012), i=12, k=through(5)),
        label=own,
        split=listed,
    ),
    public(
        "open_images",
        at("train_{d}/{d}{h}.jpg", d="0 1 a f", i=8, h=hexes(15)),
        at("{s}/{h}.jpg", s="validation test", i=10, h=hexes(16)),
        label=own,
        split=named("^(train|validation|test)"),
    ),
    public("open_images_train", at("train_{d}/{d}{h}.jpg", d="0 1 a f", i=9, h=hexes(15)), label=own, split=whole),
    public(
        "objects365",
        at("{s}/patch{d}/objects365_v1_{k:08d}.jpg", s="train val", d=(0, 1, 2, 15), i=8, k=some(10**7)),
        label=own,
        split=part(0),
    ),
    public(
        "objects365_v2",
        at("images/{s}/patch{d}/objects365_v2_{k:08d}.jpg", s="train val", d=(0, 1, 2, 15), i=8, k=some(10**7)),
        "zhiyuan_objv2_train.json",
        label=own,
        split=part(1),
    ),
    public(
        "CrowdHuman",
        at("Images/{k},{h}.jpg", i=30, k=some(300_000), h=hexes(14)),
        "annotation_train.odgt",
        "annotation_val.odgt",
        label=own,
        split=listed,
    ),
    public(
        "crowdhuman_parts",
        at("CrowdHuman_train0{d}/Images/{k},{h}.jpg", d=(1, 2, 3), i=9, k=some(300_000), h=hexes(14)),
        at("CrowdHuman_val/Images/{k},{h}.jpg", i=9, k=some(300_000), h=hexes(14)),
        label=own,
        split=named("_(train|val)"),
    ),
    public(
        "WIDER_FACE",
        [
            f"WIDER_{s}/images/{c}/{c.replace('--', '_')}_marchingband_1_{k}.jpg"
            for n, s in enumerate(("train", "val", "test"))
            for c in ("0--Parade", "1--Handshaking", "10--People_Marching")
            for k in range(5 + n, 60, 6)
        ],
        at("wider_face_split/wider_face_{s}_bbx_gt.txt", s="train val"),
        label=own,
        split=part(0),
    ),
    public(
        "wider_face_images",
        [
            f"WIDER_{s}/images/{c}/{c.replace('--', '_')}_marchingband_1_{k}.jpg"
            for n, s in enumerate(("train", "val", "test"))
            for c in ("0--Parade", "1--Handshaking", "10--People_Marching")
            for k in range(5 + n, 60, 6)
        ],
        label=own,
        split=part(0),
    ),
    public(
        "visual_genome",
        at("VG_100K/{k}.jpg", i=15, k=some(2_400_000)),
        at("VG_100K_2/{k}.jpg", i=15, k=some(2_400_000)),
        label=own,
        split=listed,
    ),
    public(
        "visual_genome_with_tables",
        at("VG_100K/{k}.jpg", i=15, k=some(2_400_000)),
        at("VG_100K_2/{k}.jpg", i=15, k=some(2_400_000)),
        at("{f}.json", f="objects relationships region_descriptions"),
        label=own,
        split=listed,
    ),
    public("flickr30k-images", at("{k}.jpg", i=30, k=some(10**10)), label=own, split=listed),
    public(
        "Flicker8k_Dataset",
        at("Images/{k}_{h}.jpg", i=30, k=some(10**10), h=hexes(10)),
        "captions.txt",
        label=own,
        split=drawn,
    ),
    public("vizwiz", at("{s}/VizWiz_{s}_{i:08d}.jpg", s="train val test", i=12), label=own, split=part(0)),
    public(
        "gqa_clevr",
        at("images/{s}/CLEVR_{s}_{i:06d}.png", s="train val test", i=12),
        at("questions/CLEVR_{s}_questions.json", s="train val test"),
        label=own,
        split=part(1),
    ),
    public(
        "hico_20160224_det",
        at("images/{s}2015/HICO_{s}2015_{i:08d}.jpg", s="train test", i=range(1, 14)),
        "anno_bbox.mat",
        label=own,
        split=part(1),
    ),
    public(
        "ExDark",
        at("{c}/2015_{k:05d}.{e}", c="Bicycle Boat Bottle Bus", i=10, k=through(1), e=("jpg",)),
        label=own,
        split=listed,
    ),
    public(
        "DOTA",
        at("{s}/images/P{k:04d}.png", "{s}/labelTxt/P{k:04d}.txt", s="train val", i=10, k=some(2800)),
        label=own,
        split=part(0),
    ),
    public(
        "Stanford40",
        [
            f"JPEGImages/{c}_{i:03d}.jpg"
            for c in ("applauding", "blowing_bubbles", "brushing_teeth")
            for i in range(1, 12)
        ],
        at("ImageSplits/{s}.txt", s="train test actions"),
        label=named(r"/(\D+)_\d"),
        split=listed,
    ),
    public(
        "SKU110K_fixed",
        at("images/{s}_{i}.jpg", s="train val test", i=12),
        "annotations/annotations_train.csv",
        label=own,
        split=named("/([a-z]+)_"),
    ),
    public(
        "ShanghaiTech",
        at(
            "part_{p}/{s}_data/images/IMG_{i}.jpg",
            "part_{p}/{s}_data/ground-truth/GT_IMG_{i}.mat",
            p="A B",
            s="train test",
            i=range(1, 9),
        ),
        label=own,
        split=part(1),
    ),
    public(
        "global-wheat-detection",
        at("{s}/{h}.jpg", s="train test", i=15, h=hexes(9)),
        "train.csv",
        "sample_submission.csv",
        label=own,
        split=part(0),
    ),
    public(
        "AwA2",
        [f"JPEGImages/{c}/{c}_{i}.jpg" for c in ("antelope", "bat", "beaver") for i in range(10001, 10012)],
        at("{f}.txt", f="classes predicates trainclasses testclasses"),
        label=parent,
        split=parent,
        ideal="dir",
    ),
]


TREES = BOXES
