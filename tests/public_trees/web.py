"""Aerial images, domains, and data gathered from the web."""

from public_trees.public import (
    at,
    below,
    drawn,
    hexes,
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
    uuids,
    whole,
)

GENERAL = {
    "dogs": "n02085620-Chihuahua n02085782-Japanese_spaniel n02086910-papillon",
    "birds": "001.Black_footed_Albatross 002.Laysan_Albatross 003.Sooty_Albatross",
    "land": "AnnualCrop Forest HerbaceousVegetation Highway",
}

EARTH = [
    public(
        "2750",
        [path for c in GENERAL["land"].split() for path in at(f"{c}/{c}_{{i}}.jpg", i=range(1, 14))],
        label=parent,
        split=drawn,
    ),
    public(
        "NWPU-RESISC45",
        [
            path
            for c in ("airplane", "airport", "basketball_court")
            for path in at(f"{c}/{c}_{{i:03d}}.jpg", i=range(1, 14))
        ],
        label=parent,
        split=drawn,
    ),
    public(
        "AID",
        [
            path
            for c in ("Airport", "BareLand", "BaseballField")
            for path in at(f"{c}/{c.lower()}_{{i}}.jpg", i=range(1, 14))
        ],
        label=parent,
        split=drawn,
    ),
    public(
        "UCMerced_LandUse",
        [f"Images/{c}/{c}{i:02d}.tif" for c in ("agricultural", "airplane", "beach") for i in range(13)],
        "readme.txt",
        label=parent,
        split=drawn,
    ),
    public(
        "PatternNet",
        [f"images/{c}/{c}{i:03d}.jpg" for c in ("airplane", "bridge", "cemetery") for i in range(1, 14)],
        label=parent,
        split=drawn,
    ),
    public(
        "fmow-rgb",
        [
            f"{s}/{c}/{c}_{n}/{c}_{n}_{i}_rgb.{e}"
            for s in ("train", "val")
            for c in ("airport", "barn")
            for n in range(2)
            for i in range(4)
            for e in ("jpg", "json")
        ],
        label=own,
        split=part(0),
    ),
    public(
        "eurosat_kaggle",
        [path for c in GENERAL["land"].split() for path in at(f"EuroSAT/{c}/{c}_{{i}}.jpg", i=range(1, 12))],
        [path for c in GENERAL["land"].split() for path in at(f"EuroSATallBands/{c}/{c}_{{i}}.tif", i=range(1, 12))],
        at("{d}/{s}.csv", d="EuroSAT EuroSATallBands", s="train validation test"),
        "EuroSAT/label_map.json",
        label=parent,
        split=listed,
    ),
    public(
        "ROIs1158_spring",
        at(
            "s1_{r}/ROIs1158_spring_s1_{r}_p{p}.png",
            "s2_{r}/ROIs1158_spring_s2_{r}_p{p}.png",
            r=(1, 7),
            p=range(30, 40),
        ),
        label=own,
        split=drawn,
    ),
    public(
        "BigEarthNet-v1.0",
        at(
            "S2A_MSIL2A_20170613T101031_{n}_{m}/S2A_MSIL2A_20170613T101031_{n}_{m}_B0{b}.tif",
            n=(0, 7),
            m=(46, 52),
            b=range(1, 9),
        ),
        at("S2A_MSIL2A_20170613T101031_{n}_{m}/S2A_labels_metadata.json", n=(0, 7), m=(46, 52)),
        label=own,
        split=listed,
    ),
    public(
        "Million-AID",
        at(
            "train/{c}/P{k:07d}.jpg",
            c="agriculture_land/dry_field agriculture_land/terraced_field commercial_land",
            i=8,
            k=some(10**6),
        ),
        at("test/P{k:07d}.jpg", i=20, k=some(10**6)),
        label=below({"test": own}, named("/(.*)/")),
        split=part(0),
        ideal="train",
    ),
]

DOMAINS = [
    public(
        "office31",
        at("{d}/images/{c}/frame_{i:04d}.jpg", d="amazon dslr webcam", c="back_pack bike calculator", i=range(1, 9)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "OfficeHomeDataset_10072016",
        at(
            "{d}/{c}/{i:05d}.jpg", d="Art|Clipart|Product|Real World", c="Alarm_Clock|Backpack|Batteries", i=range(1, 9)
        ),
        "ImageInfo.csv",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "PACS",
        at("{d}/{c}/pic_{i:03d}.jpg", d="art_painting cartoon photo sketch", c="dog elephant giraffe", i=range(1, 9)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "DomainNet",
        [
            f"{d}/{c}/{d}_{n:03d}_{i:06d}.jpg"
            for d in ("clipart", "real")
            for n, c in enumerate(("aircraft_carrier", "airplane", "alarm_clock"), 1)
            for i in range(1, 9)
        ],
        at("{d}_{s}.txt", d="clipart real", s="train test"),
        label=parent,
        split=listed,
    ),
    public(
        "visda-2017",
        at("train/{c}/src_{k}_{k}.png", c="aeroplane bicycle bus", i=10, k=some(99_999)),
        at("validation/{c}/validation_{k}.jpg", c="aeroplane bicycle bus", i=10, k=some(99_999)),
        at("test/trunk{t:02d}/{h}.jpg", t=3, i=8, h=hexes(16)),
        at("{s}/image_list.txt", s="train validation test"),
        label=below({"test": table}, parent),
        split=part(0),
        ideal="train validation",
    ),
    public(
        "terra_incognita",
        at("location_{d}/{c}/{u}.jpg", d=(38, 43, 46), c="bird bobcat cat", i=8, u=uuids()),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
]

WEB = [
    public(
        "redcaps",
        at(
            "{c}/{l}.jpg",
            c="abandoned aquariums bicycling birding",
            i=12,
            l=letters(6, "abcdefghijklmnopqrstuvwxyz0123456789"),
        ),
        label=own,
        split=whole,
    ),
    public(
        "laion400m-data",
        at("{s:05d}/{s:05d}{i:04d}.{e}", s=(0, 1, 2), i=6, e="jpg txt json"),
        at("{s:05d}_stats.json", s=(0, 1, 2)),
        label=own,
        split=whole,
    ),
    public("laion_jpg_alone", at("{s:05d}/{s:05d}{i:04d}.jpg", s=(0, 1, 2), i=10), label=own, split=whole),
    public(
        "cc3m_vilt",
        at("images_{s}/{a:04d}/{a:04d}{i:03d}", s="train val", a=(0, 1, 2), i=8),
        "train_annot.json",
        label=own,
        split=part(0),
    ),
    public(
        "danbooru2021", at("512px/{b:04d}/{k}{b:03d}.jpg", b=(1, 2, 3, 4), i=8, k=through(10)), label=own, split=whole
    ),
    public(
        "mirflickr",
        at("im{i}.jpg", i=range(1, 40)),
        at("meta/tags/tags{i}.txt", i=range(1, 8)),
        label=own,
        split=listed,
    ),
    public("mirflickr1m", at("images/{b}/{k}.jpg", b=range(5), i=8, k=through()), label=own, split=whole),
    public(
        "NUS-WIDE",
        at("Flickr/{c}/{i:04d}_{k}.jpg", c="actor animals beach birds", i=range(1, 12), k=some(10**10, 10**7)),
        label=own,
        split=listed,
    ),
    public(
        "recipe1M",
        at(
            "{s}/{a}/{b}/{c}/{d}/{a}{b}{c}{d}{h}.jpg",
            s="train val test",
            a="0 e",
            b="3 f",
            c="3 d",
            d="1 d",
            i=3,
            h=hexes(6),
        ),
        label=own,
        split=part(0),
    ),
    public(
        "wikiart",
        at(
            "{c}/{a}_{t}-{k}.jpg",
            c="Impressionism Cubism Realism",
            a="claude-monet paul-cezanne",
            t="landscape the-river",
            i=3,
            k=some(2000),
        ),
        label=parent,
        split=listed,
    ),
    public(
        "gsv-cities",
        [
            path
            for c in ("Bangkok", "Barcelona", "Boston")
            for path in at(
                f"Images/{c}/{c}_{{k:07d}}_2015_07_{{k:03d}}_13.7_100.5_{{p}}.jpg", i=10, k=some(10**7), p=letters(22)
            )
        ],
        [f"Dataframes/{c}.csv" for c in ("Bangkok", "Barcelona", "Boston")],
        label=own,
        split=whole,
    ),
    public(
        "gsv-cities_images",
        [
            path
            for c in ("Bangkok", "Barcelona", "Boston")
            for path in at(
                f"Images/{c}/{c}_{{k:07d}}_2015_07_{{k:03d}}_13.7_100.5_{{p}}.jpg", i=10, k=some(10**7), p=letters(22)
            )
        ],
        label=own,
        split=whole,
        source="Images",
    ),
    public(
        "pitts30k",
        at(
            "images/{s}/{d}/@{a:010.2f}@{b:010.2f}@17@T@040.44@-079.99@{h}@@@@@@@@.jpg",
            s="train val test",
            d="database queries",
            i=10,
            a=some(599_999, 500_000),
            b=some(4_500_000, 4_400_000),
            h=letters(6),
        ),
        label=own,
        split=part(1),
        source="images",
    ),
    public(
        "msls",
        at("train_val/{c}/{d}/images/{h}.jpg", c="amsterdam boston zurich", d="database query", i=6, h=letters(22)),
        at("test/{c}/{d}/images/{h}.jpg", c="miami athens", d="database query", i=6, h=letters(22)),
        at("train_val/{c}/{d}/postprocessed.csv", c="amsterdam boston zurich", d="database query"),
        label=own,
        split=named(r"^(train_val/\w+|test)"),
    ),
    public(
        "msls_images",
        at("train_val/{c}/{d}/images/{h}.jpg", c="amsterdam boston zurich", d="database query", i=6, h=letters(22)),
        at("test/{c}/{d}/images/{h}.jpg", c="miami athens", d="database query", i=6, h=letters(22)),
        label=own,
        split=named(r"^(train_val/\w+|test)"),
    ),
    public(
        "planet-understanding-the-amazon-from-space",
        at("train-jpg/train_{i}.jpg", i=20),
        at("test-jpg/test_{i}.jpg", i=12),
        "train_v2.csv",
        "sample_submission_v2.csv",
        label=table,
        split=part(0),
    ),
    public(
        "hagrid",
        at("hagrid_dataset/{c}/{u}.jpg", c="call dislike fist four", i=10, u=uuids()),
        at("hagrid_annotations/{s}/{c}.json", s="train val test", c="call dislike fist four"),
        label=own,
        split=listed,
        source="hagrid_dataset",
    ),
    public(
        "aclImdb",
        at("{s}/{c}/{i}_{r}.txt", s="train test", c="pos neg", i=8, r=(1, 9)),
        at("train/unsup/{i}_0.txt", i=10),
        "imdb.vocab",
        "README",
        label=parent,
        split=part(0),
    ),
]


TREES = EARTH + DOMAINS + WEB
