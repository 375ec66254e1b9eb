"""Medicine: X-rays, eyes, skin."""

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
    table,
    uuids,
)

XRAY = [
    public(
        "chest_xray",
        [
            path
            for s in ("train", "test", "val")
            for path in at(f"{s}/NORMAL/IM-{{k:04d}}-0001.jpeg", i=10, k=some(800))
        ],
        [
            path
            for s in ("train", "test", "val")
            for path in at(
                f"{s}/PNEUMONIA/person{{k}}_{{d}}_{{j}}.jpeg", i=5, d="bacteria virus", k=some(1900), j=some(5000)
            )
        ],
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "chest-xray-pneumonia_as_zipped",
        [
            path
            for s in ("train", "test", "val")
            for path in at(
                f"chest_xray/{s}/NORMAL/IM-{{k:04d}}-0001.jpeg",
                f"chest_xray/chest_xray/{s}/NORMAL/IM-{{k:04d}}-0001.jpeg",
                i=8,
                k=some(800),
            )
        ],
        [
            path
            for s in ("train", "test", "val")
            for path in at(
                f"chest_xray/{s}/PNEUMONIA/person{{k}}_bacteria_{{j}}.jpeg",
                f"chest_xray/chest_xray/{s}/PNEUMONIA/person{{k}}_bacteria_{{j}}.jpeg",
                i=8,
                k=some(1900),
                j=some(5000),
            )
        ],
        "chest_xray/chest_xray/.DS_Store",
        "chest_xray/__MACOSX/._chest_xray",
        label=parent,
        split=named(r"/(train|test|val)/"),
        ideal="dir",
    ),
    public(
        "chest_xray_three_labels",
        [
            path
            for s in ("train", "test", "val")
            for path in at(f"{s}/NORMAL/IM-{{k:04d}}-0001.jpeg", i=10, k=some(800))
        ],
        [
            path
            for s in ("train", "test", "val")
            for path in at(
                f"{s}/PNEUMONIA/person{{k}}_{{d}}_{{j}}.jpeg", i=5, d="bacteria virus", k=some(1900), j=some(5000)
            )
        ],
        label=named(r"(NORMAL|bacteria|virus)"),
        split=part(0),
        ideal="none",
    ),
    public(
        "CheXpert-v1.0-small",
        at("{s}/patient{p:05d}/study{n}/view1_frontal.jpg", s="train", p=(1, 2, 5), n=(1, 2)),
        at("{s}/patient{p:05d}/study1/view{v}_frontal.jpg", s="valid", p=(64541, 64542), v=(1, 2)),
        "train.csv",
        "valid.csv",
        label=table,
        split=part(0),
    ),
    public(
        "mimic-cxr-jpg",
        [
            f"files/p{p // 10**6}/p{p}/s{s}/{k:08x}-{k:08x}-{k:08x}.jpg"
            for p in (10000032, 10000764, 11000011)
            for s in (50414267, 53189527)
            for k in range(p + s, p + s + 4)
        ],
        "mimic-cxr-2.0.0-chexpert.csv.gz",
        "mimic-cxr-2.0.0-split.csv.gz",
        label=own,
        split=listed,
    ),
    public(
        "NIH_CXR14",
        [
            f"images_{d:03d}/images/{p:08d}_{i:03d}.png"
            for d in (1, 2, 12)
            for p in range(1000 * d, 1000 * d + 4)
            for i in range(3)
        ],
        "Data_Entry_2017.csv",
        "train_val_list.txt",
        label=own,
        split=listed,
    ),
    public(
        "nih_cxr14_images",
        [
            f"images_{d:03d}/images/{p:08d}_{i:03d}.png"
            for d in (1, 2, 12)
            for p in range(1000 * d, 1000 * d + 4)
            for i in range(3)
        ],
        label=own,
        split=listed,
    ),
    public(
        "COVID-19_Radiography_Dataset",
        [
            f"{c}/{m}/{c}-{i}.png"
            for c in ("COVID", "Normal", "Viral Pneumonia")
            for m in ("images", "masks")
            for i in range(1, 12)
        ],
        [f"{c}.metadata.xlsx" for c in ("COVID", "Normal", "Viral Pneumonia")],
        "README.md.txt",
        label=own,
        split=drawn,
    ),
    public(
        "covid_qu_ex",
        at(
            "Lung Segmentation Data/Lung Segmentation Data/{s}/{c}/{m}/{c}_{i}.png",
            s="Train Val Test",
            c="COVID-19 Normal",
            m="images|lung masks",
            i=6,
        ),
        label=own,
        split=part(2),
    ),
    public(
        "MURA-v1.1",
        at(
            "{s}/XR_{b}/patient{p:05d}/study1_{c}/image{i}.png",
            s="train",
            b="ELBOW HAND",
            p=(11, 12),
            c="positive negative",
            i=(1, 2),
        ),
        at(
            "{s}/XR_{b}/patient{p:05d}/study1_{c}/image{i}.png",
            s="valid",
            b="ELBOW HAND",
            p=(11185, 11186),
            c="negative",
            i=(1, 2, 3),
        ),
        at("{s}_labeled_studies.csv", s="train valid"),
        label=named(r"study\d_(\w+)"),
        split=part(0),
        ideal="dir",
    ),
    public(
        "rsna-pneumonia-detection-challenge",
        at("stage_2_{s}_images/{u}.dcm", s="train test", i=15, u=uuids()),
        "stage_2_train_labels.csv",
        label=own,
        split=part(0),
    ),
    public(
        "rsna_images_alone", at("stage_2_{s}_images/{u}.dcm", s="train test", i=15, u=uuids()), label=own, split=part(0)
    ),
    public(
        "boneage",
        at("boneage-training-dataset/boneage-training-dataset/{k}.png", i=20, k=some(15_600)),
        at("boneage-test-dataset/boneage-test-dataset/{k}.png", i=10, k=some(4600, 4360)),
        "boneage-training-dataset.csv",
        label=own,
        split=part(0),
    ),
    public(
        "KneeOA",
        at("{s}/{c}/{k}{e}.png", s="train val test auto_test", c=range(5), i=5, e="L R", k=some(9_999_999, 9_000_000)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "MedNIST",
        at("{c}/{i:06d}.jpeg", c="AbdomenCT BreastMRI CXR Hand", i=12),
        "README.md",
        label=parent,
        split=drawn,
    ),
    public(
        "chest-ctscan-images",
        at(
            "Data/{s}/{c}/{k:06d} ({i}).png",
            s="train valid",
            c="adenocarcinoma_left.lower.lobe_T2_N0_M0_Ib large.cell.carcinoma_left.hilum_T2_N2_M0_IIIa normal",
            i=8,
            k=some(200),
        ),
        at("Data/test/{c}/{k:06d} ({i}).png", c="adenocarcinoma large.cell.carcinoma normal", i=8, k=some(200)),
        label=parent,
        split=part(1),
        ideal="dir",
    ),
]

EYES_AND_SKIN = [
    public(
        "OCT2017",
        [
            f"{s}/{c}/{c}-{k}-{i}.jpeg"
            for n, s in enumerate(("train", "test", "val"))
            for c in ("CNV", "DME", "DRUSEN", "NORMAL")
            for k in range(1016042 + 9000 * n, 1016042 + 9000 * n + 2500, 700)
            for i in (1, 2)
        ],
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "oct-c8",
        [
            path
            for s in ("train", "val", "test")
            for c in ("AMD", "CNV", "CSR")
            for path in at(f"RetinalOCT_Dataset/{s}/{c}/{c.lower()}_{s}_{{i}}.jpg", i=range(1001, 1011))
        ],
        label=parent,
        split=part(1),
        ideal="dir",
    ),
    public(
        "diabetic-retinopathy-detection",
        at("train/{k}_{e}.jpeg", i=15, e="left right", k=some(45_000)),
        at("test/{k}_{e}.jpeg", i=10, e="left right", k=some(45_000)),
        label=table,
        split=part(0),
    ),
    public(
        "diabetic-retinopathy-224x224-gaussian-filtered",
        at(
            "gaussian_filtered_images/gaussian_filtered_images/{c}/{h}.png",
            c="Mild Moderate No_DR Proliferate_DR Severe",
            i=10,
            h=hexes(12),
        ),
        "train.csv",
        "gaussian_filtered_images/gaussian_filtered_images/export.pkl",
        label=parent,
        split=drawn,
    ),
    public(
        "aptos2019",
        at("{s}_images/{h}.png", s="train test", i=20, h=hexes(12)),
        "train.csv",
        "test.csv",
        "sample_submission.csv",
        label=table,
        split=part(0),
    ),
    public(
        "eye-diseases-classification",
        at("dataset/{c}/{k}_{e}.jpg", c="cataract glaucoma normal", i=6, e="left right", k=some(4700)),
        label=parent,
        split=drawn,
    ),
    public(
        "skin-cancer-mnist-ham10000",
        at("HAM10000_images_part_{d}/ISIC_{k:07d}.jpg", d=(1, 2), i=15, k=some(34_320, 24_306)),
        "HAM10000_metadata.csv",
        "hmnist_28_28_RGB.csv",
        label=table,
        split=drawn,
    ),
    public(
        "ham10000_images",
        at("HAM10000_images_part_{d}/ISIC_{k:07d}.jpg", d=(1, 2), i=15, k=some(34_320, 24_306)),
        label=table,
        split=drawn,
    ),
    public(
        "ISIC_2019",
        at("ISIC_2019_{s}_Input/ISIC_{k:07d}.jpg", s="Training Test", i=15, k=some(99_999)),
        "ISIC_2019_Training_GroundTruth.csv",
        label=table,
        split=part(0),
    ),
    public(
        "isic9",
        at(
            "Skin cancer ISIC The International Skin Imaging Collaboration/{s}/{c}/ISIC_{k:07d}.jpg",
            s="Train Test",
            c="actinic keratosis|basal cell carcinoma|melanoma",
            i=9,
            k=some(37_000),
        ),
        label=parent,
        split=part(1),
        ideal="dir",
    ),
    public(
        "melanoma_cancer_dataset",
        [
            path
            for s in ("train", "test")
            for c in ("benign", "malignant")
            for path in at(f"{s}/{c}/melanoma_{{k}}.jpg", i=12, k=some(10_600))
        ],
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "dermnet",
        at(
            "{s}/{c}/07Acne{k:06d}.jpg",
            s="train test",
            c="Acne and Rosacea Photos|Atopic Dermatitis Photos|Eczema Photos",
            i=9,
            k=some(99_999),
        ),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "DRIVE",
        at(
            "{s}/images/{i}_{s}.tif",
            "{s}/mask/{i}_{s}_mask.gif",
            "{s}/1st_manual/{i}_manual1.gif",
            s="training test",
            i=range(21, 33),
        ),
        label=own,
        split=part(0),
    ),
    public(
        "drive_images_alone", at("{s}/images/{i}_{s}.tif", s="training test", i=range(21, 33)), label=own, split=part(0)
    ),
]


TREES = XRAY + EYES_AND_SKIN
