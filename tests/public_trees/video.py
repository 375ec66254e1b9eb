"""Videos: actions, tracks, captions."""

from public_trees.public import at, letters, listed, named, own, parent, part, public, some, table, through, whole

ACTIONS = "abseiling air_drumming answering_questions"
CLIP = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

VIDEO = [
    public(
        "UCF-101",
        [
            f"{c}/v_{c}_g{g:02d}_c{i:02d}.avi"
            for c in ("ApplyEyeMakeup", "Archery", "BabyCrawling")
            for g in (1, 2, 8, 25)
            for i in (1, 2, 3, 4)
        ],
        label=parent,
        split=listed,
    ),
    public(
        "hmdb51",
        at(
            "{c}/{t}_{c}_{p}_cm_np1_fr_med_{i}.avi",
            c="brush_hair cartwheel catch",
            t="April_09 Blonde_being",
            p="f u",
            i=4,
        ),
        at("testTrainMulti_7030_splits/{c}_test_split{i}.txt", c="brush_hair cartwheel", i=(1, 2, 3)),
        label=parent,
        split=listed,
    ),
    public(
        "kinetics400",
        at(
            "{s}/{c}/{v}_{k:06d}_{j:06d}.mp4",
            s="train val",
            c=ACTIONS,
            i=10,
            v=letters(11, CLIP),
            k=some(300),
            j=some(600, 300),
        ),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "kinetics400_videos",
        at(
            "videos_{s}/{c}/{v}_{k:06d}_{j:06d}.mp4",
            s="train val",
            c=ACTIONS,
            i=10,
            v=letters(11, CLIP),
            k=some(300),
            j=some(600, 300),
        ),
        at("annotations/kinetics_{s}.csv", s="train val"),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "k400_cvdf",
        at("{s}/{v}_{k:06d}_{j:06d}.mp4", s="train val test", i=12, v=letters(11, CLIP), k=some(300), j=some(600, 300)),
        at("annotations/{s}.csv", s="train val test"),
        label=table,
        split=part(0),
    ),
    public(
        "kinetics_rawframes",
        at(
            "rawframes_{s}/{c}/{v}/img_{i:05d}.jpg",
            s="train",
            c=ACTIONS,
            v="0347ZoDXyP0_000095_000105 1Pcg_kmw9fQ_000010_000020",
            i=range(1, 7),
        ),
        at("rawframes_{s}/{c}/{v}/img_{i:05d}.jpg", s="val", c=ACTIONS, v="0IZ5zjS8SLM_000002_000012", i=range(1, 7)),
        label=own,
        split=part(0),
    ),
    public("20bn-something-something-v2", at("{k}.webm", i=30, k=some(221_000)), label=table, split=listed),
    public("20bn-jester-v1", at("{v}/{i:05d}.jpg", v=(1, 2, 9, 148092), i=range(1, 10)), label=own, split=listed),
    public(
        "MSR-VTT",
        at("TrainValVideo/video{i}.mp4", i=20),
        at("TestVideo/video{i}.mp4", i=range(7010, 7022)),
        "train_val_videodatainfo.json",
        label=own,
        split=listed,
    ),
    public(
        "msrvtt_videos",
        at("TrainValVideo/video{i}.mp4", i=20),
        at("TestVideo/video{i}.mp4", i=range(7010, 7022)),
        label=own,
        split=listed,
    ),
    public(
        "Moments_in_Time_Raw",
        at(
            "{s}/{c}/yt-{v}_{k}.mp4",
            s="training validation",
            c="adult+female+singing aiming applauding",
            i=9,
            v=letters(11, CLIP),
            k=some(300),
        ),
        "trainingSet.csv",
        "validationSet.csv",
        "moments_categories.txt",
        "license.txt",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "Multi_Moments_in_Time",
        at(
            "videos/{c}/yt-{v}_{k}.mp4",
            c="adult+female+singing aiming applauding",
            i=9,
            v=letters(11, CLIP),
            k=some(300),
        ),
        "trainingSet.txt",
        "validationSet.txt",
        label=own,
        split=listed,
    ),
    public(
        "activitynet",
        at("v1-2/{s}/v_{v}.mp4", s="train val test", i=6, v=letters(11, CLIP)),
        at("v1-3/{s}/v_{v}.mp4", s="train_val test", i=6, v=letters(11, CLIP)),
        label=table,
        split=listed,
    ),
    public(
        "Charades_v1_480",
        at("{v}.mp4", i=30, v=letters(5, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")),
        label=own,
        split=listed,
    ),
    public(
        "epic_rgb_frames",
        at("{s}/P{p:02d}/P{p:02d}_{v:02d}/frame_{i:010d}.jpg", s="train", p=(1, 2), v=(1, 2), i=range(1, 8)),
        at("{s}/P{p:02d}/P{p:02d}_{v:02d}/frame_{i:010d}.jpg", s="test", p=(1, 2), v=(11, 12), i=range(1, 8)),
        label=own,
        split=part(0),
    ),
    public(
        "ucf_crime",
        [
            f"{s}/{c}/{c}{n:03d}_x264_{i}.png"
            for s, n in (("Train", 1), ("Test", 28))
            for c in ("Abuse", "Arrest", "Arson", "NormalVideos")
            for i in range(0, 120, 10)
        ],
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "dfdc_train",
        at("dfdc_train_part_{d}/{v}.mp4", d=(0, 1, 2, 49), i=8, v=letters(10, "abcdefghijklmnopqrstuvwxyz")),
        at("dfdc_train_part_{d}/metadata.json", d=(0, 1, 2, 49)),
        label=table,
        split=whole,
    ),
    public(
        "faceforensics",
        at("original_sequences/youtube/c23/videos/{i:03d}.mp4", i=12),
        at(
            "manipulated_sequences/{m}/c23/videos/{i:03d}_{j:03d}.mp4",
            m="Deepfakes Face2Face FaceSwap",
            i=12,
            j=through(700),
        ),
        label=part(0),
        split=listed,
    ),
    public(
        "ntu_rgbd",
        at("nturgb+d_rgb/S001C00{c}P{p:03d}R001A{a:03d}_rgb.avi", c=(1, 2, 3), p=(1, 3), a=(1, 2, 60)),
        label=named(r"A(\d{3})_rgb"),
        split=named(r"P(\d{3})"),
    ),
    public(
        "GOT-10k",
        at("{s}/GOT-10k_Train_{v:06d}/{i:08d}.jpg", s="train", v=(1, 2, 9), i=range(1, 8)),
        at("{s}/GOT-10k_Val_{v:06d}/{i:08d}.jpg", s="val", v=(1, 2), i=range(1, 8)),
        at("train/GOT-10k_Train_{v:06d}/groundtruth.txt", v=(1, 2, 9)),
        "train/list.txt",
        label=own,
        split=part(0),
    ),
    public(
        "LaSOT",
        at("{c}/{c}-{v}/img/{i:08d}.jpg", c="airplane basketball", v=(1, 10), i=range(1, 8)),
        at("{c}/{c}-{v}/groundtruth.txt", c="airplane basketball", v=(1, 10)),
        label=own,
        split=listed,
    ),
    public(
        "trackingnet",
        [
            f"TRAIN_{d}/frames/{v}_0/{i}.jpg"
            for d, v in ((0, "-3TIfnTSM6c"), (0, "0-ESaMUYvLc"), (1, "A7pkdH5mJxM"), (1, "0B1FkK5a8aM"))
            for i in range(8)
        ],
        label=own,
        split=whole,
    ),
    public(
        "TAO",
        at(
            "frames/{s}/{d}/{v}/frame{i:04d}.jpg",
            s=("train",),
            d="ArgoVerse BDD Charades LaSOT",
            v="0a1b 17ce",
            i=range(1, 80, 13),
        ),
        at(
            "frames/{s}/{d}/{v}/frame{i:04d}.jpg",
            s=("val",),
            d="ArgoVerse BDD Charades LaSOT",
            v="1d67 3b6f",
            i=range(1, 80, 13),
        ),
        label=own,
        split=part(1),
        source="frames",
    ),
    public(
        "Celeb-DF-v2",
        at("Celeb-real/id{p}_{i:04d}.mp4", p=(0, 1, 2), i=5),
        at("Celeb-synthesis/id{p}_id{q}_{i:04d}.mp4", p=(0, 1, 2), q=(16, 17), i=5),
        at("YouTube-real/{i:05d}.mp4", i=12),
        "List_of_testing_videos.txt",
        label=parent,
        split=listed,
    ),
    public(
        "webvid", at("videos/{d:06d}_{e:06d}/{k}.mp4", d=(0, 50), e=(1, 51), i=5, k=some(10**9)), label=own, split=whole
    ),
]


TREES = VIDEO
