"""Medicine inside the body: brains, organs, slides, cells."""

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
    uuids,
)

TUMOURS = "glioma meningioma notumor pituitary"

INSIDE = [
    public(
        "Brain-Tumor-MRI-Dataset",
        [
            f"{s}/{c}/{s[:2]}-{c[:2]}_{i:04d}.jpg"
            for s in ("Training", "Testing")
            for c in TUMOURS.split()
            for i in range(10, 22)
        ],
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "brain_tumor_validation_split",
        [
            f"{s}/{c}/{s[:2]}-{c[:2]}_{i:04d}.jpg"
            for s in ("Training", "Testing")
            for c in TUMOURS.split()
            for i in range(10, 22)
        ],
        label=parent,
        split=below({"Training": drawn}, part(0)),
        ideal="Testing",
    ),
    public(
        "brain-tumor-classification-mri",
        at("Training/{c}/{w} ({i}).jpg", c="glioma_tumor meningioma_tumor no_tumor", w="gg", i=range(1, 12)),
        at("Testing/{c}/image({i}).jpg", c="glioma_tumor meningioma_tumor no_tumor", i=range(1, 9)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "brain_tumor_dataset",
        at("yes/Y{i}.jpg", i=range(1, 13)),
        at("no/{i} no.jpg", i=range(1, 13)),
        at("brain_tumor_dataset/yes/Y{i}.jpg", i=range(1, 13)),
        at("brain_tumor_dataset/no/{i} no.jpg", i=range(1, 13)),
        label=parent,
        split=drawn,
    ),
    public(
        "alzheimers-dataset",
        [
            f"Alzheimer_s Dataset/{s}/{c}/{w}{i}.jpg"
            for s, n in (("train", 0), ("test", 400))
            for c, w in (("MildDemented", "mildDem"), ("ModerateDemented", "moderateDem"), ("NonDemented", "nonDem"))
            for i in range(n, n + 12)
        ],
        label=parent,
        split=part(1),
        ideal="dir",
    ),
    public(
        "BraTS2020",
        at(
            "MICCAI_BraTS2020_{s}Data/BraTS20_{s}_{p:03d}/BraTS20_{s}_{p:03d}_{m}.nii",
            s="Training Validation",
            p=(1, 2, 3),
            m="flair seg t1 t1ce t2",
        ),
        "MICCAI_BraTS2020_TrainingData/survival_info.csv",
        label=own,
        split=part(0),
    ),
    public(
        "brats_scans_alone",
        at(
            "MICCAI_BraTS2020_{s}Data/BraTS20_{s}_{p:03d}/BraTS20_{s}_{p:03d}_{m}.nii",
            s="Training Validation",
            p=(1, 2, 3),
            m="flair t1 t1ce t2",
        ),
        label=own,
        split=part(0),
    ),
    public(
        "LIDC-IDRI",
        at(
            "LIDC-IDRI-{p:04d}/01-01-2000-{v}/3000566.000000-{k}/1-{i:03d}.dcm",
            p=(1, 2, 9),
            v=(30178,),
            k=(3192,),
            i=range(1, 10),
        ),
        label=own,
        split=drawn,
    ),
    public("Images_png", at("{p:06d}_01_01/{i:03d}.png", p=(1, 2, 3, 9), i=range(88, 98)), label=own, split=listed),
    public(
        "Task09_Spleen",
        at("images{s}/spleen_{k}.nii.gz", s="Tr Ts", i=10, k=some(99)),
        at("labelsTr/spleen_{k}.nii.gz", i=10, k=some(99)),
        "dataset.json",
        label=own,
        split=part(0),
    ),
    public(
        "luna16_png",
        at("subset{d}/{h}_{i:03d}.png", d=(0, 1, 9), h=hexes(16), i=10),
        "annotations.csv",
        label=own,
        split=part(0),
    ),
    public(
        "Dataset_BUSI_with_GT",
        [
            f"{c}/{c} ({i}){m}.png"
            for c in ("benign", "malignant", "normal")
            for i in range(1, 12)
            for m in ("", "_mask")
        ],
        label=own,
        split=drawn,
    ),
    public(
        "ultrasound-nerve-segmentation",
        at("{s}/{p}_{i}.tif", s="train test", p=(1, 2), i=range(1, 10)),
        at("train/{p}_{i}_mask.tif", p=(1, 2), i=range(1, 10)),
        "train_masks.csv",
        label=own,
        split=part(0),
    ),
]

CELLS = [
    public(
        "cell_images",
        at(
            "{c}/C{p}P{q}ThinF_IMG_{k}_cell_{i}.png",
            c="Parasitized Uninfected",
            i=(12, 77),
            p=(33, 100),
            q=(1, 61),
            k=some(20160119),
        ),
        label=parent,
        split=drawn,
    ),
    public(
        "cell_images_twice",
        [
            path
            for n in ("", "cell_images/")
            for c in ("Parasitized", "Uninfected")
            for path in at(
                f"{n}{c}/C{{p}}P61ThinF_IMG_{{k}}_cell_{{i}}.png", i=(12, 77, 142), p=(33, 100), k=(20150619, 20150903)
            )
        ],
        label=parent,
        split=drawn,
    ),
    public(
        "lung_colon_image_set",
        [
            f"{o}_image_sets/{o}_{c}/{o}{c}{i}.jpeg"
            for o, c in (("lung", "aca"), ("lung", "n"), ("lung", "scc"), ("colon", "aca"), ("colon", "n"))
            for i in range(1, 12)
        ],
        label=parent,
        split=drawn,
    ),
    public(
        "BreaKHis_v1",
        at(
            "histology_slides/breast/{d}/SOB/{c}/SOB_{b}_14-{p}/{z}X/SOB_{b}-14-{p}-{z}-{i:03d}.png",
            d="benign",
            c="adenosis",
            b="B_A",
            p="22549AB 22549CD",
            z=(40, 100),
            i=range(1, 6),
        ),
        at(
            "histology_slides/breast/{d}/SOB/{c}/SOB_{b}_14-{p}/{z}X/SOB_{b}-14-{p}-{z}-{i:03d}.png",
            d="malignant",
            c="ductal_carcinoma",
            b="M_DC",
            p="2523 2773",
            z=(40, 100),
            i=range(1, 6),
        ),
        label=part(2),
        split=drawn,
    ),
    public(
        "breast-histopathology-images",
        at("{p}/{c}/{p}_idx5_x{x}_y{y}_class{c}.png", p=(8863, 9346, 10253), c=(0, 1), i=6, x=some(3000), y=some(3000)),
        label=parent,
        split=listed,
    ),
    public(
        "histopathologic-cancer-detection",
        at("{s}/{h}.tif", s="train test", i=20, h=hexes(40)),
        "train_labels.csv",
        "sample_submission.csv",
        label=table,
        split=part(0),
    ),
    public(
        "pcam_png",
        at("{s}/{c}/{k}.png", s="train valid test", c=(0, 1), i=10, k=some(260_000)),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "kather_crc",
        at(
            "{s}/{c}/{c}-{l}.tif",
            s="NCT-CRC-HE-100K CRC-VAL-HE-7K",
            c="ADI BACK DEB",
            i=9,
            l=letters(8, "ACDEFGHIKLMNPQRSTVWY"),
        ),
        label=parent,
        split=part(0),
        ideal="dir",
    ),
    public(
        "Kather_texture_2016_image_tiles_5000",
        at(
            "{c}/{h}_CRC-Prim-HE-{n:02d}_{k:03d}.tif_Row_{i}_Col_{i}.tif",
            c="01_TUMOR 02_STROMA 03_COMPLEX",
            i=(1, 151, 301),
            n=(1, 7, 10),
            h=hexes(4),
            k=some(900),
        ),
        label=parent,
        split=drawn,
    ),
    public(
        "blood-cells",
        [
            path
            for s in ("TRAIN", "TEST")
            for path in at(
                f"dataset2-master/dataset2-master/images/{s}/{{c}}/_{{n}}_{{k}}.jpeg",
                c="EOSINOPHIL LYMPHOCYTE MONOCYTE",
                n=(0, 1),
                i=5,
                k=some(9999),
            )
        ],
        at(
            "dataset2-master/dataset2-master/images/TEST_SIMPLE/{c}/_4_{k}.jpeg",
            c="EOSINOPHIL LYMPHOCYTE MONOCYTE",
            i=3,
            k=some(9999),
        ),
        "dataset2-master/dataset2-master/labels.csv",
        at(
            "dataset-master/dataset-master/JPEGImages/BloodImage_{i:05d}.jpg",
            "dataset-master/dataset-master/Annotations/BloodImage_{i:05d}.xml",
            i=12,
        ),
        label=below({"dataset-": own}, parent),
        split=named(r"images/(\w+)/"),
        ideal="TEST TEST_SIMPLE TRAIN",
    ),
    public(
        "blood_cells_images",
        [
            path
            for s in ("TRAIN", "TEST")
            for path in at(
                f"images/{s}/{{c}}/_{{n}}_{{k}}.jpeg", c="EOSINOPHIL LYMPHOCYTE MONOCYTE", n=(0, 1), i=5, k=some(9999)
            )
        ],
        at("images/TEST_SIMPLE/{c}/_4_{k}.jpeg", c="EOSINOPHIL LYMPHOCYTE MONOCYTE", i=3, k=some(9999)),
        label=parent,
        split=part(1),
        ideal="dir",
        source="images",
    ),
    public(
        "PBC_dataset_normal_DIB",
        [
            path
            for c, w in (("basophil", "BA"), ("eosinophil", "EO"), ("ig", "MMY"))
            for path in at(f"{c}/{w}_{{k}}.jpg", i=12, k=some(999_999, 100_000))
        ],
        label=parent,
        split=drawn,
    ),
    public(
        "C-NMC_Leukemia",
        [
            f"C-NMC_training_data/fold_{f}/{c}/UID_{p}_{i}_1_{c}.bmp"
            for f in (0, 1, 2)
            for c in ("all", "hem")
            for p in (f + 1, f + 11)
            for i in range(1, 5)
        ],
        at("C-NMC_test_prelim_phase_data/{i}.bmp", i=range(1, 12)),
        "C-NMC_test_prelim_phase_data_labels.csv",
        label=below({"C-NMC_tr": parent}, own),
        split=named(r"(fold_\d|test)"),
        ideal="fold_0 fold_1 fold_2",
    ),
    public(
        "kvasir-dataset-v2",
        at("{c}/{u}.jpg", c="dyed-lifted-polyps esophagitis normal-cecum polyps", i=12, u=uuids()),
        label=parent,
        split=drawn,
    ),
    public(
        "hyper-kvasir",
        at(
            "labeled-images/{c}/{u}.jpg",
            c="lower-gi-tract/anatomical-landmarks/cecum lower-gi-tract/pathological-findings/polyps"
            " upper-gi-tract/anatomical-landmarks/pylorus",
            i=9,
            u=uuids(),
        ),
        "labeled-images/image-labels.csv",
        at("unlabeled-images/images/{u}.jpg", i=15, u=uuids()),
        label=parent,
        split=drawn,
    ),
    public(
        "camelyon_patches",
        at(
            "patches/patient_{p:03d}_node_{n}/patch_patient_{p:03d}_node_{n}_x_{x}_y_{y}.png",
            p=(4, 9, 10),
            n=(1, 4),
            i=6,
            x=some(9999),
            y=some(9999),
        ),
        "metadata.csv",
        label=table,
        split=table,
    ),
    public(
        "camelyon17_patches_alone",
        at(
            "patches/patient_{p:03d}_node_{n}/patch_patient_{p:03d}_node_{n}_x_{x}_y_{y}.png",
            p=(4, 9, 10),
            n=(1, 4),
            i=6,
            x=some(9999),
            y=some(9999),
        ),
        label=table,
        split=table,
        source="patches",
    ),
    public(
        "Camelyon16",
        at("{s}/tumor/tumor_{i:03d}.tif", s="training", i=range(1, 10)),
        at("{s}/normal/normal_{i:03d}.tif", s="training", i=range(1, 10)),
        at("testing/images/test_{i:03d}.tif", i=range(1, 12)),
        at("training/lesion_annotations/tumor_{i:03d}.xml", i=range(1, 10)),
        label=own,
        split=part(0),
    ),
    public(
        "data-science-bowl-2018",
        at("stage1_{s}/{h}/images/{h}.png", s="train test", i=12, h=hexes(64)),
        "stage1_train_labels.csv",
        label=own,
        split=part(0),
    ),
    public(
        "human-protein-atlas",
        at("{s}/{u}_{c}.png", s="train test", i=1, c="blue green red yellow", u=uuids()),
        "train.csv",
        label=own,
        split=part(0),
    ),
    public(
        "recursion-cellular",
        at(
            "{s}/Plate{p}/{w}_s1_w{c}.png",
            s="train/HEPG2-01 train/HEPG2-02 test/HEPG2-08",
            p=(1, 2, 4),
            w="B02 B03",
            c=(1, 2, 6),
        ),
        label=own,
        split=part(0),
    ),
    public(
        "endovis17",
        at("{s}/instrument_dataset_{d}/left_frames/frame{i:03d}.png", s=("train",), d=(1, 2, 8), i=range(8)),
        at(
            "train/instrument_dataset_{d}/ground_truth/Left_Prograsp_Forceps_labels/frame{i:03d}.png",
            d=(1, 2, 8),
            i=range(8),
        ),
        at("{s}/instrument_dataset_{d}/left_frames/frame{i:03d}.png", s=("test",), d=(1, 2, 8), i=range(225, 232)),
        label=own,
        split=part(0),
    ),
]


TREES = INSIDE + CELLS
