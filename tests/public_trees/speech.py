"""Speech: words, sentences, speakers, languages, moods."""

from public_trees.public import (
    at,
    below,
    drawn,
    fixed,
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
    whole,
)

WORDS = "backward bed bird cat"
CLIP = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

SPEECH = [
    public(
        "speech_commands_v0.02",
        at("{c}/{h}_nohash_{n}.wav", c=WORDS, i=12, h=hexes(8), n=(0,)),
        at("_background_noise_/{c}.wav", c="doing_the_dishes dude_miaowing pink_noise white_noise"),
        "_background_noise_/README.md",
        "LICENSE",
        "README.md",
        "testing_list.txt",
        "validation_list.txt",
        label=parent,
        split=listed,
    ),
    public(
        "speech_commands_mini",
        at("{c}/{h}_nohash_{n}.wav", c="down go left no right stop up yes", i=8, h=hexes(8), n=(0, 1)),
        "README.md",
        label=parent,
        split=drawn,
    ),
    public(
        "tensorflow-speech-recognition-challenge",
        at("train/audio/{c}/{h}_nohash_0.wav", c=WORDS, i=10, h=hexes(8)),
        at("train/audio/_background_noise_/{c}.wav", c="doing_the_dishes dude_miaowing pink_noise"),
        at("train/{f}", f="LICENSE README.md testing_list.txt validation_list.txt"),
        at("test/audio/clip_{h}.wav", i=15, h=hexes(9)),
        "sample_submission.csv",
        label=below({"test": own}, parent),
        split=below({"test": fixed("test")}, listed),
    ),
    public(
        "LibriSpeech",
        [
            f"{s}/{p}/{b}/{p}-{b}-{i:04d}.flac"
            for s, p, b in (
                ("train-clean-100", 103, 1240),
                ("train-clean-100", 1034, 121119),
                ("dev-clean", 84, 121123),
                ("test-clean", 61, 70968),
            )
            for i in range(10)
        ],
        [f"{s}/{p}/{b}/{p}-{b}.trans.txt" for s, p, b in (("train-clean-100", 103, 1240), ("dev-clean", 84, 121123))],
        at("{f}.TXT", f="BOOKS CHAPTERS LICENSE README SPEAKERS"),
        label=own,
        split=part(0),
    ),
    public(
        "librispeech_audio_alone",
        [
            f"{s}/{p}/{b}/{p}-{b}-{i:04d}.flac"
            for s, p, b in (
                ("train-clean-100", 103, 1240),
                ("train-clean-100", 1034, 121119),
                ("dev-clean", 84, 121123),
                ("test-clean", 61, 70968),
            )
            for i in range(10)
        ],
        label=own,
        split=part(0),
    ),
    public(
        "VoxCeleb1",
        at("wav/id{p}/{v}/{i:05d}.wav", p=(10001, 10002, 10003), v="1zcIwhmdeo4 7gWzIy6yIIk", i=range(1, 8)),
        "iden_split.txt",
        "vox1_meta.csv",
        label=part(1),
        split=named(r"(id\d+/[^/]+)/"),
        ideal="dir",
    ),
    public(
        "voxceleb1_wav",
        at("id{p}/{v}/{i:05d}.wav", p=(10001, 10002, 10003), v="1zcIwhmdeo4 7gWzIy6yIIk", i=range(1, 8)),
        label=part(0),
        split=whole,
        ideal="dir",
    ),
    public(
        "voxceleb_sentences",
        at("{s}/wav/id{p}/{v}/{i:05d}.wav", s="dev", p=(10001, 10002), v="1zcIwhmdeo4 7gWzIy6yIIk", i=range(1, 8)),
        at("test/wav/id{p}/{v}/{i:05d}.wav", p=(10270, 10271), v="5r0dWxy17C8 GWXujl-xAVM", i=range(1, 8)),
        label=own,
        split=part(0),
    ),
    public(
        "cv-corpus-17.0",
        at("en/clips/common_voice_en_{k}.mp3", i=30, k=some(10**8)),
        at("en/{f}.tsv", f="train dev test validated invalidated other"),
        label=own,
        split=listed,
    ),
    public(
        "LJSpeech-1.1",
        at("wavs/LJ{b:03d}-{i:04d}.wav", b=(1, 2, 3), i=range(1, 12)),
        "metadata.csv",
        "README",
        label=own,
        split=drawn,
    ),
    public(
        "ljspeech_wavs",
        at("wavs/LJ{b:03d}-{i:04d}.wav", b=(1, 2, 3), i=range(1, 12)),
        label=own,
        split=drawn,
        source="wavs",
    ),
    public(
        "VCTK-Corpus",
        [f"wav48/p{p}/p{p}_{i:03d}.wav" for p in (225, 226, 227, 376) for i in range(1, 12)],
        [f"txt/p{p}/p{p}_{i:03d}.txt" for p in (225, 226, 227) for i in range(1, 12)],
        "speaker-info.txt",
        label=own,
        split=drawn,
    ),
    public(
        "vctk_wav48",
        [f"wav48/p{p}/p{p}_{i:03d}.wav" for p in (225, 226, 227, 376) for i in range(1, 12)],
        label=own,
        split=drawn,
        source="wav48",
    ),
    public(
        "timit",
        at(
            "data/{s}/DR{d}/{p}/{c}.{e}",
            s="TRAIN",
            d=(1, 2),
            p="FCJF0 MDAC0",
            c="SA1 SI1027 SX127",
            e="WAV TXT WRD PHN",
        ),
        at(
            "data/{s}/DR{d}/{p}/{c}.{e}", s="TEST", d=(1, 2), p="FAKS0 MDAB0", c="SA1 SI1573 SX133", e="WAV TXT WRD PHN"
        ),
        "train_data.csv",
        label=own,
        split=part(1),
    ),
    public(
        "data_aishell",
        [
            f"wav/{s}/S{p:04d}/BAC009S{p:04d}W{i:04d}.wav"
            for s, p in (("train", 2), ("train", 3), ("dev", 724), ("dev", 725), ("test", 764), ("test", 765))
            for i in range(121, 131)
        ],
        "transcript/aishell_transcript_v0.8.txt",
        label=own,
        split=part(1),
    ),
    public(
        "aishell_wav",
        [
            f"{s}/S{p:04d}/BAC009S{p:04d}W{i:04d}.wav"
            for s, p in (("train", 2), ("train", 3), ("dev", 724), ("dev", 725), ("test", 764), ("test", 765))
            for i in range(121, 131)
        ],
        label=own,
        split=part(0),
    ),
    public(
        "AISHELL-3",
        [
            f"{s}/wav/SSB{p:04d}/SSB{p:04d}{i:04d}.wav"
            for s in ("train", "test")
            for p in (5, 9, 11)
            for i in range(1 + 400 * (s == "test"), 11 + 400 * (s == "test"))
        ],
        "train/content.txt",
        "test/content.txt",
        "spk-info.txt",
        label=own,
        split=part(0),
    ),
    public(
        "mls_german",
        at("{s}/audio/{p}/{b}/{p}_{b}_{i:06d}.flac", s="train", p=(252, 278), b=(1428, 2497), i=5),
        at("{s}/audio/{p}/{b}/{p}_{b}_{i:06d}.flac", s="dev", p=(2422, 4536), b=(3454, 7150), i=5),
        at("{s}/transcripts.txt", s="train dev test"),
        label=own,
        split=part(0),
    ),
    public(
        "fleurs",
        at("data/{l}/audio/{s}/{k}.wav", l="af_za de_de", s="train dev test", i=6, k=some(10**19)),
        at("data/{l}/{s}.tsv", l="af_za de_de", s="train dev test"),
        label=own,
        split=part(3),
    ),
    public(
        "voxlingua107",
        at("{c}/{v}__U__S{i}---0013.210-0023.790.wav", c="ab af de en", i=10, v=letters(11, CLIP)),
        at("dev/{c}/{v}__U__S{i}.wav", c="de en", i=5, v=letters(11, CLIP)),
        label=parent,
        split=below({"dev/": fixed("dev")}, fixed("train")),
        ideal="dir",
    ),
    public(
        "CommonLanguage",
        at(
            "common_voice_kpd/{c}/{s}/{c:.3}_{w}_spk_{p}/common_voice_{c:.2}_{k}.wav",
            c="Arabic Basque Breton",
            s="train dev test",
            w="x",
            p=(1, 2),
            i=3,
            k=some(10**8),
        ),
        label=part(1),
        split=part(2),
        ideal="dir",
    ),
    public(
        "lrw",
        [
            f"lipread_mp4/{c}/{s}/{c}_{i:05d}.{e}"
            for c in ("ABOUT", "ABSOLUTELY", "ACCESS")
            for s in ("train", "val", "test")
            for i in range(1, 7)
            for e in ("mp4", "txt")
        ],
        label=part(1),
        split=part(2),
        ideal="dir",
    ),
    public(
        "lrs3",
        at("{s}/{v}/{i:05d}.mp4", "{s}/{v}/{i:05d}.txt", s="trainval", v="0Bhk65bYSI0 0Fi83BHQsMA", i=8),
        at("{s}/{v}/{i:05d}.mp4", "{s}/{v}/{i:05d}.txt", s="test", v="0akiEFwtkyA 0C5UQbWzwg", i=8),
        label=own,
        split=part(0),
    ),
    public(
        "ASVspoof2019_LA",
        at("ASVspoof2019_LA_{s}/flac/LA_{t}_{k}.flac", s="train", t="T", i=12, k=some(9_999_999)),
        at("ASVspoof2019_LA_{s}/flac/LA_{t}_{k}.flac", s="dev", t="D", i=12, k=some(9_999_999)),
        at("ASVspoof2019_LA_{s}/flac/LA_{t}_{k}.flac", s="eval", t="E", i=12, k=some(9_999_999)),
        "ASVspoof2019_LA_cm_protocols/ASVspoof2019.LA.cm.train.trn.txt",
        label=table,
        split=part(0),
    ),
    public(
        "audiomnist",
        [f"data/{p:02d}/{d}_{p:02d}_{i}.wav" for p in (1, 2, 60) for d in range(4) for i in range(4)],
        "data/audioMNIST_meta.txt",
        label=named(r"/(\d)_"),
        split=listed,
    ),
    public(
        "free-spoken-digit-dataset",
        at("recordings/{d}_{p}_{i}.wav", d=range(5), p="jackson nicolas theo", i=4),
        "metadata.py",
        "README.md",
        label=named(r"/(\d)_"),
        split=listed,
    ),
    public(
        "VOiCES_devkit",
        at(
            "distant-16k/speech/{s}/{r}/{d}/sp{p:04d}/Lab41-SRI-VOiCES-{r}-{d}-sp{p:04d}-ch{k:06d}-mc01.wav",
            s=("train",),
            r="rm1 rm2",
            d="babb musi none",
            p=(32, 83),
            i=3,
            k=some(200_000),
        ),
        at(
            "distant-16k/speech/{s}/{r}/{d}/sp{p:04d}/Lab41-SRI-VOiCES-{r}-{d}-sp{p:04d}-ch{k:06d}-mc01.wav",
            s=("test",),
            r="rm1 rm2",
            d="babb musi none",
            p=(1578, 1769),
            i=3,
            k=some(200_000),
        ),
        label=own,
        split=part(2),
    ),
    public(
        "fake-or-real",
        at(
            "for-2seconds/{s}/{c}/file{k}.wav_16k.wav_norm.wav_mono.wav_silence.wav_2sec.wav",
            s="training validation testing",
            c="fake real",
            i=8,
            k=some(40_000),
        ),
        label=parent,
        split=part(1),
        ideal="dir",
    ),
]

FEELING = [
    public(
        "ravdess",
        [
            f"Actor_{a:02d}/03-01-{e:02d}-0{i}-0{s}-0{r}-{a:02d}.wav"
            for a in (1, 2, 24)
            for e in (1, 2, 3)
            for i in (1,)
            for s in (1, 2)
            for r in (1, 2)
        ],
        label=named(r"03-01-(\d\d)"),
        split=listed,
    ),
    public(
        "crema-d",
        at("AudioWAV/{p}_{s}_{e}_XX.wav", p=(1001, 1002, 1091), s="DFA IEO", e="ANG DIS FEA HAP"),
        label=named(r"_(\w{3})_XX"),
        split=drawn,
    ),
    public(
        "TESS",
        [
            f"TESS Toronto emotional speech set data/{p}_{e}/{p}_{w}_{e.lower()}.wav"
            for p in ("OAF", "YAF")
            for e in ("angry", "disgust", "Fear", "happy")
            for w in ("back", "bar", "base", "bath", "bean", "beg", "bite")
        ],
        label=named(r"_(\w+)\.wav"),
        split=drawn,
    ),
    public(
        "IEMOCAP_full_release",
        [
            f"Session{s}/sentences/wav/Ses0{s}F_impro0{d}/Ses0{s}F_impro0{d}_{p}{i:03d}.wav"
            for s in (1, 2)
            for d in (1, 2)
            for p in "FM"
            for i in range(5)
        ],
        [f"Session{s}/dialog/EmoEvaluation/Ses0{s}F_impro0{d}.txt" for s in (1, 2) for d in (1, 2)],
        label=table,
        split=part(0),
    ),
    public(
        "iemocap_wav",
        [
            f"Session{s}/Ses0{s}F_impro0{d}/Ses0{s}F_impro0{d}_{p}{i:03d}.wav"
            for s in (1, 2)
            for d in (1, 2)
            for p in "FM"
            for i in range(5)
        ],
        label=table,
        split=part(0),
    ),
    public(
        "emodb",
        at("wav/{p:02d}a{t:02d}{e}{v}.wav", p=(3, 8, 16), t=(1, 2, 4), e="F N W T", v=("a",)),
        label=named(r"\d(\D)\w\.wav"),
        split=drawn,
    ),
    public(
        "ESD",
        at("{p:04d}/{e}/{s}/{p:04d}_{k:06d}.wav", p=(1, 11), e="Angry Happy Neutral", s="train", i=6, k=through(1)),
        at(
            "{p:04d}/{e}/{s}/{p:04d}_{k:06d}.wav",
            p=(1, 11),
            e="Angry Happy Neutral",
            s="evaluation test",
            i=3,
            k=through(1000),
        ),
        [f"{p:04d}/{p:04d}.txt" for p in (1, 11)],
        label=part(1),
        split=part(2),
        ideal="dir",
    ),
    public(
        "MELD.Raw",
        at("{s}/dia{d}_utt{u}.mp4", s="train_splits dev_splits_complete output_repeated_splits_test", d=3, u=6),
        at("{s}_sent_emo.csv", s="train dev test"),
        label=own,
        split=part(0),
    ),
]


TREES = SPEECH + FEELING
