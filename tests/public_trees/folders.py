"""Folders from Kaggle: a directory for each animal, sign, plant or scene, in many variants."""

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
)

SCENES = "buildings forest glacier street"
LEAVES = "Apple___Apple_scab Apple___healthy Tomato___Late_blight"
FRUIT = "Apple Braeburn|Apple Crimson Snow|Apricot|Avocado"

PETS = [
    public(
        "dogs-vs-cats",
        at("train/{c}.{i}.jpg", c="cat dog", i=15),
        at("test1/{i}.jpg", i=range(1, 16)),
        "sampleSubmission.csv",
        label=named(r"train/(\w+)\."),
        split=part(0),
    ),
    public(
        "dogs-vs-cats-redux",
        at("train/{c}.{i}.jpg", c="cat dog", i=15),
        at("test/{i}.jpg", i=range(1, 16)),
        "sample_submission.csv",
        label=named(r"train/(\w+)\."),
        split=part(0),
    ),
    public(
        "PetImages", at("{c}/{i}.jpg", c="Cat Dog", i=15), "Cat/Thumbs.db", "Dog/Thumbs.db", label=parent, split=drawn
    ),
    public(
        "cats_and_dogs_filtered",
        [path for c in ("cat", "dog") for path in at(f"train/{c}s/{c}.{{i}}.jpg", i=12)],
        [path for c in ("cat", "dog") for path in at(f"validation/{c}s/{c}.{{i}}.jpg", i=range(2000, 2006))],
        "vectorize.py",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "cat-and-dog",
        [path for c in ("cat", "dog") for path in at(f"training_set/training_set/{c}s/{c}.{{i}}.jpg", i=range(1, 13))],
        [path for c in ("cat", "dog") for path in at(f"test_set/test_set/{c}s/{c}.{{i}}.jpg", i=range(4001, 4007))],
        at("{s}_set/{s}_set/{c}/_DS_Store", s="training test", c="cats dogs"),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "hymenoptera_data",
        at("{s}/{c}/{k}_{h}.jpg", s="train val", c="ants bees", i=10, k=some(10**9), h=hexes(10)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "horse-or-human",
        [
            path
            for c, n in (("horse", "horses"), ("human", "humans"))
            for path in at(f"train/{n}/{c}{{p:02d}}-{{i}}.png", p=(1, 2, 3), i=5)
        ],
        [
            path
            for c, n in (("horse", "horses"), ("human", "humans"))
            for path in at(f"validation/{n}/{c}{{p}}-{{i:03d}}.png", p=(1, 2), i=4)
        ],
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "10-monkey-species",
        [f"training/training/n{c}/n{c}{k:03d}.jpg" for c in range(4) for k in range(18, 30)],
        [f"validation/validation/n{c}/n{c}{k:02d}.jpg" for c in range(4) for k in range(6)],
        "monkey_labels.txt",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "animals10",
        at("raw-img/{c}/{k}.jpeg", c="cane cavallo elefante", i=12, k=letters(40)),
        "translate.py",
        label=parent,
        split=drawn,
    ),
    public(
        "afhq",
        [
            path
            for s in ("train", "val")
            for c in ("cat", "dog", "wild")
            for path in at(f"{s}/{c}/flickr_{c}_{{k:06d}}.jpg", i=10, k=some(6000))
        ],
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "simpsons_dataset",
        at("simpsons_dataset/{c}/pic_{i:04d}.jpg", c="abraham_grampa_simpson bart_simpson moe_szyslak", i=12),
        [
            path
            for c in ("abraham_grampa_simpson", "bart_simpson")
            for path in at(f"kaggle_simpson_testset/kaggle_simpson_testset/{c}_{{i}}.jpg", i=6)
        ],
        "annotation.txt",
        label=below({"simpsons": parent}, named(r"/([a-z_]+)_\d+\.jpg")),
        split=part(0),
        ideal="simpsons_dataset",
    ),
]

SIGNS = [
    public(
        "rps",
        [
            path
            for c in ("rock", "paper", "scissors")
            for path in at(f"rps/{c}/{c}{{p:02d}}-{{i:03d}}.png", p=(1, 2), i=6)
        ],
        [
            path
            for c in ("rock", "paper", "scissors")
            for path in at(f"rps-test-set/{c}/test{c}{{p:02d}}-{{i:02d}}.png", p=(1, 2), i=3)
        ],
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "rps_single_root",
        [
            path
            for c in ("rock", "paper", "scissors")
            for path in at(f"rps/{c}/{c}{{p:02d}}-{{i:03d}}.png", p=(1, 2), i=6)
        ],
        label=parent,
        split=drawn,
        source="rps",
    ),
    public(
        "asl-alphabet",
        [
            path
            for c in ("A", "B", "C", "del", "nothing", "space")
            for path in at(f"asl_alphabet_train/asl_alphabet_train/{c}/{c}{{i}}.jpg", i=range(1, 11))
        ],
        at("asl_alphabet_test/asl_alphabet_test/{c}_test.jpg", c="A B C del nothing space"),
        label=below({"asl_alphabet_train": parent}, own),
        split=part(0),
        ideal="asl_alphabet_train",
    ),
    public(
        "leapGestRecog",
        at("0{s}/{g}/frame_0{s}_{g:.2}_{i:04d}.png", s=(0, 1, 2), g="01_palm 02_l 03_fist", i=range(1, 9)),
        label=parent,
        split=drawn,
    ),
    public(
        "cards-image-dataset",
        at("{s}/{c}/{i:03d}.jpg", s="train", c="ace of clubs|ace of hearts|king of spades", i=range(1, 13)),
        at("{s}/{c}/{i}.jpg", s="valid test", c="ace of clubs|ace of hearts|king of spades", i=range(1, 6)),
        "cards.csv",
        "14card types-14-(200 X 200)-94.61.h5",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "100-sports",
        at("{s}/{c}/{i:03d}.jpg", s="train", c="air hockey|ampute football|archery", i=range(1, 13)),
        at("{s}/{c}/{i}.jpg", s="valid test", c="air hockey|ampute football|archery", i=range(1, 6)),
        "sports.csv",
        "EfficientNetB3-sports-0.97.h5",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
]

NATURE = [
    public(
        "intel-image-classification",
        at("seg_train/seg_train/{c}/{k}.jpg", c=SCENES, i=12, k=some(20_000)),
        at("seg_test/seg_test/{c}/{k}.jpg", c=SCENES, i=6, k=some(30_000, 20_000)),
        at("seg_pred/seg_pred/{k}.jpg", i=15, k=some(30_000)),
        label=below({"seg_pred": own}, parent),
        split=part(0),
        ideal="seg_train seg_test",
    ),
    public(
        "plantvillage",
        at(
            "plantvillage dataset/{m}/{c}/{u}___FREC_Scab {k}.JPG",
            m="color grayscale segmented",
            c=LEAVES,
            i=6,
            u=uuids(),
            k=some(9999),
        ),
        label=parent,
        split=drawn,
    ),
    public(
        "plantvillage_same_stems",
        [
            f"raw/{m}/{c}/{h:08d}-{h:04x}___RS_HL {h}.{e}"
            for m, e in (("color", "JPG"), ("segmented", "jpg"))
            for n, c in enumerate(LEAVES.split())
            for h in range(1000 * n, 1000 * n + 80, 9)
        ],
        label=parent,
        split=drawn,
    ),
    public(
        "new-plant-diseases-dataset",
        at(
            "{d}/{d}/{s}/{c}/{u}___FREC_Scab {k}.JPG",
            d=("New Plant Diseases Dataset(Augmented)",),
            s="train valid",
            c=LEAVES,
            i=10,
            u=uuids(),
            k=some(9999),
        ),
        at("test/test/{f}.JPG", f="AppleCedarRust1 AppleCedarRust2 AppleScab1 TomatoHealthy1 TomatoHealthy2"),
        label=below({"test": own}, parent),
        split=named(r"(?:^|/)(train|valid|test)/"),
        ideal="train valid",
    ),
    public(
        "new-plant-diseases-dataset_inner",
        at(
            "New Plant Diseases Dataset(Augmented)/{s}/{c}/{u}___FREC_Scab {k}.JPG",
            s="train valid",
            c=LEAVES,
            i=10,
            u=uuids(),
            k=some(9999),
        ),
        label=parent,
        split=part(1),
        ideal="dir",
        source="New Plant Diseases Dataset(Augmented)",
    ),
    public(
        "plantdoc",
        at("{s}/{c}/{l}.jpg", s="train test", c="Apple Scab Leaf|Apple leaf|Blueberry leaf", i=9, l=letters(12)),
        "README.md",
        "LICENSE.txt",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "plant-seedlings-classification",
        at("train/{c}/{h}.png", c="Black-grass|Charlock|Cleavers|Common Chickweed", i=10, h=hexes(9)),
        at("test/{h}.png", i=15, h=hexes(9)),
        "sample_submission.csv",
        label=below({"test": own}, parent),
        split=part(0),
        ideal="train",
    ),
    public(
        "paddy-disease-classification",
        at(
            "train_images/{c}/{k}.jpg",
            c="bacterial_leaf_blight blast brown_spot normal",
            i=10,
            k=some(110_407, 100_000),
        ),
        at("test_images/{k}.jpg", i=15, k=some(203_470, 200_000)),
        "train.csv",
        "sample_submission.csv",
        label=below({"test": own}, parent),
        split=part(0),
        ideal="train_images",
    ),
    public(
        "cassava-leaf-disease-classification",
        at("train_images/{k}.jpg", i=30, k=some(4 * 10**9)),
        "test_images/2216849948.jpg",
        "train.csv",
        "label_num_to_disease_map.json",
        label=table,
        split=part(0),
    ),
    public(
        "fruits-360_dataset",
        at("fruits-360/{s}/{c}/{r}{i}_100.jpg", s="Training Test", c=FRUIT, r=("", "r_"), i=range(0, 60, 9)),
        at("fruits-360/test-multiple_fruits/{f}.jpg", f="apple_apricot avocados1 cherries1(rainier)"),
        "fruits-360/LICENSE",
        "fruits-360/readme.md",
        "fruits-360/papers/Fruit recognition from images using deep learning.pdf",
        label=below({"fruits-360/test-": own}, parent),
        split=part(1),
        ideal="Test Training",
    ),
    public(
        "fruit-and-vegetable-image-recognition",
        at("{s}/{c}/Image_{i}.jpg", s="train test validation", c="apple|bell pepper|chilli pepper", i=range(1, 11)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "Rice_Image_Dataset",
        [path for c in ("Arborio", "Basmati", "Ipsala") for path in at(f"{c}/{c} ({{i}}).jpg", i=range(1, 13))],
        "Rice_Citation_Request.txt",
        label=parent,
        split=drawn,
    ),
    public(
        "butterfly-images40-species",
        at("{s}/{c}/{i:03d}.jpg", s="train", c="ADONIS|AFRICAN GIANT SWALLOWTAIL|AMERICAN SNOOT", i=range(1, 13)),
        at("{s}/{c}/{i}.jpg", s="valid test", c="ADONIS|AFRICAN GIANT SWALLOWTAIL|AMERICAN SNOOT", i=range(1, 6)),
        "butterflies and moths.csv",
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "weather-dataset",
        at("dataset/{c}/{k:04d}.jpg", c="dew fogsmog frost glaze", i=10, k=through(2208)),
        label=parent,
        split=drawn,
    ),
    public(
        "garbage-classification",
        [
            path
            for c in ("cardboard", "glass", "metal")
            for path in at(f"Garbage classification/Garbage classification/{c}/{c}{{i}}.jpg", i=range(1, 13))
        ],
        at("one-indexed-files{s}.txt", s=["", "-notrash_train", "-notrash_val", "-notrash_test"]),
        "zero-indexed-files.txt",
        label=parent,
        split=listed,
    ),
    public(
        "dataset-resized",
        [path for c in ("cardboard", "glass", "metal") for path in at(f"{c}/{c}{{i}}.jpg", i=range(1, 13))],
        label=parent,
        split=drawn,
    ),
]


TREES = PETS + SIGNS + NATURE
