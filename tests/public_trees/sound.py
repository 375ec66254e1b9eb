"""Sounds and music."""

from public_trees.public import (
    at,
    below,
    drawn,
    letters,
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

GENRES = "blues classical country disco"
CLIP = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

SOUNDS = [
    public(
        "ESC-50-master",
        at("audio/{f}-{k}-{t}-{c}.wav", f=range(1, 6), i=8, k=some(270_000), t="A", c=(0, 36)),
        "meta/esc50.csv",
        "README.md",
        label=named(r"-(\d+)\.wav"),
        split=named(r"/(\d)-"),
    ),
    public(
        "UrbanSound8K",
        at("audio/fold{f}/{k}-{c}-0-{i}.wav", f=(1, 2, 3, 10), c=(3, 5), i=5, k=some(210_000)),
        at("audio/fold{f}/.DS_Store", f=(1, 2, 3, 10)),
        "metadata/UrbanSound8K.csv",
        "UrbanSound8K_README.txt",
        label=named(r"/\d+-(\d)-"),
        split=part(1),
    ),
    public(
        "urbansound8k_audio",
        at("fold{f}/{k}-{c}-0-{i}.wav", f=(1, 2, 3, 10), c=(3, 5), i=5, k=some(210_000)),
        label=named(r"/\d+-(\d)-"),
        split=part(0),
    ),
    public("genres", [f"{c}/{c}.{i:05d}.au" for c in GENRES.split() for i in range(12)], label=parent, split=drawn),
    public(
        "gtzan_kaggle",
        [f"Data/genres_original/{c}/{c}.{i:05d}.wav" for c in GENRES.split() for i in range(12)],
        [f"Data/images_original/{c}/{c}{i:05d}.png" for c in GENRES.split() for i in range(12)],
        "Data/features_30_sec.csv",
        "Data/features_3_sec.csv",
        label=parent,
        split=drawn,
    ),
    public(
        "fma_small",
        at("{d:03d}/{k:06d}.mp3", d=(0, 1, 2, 155), i=10, k=through(140)),
        "README.txt",
        "checksums",
        label=table,
        split=listed,
    ),
    public(
        "fma_small_clean", at("{d:03d}/{k:06d}.mp3", d=(0, 1, 2, 155), i=10, k=through(140)), label=table, split=listed
    ),
    public(
        "nsynth",
        at(
            "nsynth-{s}/audio/{c}_acoustic_{n:03d}-{p:03d}-{v:03d}.wav",
            s="train valid test",
            c="bass flute",
            n=(1, 14),
            p=(21, 60),
            v=(25, 127),
        ),
        at("nsynth-{s}/examples.json", s="train valid test"),
        label=named(r"/([a-z]+)_acoustic"),
        split=part(0),
    ),
    public(
        "audioset",
        at("{s}/Y{v}.wav", s="balanced_train_segments eval_segments", i=15, v=letters(11, CLIP)),
        label=own,
        split=part(0),
    ),
    public(
        "vggsound",
        at("video/{v}_{k:06d}.mp4", i=30, v=letters(11, CLIP), k=some(400)),
        "vggsound.csv",
        label=table,
        split=listed,
    ),
    public(
        "musdb18hq",
        at(
            "{s}/{n}/{p}.wav",
            s="train",
            n="A Classic Education - NightOwl|ANiMAL - Clinic A|Actions - One Minute Smile",
            p="bass drums mixture other vocals",
        ),
        at(
            "{s}/{n}/{p}.wav",
            s="test",
            n="AM Contra - Heart Peripheral|Al James - Schoolboy Facination",
            p="bass drums mixture other vocals",
        ),
        label=own,
        split=part(0),
    ),
    public(
        "Libri2Mix",
        [
            f"wav16k/min/{s}/{d}/{a}-{b}-{i:04d}_{c}-{e}-{i:04d}.wav"
            for s, a, b, c, e in (
                ("train-100", 103, 1240, 2952, 410),
                ("dev", 84, 121123, 1462, 170138),
                ("test", 61, 70968, 8555, 284447),
            )
            for d in ("mix_both", "mix_clean", "noise", "s1", "s2")
            for i in range(8)
        ],
        label=own,
        split=part(2),
        source="wav16k/min",
    ),
    public(
        "wham",
        at("wav8k/min/{s}/{d}/011a010{i}_{k}_401c020{i}_-{k}.wav", s="tr cv tt", d="mix_both s1 s2", i=8, k=(1,)),
        label=own,
        split=part(2),
        source="wav8k/min",
    ),
    public(
        "valentini",
        at("{d}_trainset_28spk_wav/p{p}_{i:03d}.wav", d="clean noisy", p=(226, 287), i=range(1, 7)),
        at("{d}_testset_wav/p{p}_{i:03d}.wav", d="clean noisy", p=(232, 257), i=range(1, 5)),
        label=own,
        split=named("_(train|test)set"),
    ),
    public(
        "birdclef-2022",
        at("train_audio/{c}/XC{k}.ogg", c="afrsil1 akepa1 akiapo", i=10, k=some(800_000)),
        "train_metadata.csv",
        "scored_birds.json",
        "test_soundscapes/soundscape_453028782.ogg",
        label=own,
        split=drawn,
    ),
    public(
        "IRMAS",
        at(
            "IRMAS-TrainingData/{c}/[{c}][{g}]{k:04d}__{i}.wav",
            c="cel cla flu",
            g="cla pop_rock",
            i=(1, 2, 3),
            k=some(9999),
        ),
        at(
            "IRMAS-TestingData-Part1/Part1/(02) dont kill the whale-{i}.wav",
            "IRMAS-TestingData-Part1/Part1/(02) dont kill the whale-{i}.txt",
            i=range(1, 12),
        ),
        label=below({"IRMAS-Tr": parent}, own),
        split=part(0),
        ideal="IRMAS-TrainingData",
    ),
    public(
        "mimii",
        at("{n}_dB_fan/fan/id_{m:02d}/{c}/{i:08d}.wav", n=(0, 6), m=(0, 2), c="abnormal normal", i=5),
        label=parent,
        split=drawn,
    ),
    public(
        "dcase2023_task2",
        at("{m}/{s}/section_00_source_{s}_normal_{i:04d}_noAttribute.wav", m="fan gearbox slider", s="train", i=10),
        at(
            "{m}/test/section_00_{d}_test_{c}_{i:04d}_noAttribute.wav",
            m="fan gearbox slider",
            d="source target",
            c="anomaly normal",
            i=4,
        ),
        label=own,
        split=part(1),
    ),
    public(
        "physionet2016",
        at("training-{d}/{d}{k:04d}.wav", "training-{d}/{d}{k:04d}.hea", d="a b c", i=8, k=through(1)),
        at("training-{d}/REFERENCE.csv", d="a b c"),
        label=table,
        split=whole,
    ),
    public(
        "FSD50K",
        at("FSD50K.{s}_audio/{k}.wav", s="dev eval", i=15, k=some(440_000)),
        at("FSD50K.ground_truth/{s}.csv", s="dev eval vocabulary"),
        label=table,
        split=part(0),
    ),
]


TREES = SOUNDS
