"""Driving: cameras, cities and logs as directories, with the labels mostly in a separate archive."""

from public_trees.public import at, drawn, hexes, letters, listed, named, own, part, public, some

CAMERAS = "CAM_BACK CAM_FRONT CAM_FRONT_LEFT CAM_FRONT_RIGHT"
RING = "ring_front_center ring_front_left ring_front_right ring_rear_left"
SPLIT_CITIES = (
    ("train", "aachen"),
    ("train", "bochum"),
    ("val", "frankfurt"),
    ("val", "munster"),
    ("test", "berlin"),
    ("test", "bonn"),
)
EUROPE = "amsterdam barcelona budapest dresden"

TREES = [
    public(
        "cityscapes",
        [
            f"{d}/{s}/{c}/{c}_{i:06d}_000019_{t}.png"
            for s, c in SPLIT_CITIES
            for i in range(7)
            for d, t in (("leftImg8bit", "leftImg8bit"), ("gtFine", "gtFine_labelIds"), ("gtFine", "gtFine_color"))
        ],
        "README",
        "license.txt",
        label=own,
        split=part(1),
    ),
    public(
        "cityscapes_leftImg8bit",
        [f"leftImg8bit/{s}/{c}/{c}_{i:06d}_000019_leftImg8bit.png" for s, c in SPLIT_CITIES for i in range(7)],
        label=own,
        split=part(1),
        source="leftImg8bit",
    ),
    public(
        "cityscapes_leftImg8bit_trainvaltest",
        [f"leftImg8bit/{s}/{c}/{c}_{i:06d}_000019_leftImg8bit.png" for s, c in SPLIT_CITIES for i in range(7)],
        "README",
        "license.txt",
        label=own,
        split=part(1),
    ),
    public(
        "ECP",
        [
            f"day/{d}/{s}/{c}/{c}_{i:05d}.{e}"
            for n, s in enumerate(("train", "val"))
            for c in EUROPE.split()
            for i in range(300 * n, 300 * n + 7)
            for d, e in (("img", "png"), ("labels", "json"))
        ],
        label=own,
        split=part(2),
    ),
    public(
        "ecp_images",
        [
            f"ECP/day/img/{s}/{c}/{c}_{i:05d}.png"
            for n, s in enumerate(("train", "val", "test"))
            for c in EUROPE.split()
            for i in range(300 * n, 300 * n + 8)
        ],
        label=own,
        split=part(3),
    ),
    public(
        "ecp_img_day",
        [
            f"ECP/day/img/{s}/{c}/{c}_{i:05d}.png"
            for n, s in enumerate(("train", "val", "test"))
            for c in EUROPE.split()
            for i in range(300 * n, 300 * n + 8)
        ],
        label=own,
        split=part(3),
        source="ECP/day/img",
    ),
    public(
        "bdd100k",
        at("images/100k/{s}/{h}-{j}.jpg", s="train val test", i=12, h=hexes(8), j=hexes(8)),
        at("labels/bdd100k_labels_images_{s}.json", s="train val"),
        label=own,
        split=part(2),
    ),
    public(
        "bdd100k_images",
        at("images/100k/{s}/{h}-{j}.jpg", s="train val test", i=12, h=hexes(8), j=hexes(8)),
        at("images/10k/{s}/{h}-{j}.jpg", s="train val test", i=8, h=hexes(8), j=hexes(8)),
        label=own,
        split=part(2),
    ),
    public(
        "bdd100k_track",
        at("images/track/{s}/{v}/{v}-{i:07d}.jpg", s="train", v="0000f77c-6257be58 0000f77c-62c2a288", i=range(1, 9)),
        at("images/track/{s}/{v}/{v}-{i:07d}.jpg", s="val", v="b1c66a42-6f7d68ca b1c9c847-3bda4659", i=range(1, 9)),
        label=own,
        split=part(2),
    ),
    public(
        "kitti_object",
        at("training/{d}/{i:06d}.png", d="image_2 image_3", i=8),
        at("training/{d}/{i:06d}.txt", d="calib label_2", i=8),
        at("testing/{d}/{i:06d}.png", d="image_2 image_3", i=8),
        label=own,
        split=part(0),
    ),
    public(
        "kitti_images",
        at("training/{d}/{i:06d}.png", d="image_2 image_3", i=8),
        at("testing/{d}/{i:06d}.png", d="image_2 image_3", i=8),
        label=own,
        split=part(0),
    ),
    public(
        "kitti_scene_flow",
        at("{s}/{d}/{n:06d}_{f}.png", s="training testing", d="image_2 image_3", n=range(6), f=(10, 11)),
        at("training/disp_occ_0/{n:06d}_10.png", n=range(6)),
        label=own,
        split=part(0),
    ),
    public(
        "kitti_raw",
        at("2011_09_26/2011_09_26_drive_000{n}_sync/image_0{c}/data/{i:010d}.png", n=(1, 2), c=(2, 3), i=8),
        at("2011_09_26/2011_09_26_drive_000{n}_sync/oxts/data/{i:010d}.txt", n=(1, 2), i=8),
        label=own,
        split=listed,
    ),
    public(
        "kitti_raw_images",
        at("2011_09_26/2011_09_26_drive_000{n}_sync/image_0{c}/data/{i:010d}.png", n=(1, 2), c=(0, 1, 2, 3), i=6),
        label=own,
        split=listed,
    ),
    public(
        "nuscenes",
        [
            f"{d}/{c}/n015-2018-07-24-11-22-45+0800__{c}__{1532402927612460 + 500_000 * i + n}.jpg"
            for n, d in enumerate(("samples", "sweeps"))
            for c in CAMERAS.split()
            for i in range(8)
        ],
        "v1.0-trainval/sample_data.json",
        "maps/36092f0b03a857c6a3403e25b4b7aab3.png",
        label=own,
        split=listed,
    ),
    public(
        "nuscenes_samples",
        [
            f"{d}/{c}/n015-2018-07-24-11-22-45+0800__{c}__{1532402927612460 + 500_000 * i + n}.jpg"
            for n, d in enumerate(("samples", "sweeps"))
            for c in CAMERAS.split()
            for i in range(8)
        ],
        label=own,
        split=listed,
    ),
    public(
        "nuscenes_keyframes",
        [
            f"samples/{c}/n015-2018-07-24-11-22-45+0800__{c}__{1532402927612460 + 500_000 * i + n}.jpg"
            for n, c in enumerate(CAMERAS.split())
            for i in range(8)
        ],
        label=own,
        split=listed,
        source="samples",
    ),
    public(
        "waymo_kitti_format",
        at("{s}/image_{c}/{s0}{i:06d}.png", s=("training",), s0=(0,), c=range(5), i=6),
        at("{s}/image_{c}/{s0}{i:06d}.png", s=("validation",), s0=(1,), c=range(5), i=6),
        at("training/label_all/0{i:06d}.txt", i=6),
        label=own,
        split=part(0),
    ),
    public(
        "waymo_images_alone",
        at("{s}/image_{c}/{s0}{i:06d}.png", s=("training",), s0=(0,), c=range(5), i=6),
        at("{s}/image_{c}/{s0}{i:06d}.png", s=("validation",), s0=(1,), c=range(5), i=6),
        label=own,
        split=part(0),
    ),
    public(
        "argoverse-tracking",
        [
            f"{s}/{v}/{c}/{c}_{315969904000000000 + 33_000_000 * i + 977 * n}.jpg"
            for s, v in (
                ("train1", "043aeba7-14e5-3cde-8a5c-639389b6d3a6"),
                ("train1", "10b8dee6-778f-33e4-a946-d842d2d9c3d7"),
                ("val", "00c561b9-2057-358d-82c6-5b06d76cebcf"),
                ("val", "033669d3-3d6b-3d3d-bd93-7985d86653ea"),
            )
            for n, c in enumerate(RING.split())
            for i in range(4)
        ],
        label=own,
        split=part(0),
    ),
    public(
        "argoverse2_sensor",
        [
            f"{s}/{v}/sensors/cameras/{c}/{315969904000000000 + 33_000_000 * i + 977 * n}.jpg"
            for s, v in (
                ("train", "00a6ffc1-6ce9-3bc3-a060-6006e9893a1a"),
                ("val", "02678d04-cc9f-3148-9f95-1ba66347dff9"),
            )
            for n, c in enumerate(RING.split())
            for i in range(6)
        ],
        label=own,
        split=part(0),
    ),
    public(
        "argoverse1_stereo",
        at(
            "rectified_stereo_images_v1.1/{v}/stereo_front_{e}_rect/stereo_front_{e}_rect_{k}.jpg",
            v="train/273c1883-673a-36bf-b124-88311b1a80be val/5ab2697b-6e3e-3454-a36a-aba2c6f27818",
            e="left right",
            k=range(315969904000000000, 315969905600000000, 200000000),
        ),
        label=own,
        split=part(1),
    ),
    public(
        "pandaset",
        at("{n:03d}/camera/{c}_camera/{i:02d}.jpg", n=(1, 2), c="back front front_left", i=6),
        at("{n:03d}/annotations/cuboids/{i:02d}.pkl.gz", n=(1, 2), i=6),
        label=own,
        split=listed,
    ),
    public(
        "mapillary-vistas",
        at(
            "{s}/images/{l}.jpg",
            "{s}/instances/{l}.png",
            "{s}/labels/{l}.png",
            s="training validation",
            i=7,
            l=letters(22),
        ),
        at("testing/images/{l}.jpg", i=7, l=letters(22)),
        "config.json",
        label=own,
        split=part(0),
    ),
    public(
        "mapillary_images_alone",
        at("{s}/images/{l}.jpg", s="training validation testing", i=9, l=letters(22)),
        label=own,
        split=part(0),
    ),
    public(
        "idd_leftImg8bit",
        at("leftImg8bit/{s}/{n}/frame{k:04d}_leftImg8bit.jpg", s="train val", n=(0, 1, 119), i=7, k=some(9999)),
        label=own,
        split=part(1),
        source="leftImg8bit",
    ),
    public(
        "acdc_rgb_anon",
        [
            f"rgb_anon/{c}/{s}/GOPR{n:04d}/GOPR{n:04d}_frame_{i:06d}_rgb_anon.png"
            for c in ("fog", "night", "rain", "snow")
            for m, s in enumerate(("train", "val"))
            for n in (475 + m,)
            for i in range(0, 60, 9)
        ],
        label=own,
        split=part(2),
        source="rgb_anon",
    ),
    public(
        "dark_zurich",
        [
            f"rgb_anon/{s}/{c}/GOPR{n:04d}/GOPR{n:04d}_frame_{i:06d}_rgb_anon.png"
            for m, s in enumerate(("train", "val"))
            for k, c in enumerate(("day", "night", "twilight"))
            for n in (340 + 20 * m + k,)
            for i in range(0, 60, 9)
        ],
        label=own,
        split=part(1),
    ),
    public(
        "shift_images",
        at(
            "discrete/images/train/{v}/{h}/{i:08d}_img_{v}.jpg",
            v="front left_45 right_45",
            h="0003-17fb 007b-4e72",
            i=5,
        ),
        at("discrete/images/val/{v}/{h}/{i:08d}_img_{v}.jpg", v="front left_45 right_45", h="0116-4859 01c7-9cb7", i=5),
        label=own,
        split=part(2),
    ),
    public(
        "tusimple",
        [
            f"{s}/clips/{d}/{n}/{i}.jpg"
            for s, d in (("train_set", "0313-1"), ("train_set", "0601"), ("test_set", "0530"))
            for n in (6040, 5320)
            for i in range(1, 7)
        ],
        "train_set/label_data_0313.json",
        label=own,
        split=part(0),
    ),
    public(
        "CULane",
        at(
            "driver_{d}_30frame/05151640_0419.MP4/{i:05d}.jpg",
            "driver_{d}_30frame/05151640_0419.MP4/{i:05d}.lines.txt",
            d=(23, 161),
            i=range(0, 300, 30),
        ),
        "list/train.txt",
        label=own,
        split=listed,
    ),
    public(
        "comma2k19_frames",
        at("Chunk_{c}/b0c9d2329ad1606b_2018-08-0{n}--14-38-55/{i}.jpg", c=(1, 2), n=(1, 2), i=8),
        label=own,
        split=listed,
    ),
    public(
        "kaist_multispectral",
        at("set{s:02d}/V00{v}/{m}/I{i:05d}.jpg", s=(0, 6), v=(0, 1), m="lwir visible", i=5),
        label=own,
        split=part(0),
    ),
    public(
        "LLVIP",
        at("{m}/{s}/{k:06d}.jpg", m="infrared visible", s=("train",), k=range(10001, 10012)),
        at("{m}/{s}/{k:06d}.jpg", m="infrared visible", s=("test",), k=range(190001, 190008)),
        label=own,
        split=part(1),
    ),
    public(
        "FLIR_ADAS_v2",
        at(
            "images_{m}_{s}/data/video-{l}-frame-{i:06d}-{h}.jpg",
            m="rgb thermal",
            s="train val",
            i=8,
            l=letters(17),
            h=letters(17),
        ),
        at("images_{m}_{s}/coco.json", m="rgb thermal", s="train val"),
        label=own,
        split=named("_(train|val)/"),
    ),
    public(
        "aicity_track1",
        at("{s}/S01/c00{c}/vdo.avi", s=("train",), c=(1, 2, 3)),
        at("{s}/S02/c00{c}/vdo.avi", s=("validation",), c=(6, 7)),
        at("train/S01/c00{c}/gt/gt.txt", c=(1, 2, 3)),
        label=own,
        split=part(0),
    ),
    public(
        "lyft_l5_perception",
        [
            f"{s}_images/host-a00{h}_cam{c}_12332{k:012d}.jpeg"
            for s, n in (("train", 0), ("test", 7))
            for h in (4, 7)
            for c in (0, 3)
            for k in range(n, 90, 20)
        ],
        "train.csv",
        "sample_submission.csv",
        label=own,
        split=part(0),
    ),
    public(
        "sviro_x5",
        [
            f"x5/{s}/{m}/x5_{s}_imageID_{i}_GT_{i % 7}_0_{i % 3}.png"
            for n, s in enumerate(("train", "test"))
            for m in ("RGB_wholeImage", "grayscale_wholeImage")
            for i in range(20 * n, 20 * n + 8)
        ],
        label=own,
        split=part(1),
    ),
    public(
        "udacity_self_driving",
        at("{c}_camera/{k}.jpg", c="center left right", i=10, k=some(10**18)),
        "interpolated.csv",
        label=own,
        split=drawn,
    ),
    public("object-detection-crowdai", at("{k}.jpg", i=30, k=some(10**18)), "labels.csv", label=own, split=listed),
    public(
        "zod_frames",
        [
            f"single_frames/{n:06d}/camera_front_{m}/{n:06d}_romeo_2022-02-14T13:23:32.140954Z.jpg"
            for n in (9, 26, 29)
            for m in ("blur", "dnat")
        ],
        label=own,
        split=listed,
    ),
]
