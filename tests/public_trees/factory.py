"""Folders from Kaggle and Roboflow: products, fakes, boxes for detectors."""

from public_trees.public import (
    at,
    below,
    drawn,
    hexes,
    letters,
    named,
    own,
    parent,
    part,
    public,
    some,
    table,
)

FACTORY = [
    public(
        "surface-crack-detection",
        at("Negative/{i:05d}.jpg", i=range(1, 13)),
        at("Positive/{i:05d}.jpg", i=range(1, 7)),
        at("Positive/{i}_1.jpg", i=range(10001, 10006)),
        label=parent,
        split=drawn,
    ),
    public(
        "SDNET2018",
        at("{d}/{c}{d}/{k}-{i}.jpg", d="D P W", c="C U", i=10, k=some(7300, 7001)),
        label=named("/(.)"),
        split=drawn,
    ),
    public(
        "casting_data",
        at("casting_data/{s}/def_front/cast_def_0_{k}.jpeg", s="train test", i=12, k=some(9999)),
        at("casting_data/{s}/ok_front/cast_ok_0_{k}.jpeg", s="train test", i=12, k=some(9999)),
        label=parent,
        split=part(1),
        ideal="dir",
    ),
    public(
        "NEU-DET",
        [
            path
            for c in ("crazing", "inclusion", "patches")
            for path in at(f"train/images/{c}/{c}_{{i}}.jpg", f"train/annotations/{c}_{{i}}.xml", i=range(1, 13))
        ],
        [
            path
            for c in ("crazing", "inclusion", "patches")
            for path in at(
                f"validation/images/{c}/{c}_{{i}}.jpg", f"validation/annotations/{c}_{{i}}.xml", i=range(241, 247)
            )
        ],
        label=own,
        split=part(0),
    ),
    public(
        "mvtec_anomaly_detection",
        at("{c}/train/good/{i:03d}.png", c="bottle cable", i=12),
        at("{c}/test/{d}/{i:03d}.png", c="bottle cable", d="good broken", i=6),
        at("{c}/ground_truth/broken/{i:03d}_mask.png", c="bottle cable", i=6),
        label=named(r"(.*)/(?:train|test)/(.*)/"),
        split=part(1),
        ideal="test train",
    ),
    public(
        "bottle",
        at("train/good/{i:03d}.png", i=12),
        at("test/{d}/{i:03d}.png", d="good broken_large broken_small", i=6),
        at("ground_truth/{d}/{i:03d}_mask.png", d="broken_large broken_small", i=6),
        label=own,
        split=part(0),
    ),
    public(
        "KolektorSDD",
        at("kos{k:02d}/Part{i}.jpg", "kos{k:02d}/Part{i}_label.bmp", k=(1, 2, 3), i=8),
        label=own,
        split=drawn,
    ),
    public(
        "MIO-TCD-Classification",
        at("train/{c}/{k:08d}.jpg", c="articulated_truck background bicycle bus", i=10, k=some(10**6)),
        at("test/{k:08d}.jpg", i=15, k=some(10**6)),
        "gt_train.csv",
        label=below({"test": own}, parent),
        split=part(0),
        ideal="train",
    ),
]

ROBOFLOW = [
    public(
        "roboflow_yolo",
        *[
            at(
                "{s}/images/{f}_jpg.rf.{h}.jpg",
                "{s}/labels/{f}_jpg.rf.{h}.txt",
                s="train valid test",
                f=(f"IMG_{i}",),
                h=hexes(32),
            )
            for i in range(8)
        ],
        "data.yaml",
        "README.roboflow.txt",
        "README.dataset.txt",
        label=own,
        split=part(0),
    ),
    public(
        "roboflow_coco",
        *[at("{s}/IMG_{f}_jpg.rf.{h}.jpg", s="train valid test", f=(i,), h=hexes(32)) for i in range(12)],
        at("{s}/_annotations.coco.json", s="train valid test"),
        "README.roboflow.txt",
        label=own,
        split=part(0),
    ),
    public(
        "roboflow_folder",
        at("{s}/{c}/{k}_jpg.rf.{h}.jpg", s="train valid test", c="bishop knight pawn", i=9, k=some(9999), h=hexes(32)),
        "README.roboflow.txt",
        "README.dataset.txt",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "roboflow_multiclass",
        at("{s}/{k}_jpg.rf.{h}.jpg", s="train valid test", i=12, k=some(9999), h=hexes(32)),
        at("{s}/_classes.csv", s="train valid test"),
        "README.roboflow.txt",
        label=table,
        split=part(0),
    ),
    public(
        "oidv4",
        at(
            "OID/Dataset/{s}/{c}/{h}.jpg",
            "OID/Dataset/{s}/{c}/Label/{h}.txt",
            s="train validation test",
            c="Apple Orange",
            i=8,
            h=hexes(16),
        ),
        "OID/csv_folder/class-descriptions-boxable.csv",
        label=own,
        split=part(2),
    ),
    public(
        "yolo_ultralytics",
        at("images/{s}2017/{k:012d}.jpg", "labels/{s}2017/{k:012d}.txt", s="train val", i=10, k=some(10**6)),
        "LICENSE",
        label=own,
        split=part(1),
    ),
]

FAKES = [
    public(
        "140k-real-and-fake-faces",
        at("real_vs_fake/real-vs-fake/{s}/real/{k:05d}.jpg", s="train valid test", i=10, k=some(70_000)),
        at("real_vs_fake/real-vs-fake/{s}/fake/{k}.jpg", s="train valid test", i=10, k=letters(10)),
        at("{s}.csv", s="train valid test"),
        label=parent,
        split=part(2),
        ideal="dir",
    ),
    public(
        "cifake",
        at("{s}/REAL/{i:04d}.jpg", s="train test", i=10),
        at("{s}/REAL/{i:04d} ({c}).jpg", s="train test", i=3, c=range(2, 6)),
        at("{s}/FAKE/{i}.jpg", s="train test", i=10),
        at("{s}/FAKE/{i} ({c}).jpg", s="train test", i=3, c=range(2, 6)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "stable_diffusion_v_1_4",
        at("imagenet_ai_0419_sdv4/{s}/ai/{k:03d}_sdv4_{j:05d}.png", s="train val", i=12, k=some(999), j=some(9999)),
        at("imagenet_ai_0419_sdv4/train/nature/n01440764_{k}.JPEG", i=12, k=some(9999)),
        at("imagenet_ai_0419_sdv4/val/nature/ILSVRC2012_val_{k:08d}.JPEG", i=12, k=some(9999)),
        label=parent,
        split=part(1),
        ideal="dir",
    ),
    public(
        "deepfake-and-real-images",
        [
            path
            for s in ("Train", "Validation", "Test")
            for c in ("Fake", "Real")
            for path in at(f"Dataset/{s}/{c}/{c.lower()}_{{i}}.jpg", i=12)
        ],
        label=parent,
        split=part(1),
        ideal="dir",
    ),
    public(
        "CASIA2",
        at("Au/Au_ani_{k:05d}.jpg", i=15, k=some(30_000)),
        at("Tp/Tp_D_CRN_M_N_{k:05d}.tif", i=15, k=some(30_000)),
        at("CASIA 2 Groundtruth/Tp_D_CRN_M_N_{k:05d}_gt.png", i=15, k=some(30_000)),
        label=own,
        split=drawn,
    ),
    public(
        "nsfw_data",
        at("{s}/{c}/{h}.jpg", s="train test", c="drawings hentai neutral porn sexy", i=8, h=hexes(40)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "face-mask-12k",
        at(
            "Face Mask Dataset/{s}/{c}/{k}.png", s="Train Test Validation", c="WithMask WithoutMask", i=10, k=some(9999)
        ),
        label=parent,
        split=part(1),
        ideal="dir",
    ),
    public(
        "state-farm-distracted-driver-detection",
        at("imgs/train/{c}/img_{k}.jpg", c="c0 c1 c2 c3", i=10, k=some(99_999)),
        at("imgs/test/img_{k}.jpg", i=15, k=some(99_999)),
        "driver_imgs_list.csv",
        "sample_submission.csv",
        label=below({"imgs/test": own}, parent),
        split=part(1),
        ideal="train",
    ),
    public(
        "dog-breed-identification",
        at("{s}/{h}.jpg", s="train test", i=20, h=hexes(32)),
        "labels.csv",
        "sample_submission.csv",
        label=table,
        split=part(0),
    ),
    public(
        "linnaeus5",
        at("{s}/{c}/{i}_128.jpg", s="train test", c="berry bird dog flower other", i=range(1, 9)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "best-artworks-of-all-time",
        [
            path
            for a in ("Albrecht_Durer", "Claude_Monet")
            for path in at(f"images/images/{a}/{a}_{{i}}.jpg", i=range(1, 11))
        ],
        [
            path
            for a in ("Albrecht_Durer", "Claude_Monet")
            for path in at(f"resized/resized/{a}_{{i}}.jpg", i=range(1, 11))
        ],
        "artists.csv",
        label=named(r"/([A-Z][a-z]+_[A-Z][a-z]+)_\d+"),
        split=drawn,
    ),
]


TREES = FACTORY + ROBOFLOW + FAKES
