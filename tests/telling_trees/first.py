"""A corpus of small dataset trees (medicine, biology and science first, then everywhere)."""
import base64
import colorsys
import datetime as dt
import random
import uuid

from telling_trees.telling import Tree

TREES: list[Tree] = []
ONE, SEVERAL, OPAQUE = "one field", "several fields", "opaque"


def tree(name, kind, classes, ext, field="", says="", train=(60, 110), test=(15, 32)):
    """The decorated generator yields (split, class, stem); ext may be a tuple (drawn for each file)."""

    def build(make):
        r = random.Random("first:" + name)
        cells = []
        for c in classes.split():
            cells.append(("train", c, r.randint(*train)))
            cells.append(("test", c, r.randint(*test)))
        cells.sort(key=lambda x: x[0] != "train")
        out = []
        for s, c, stem in make(r, cells):
            e = ext if isinstance(ext, str) else r.choice(ext)
            out.append(f"{s}/{c}/{stem}.{e}")
        TREES.append(Tree(name, says, field, kind, tuple(sorted(out))))
        return make

    return build


# ---------------------------------------------------------------- helpers
def fresh(draw):
    """A function that returns values of draw() never returned before."""
    seen = set()

    def f(*a):
        while True:
            v = draw(*a)
            if v not in seen:
                seen.add(v)
                return v

    return f


def each(cells):
    for s, c, n in cells:
        for _ in range(n):
            yield s, c


def groups(r, cells, lo, hi):
    """Cuts each cell into groups of lo..hi files: (split, class, size)."""
    for s, c, n in cells:
        while n:
            k = min(n, r.randint(lo, hi))
            yield s, c, k
            n -= k


def timeline(r, cells, lo, hi):
    """A sequence for each split in which the classes follow each other in runs: (split, class)."""
    for split in ("train", "test"):
        left = {c: n for s, c, n in cells if s == split}
        last = None
        while left:
            pool = [c for c in left if c != last] or list(left)
            c = r.choices(pool, [left[x] for x in pool])[0]
            k = min(left[c], r.randint(lo, hi))
            for _ in range(k):
                yield split, c
            left[c] -= k
            if not left[c]:
                del left[c]
            last = c


def per_class(r, cells, draw):
    """Unique within each class and split, but free to recur elsewhere (values, not identities)."""
    for s, c, n in cells:
        f = fresh(draw)
        for _ in range(n):
            yield s, c, f()


def hexs(r, n):
    return "".join(r.choice("0123456789abcdef") for _ in range(n))


def rnd(r, n, abc="abcdefghijklmnopqrstuvwxyz0123456789"):
    return "".join(r.choice(abc) for _ in range(n))


def age(r):
    return max(1, min(92, int(r.choice([r.gauss(28, 9), r.gauss(48, 16), r.gauss(67, 10), r.uniform(1, 17)]))))


def day(r, a, b):
    a, b = dt.date.fromisoformat(a), dt.date.fromisoformat(b)
    return a + dt.timedelta(r.randrange((b - a).days))


# ================================================================ one varying field
@tree("oct_patient_times_1000", ONE, "drusen edema healthy", "png",
      "patient*1000+slice, 217034 = patient 217, slice 34",
      "The number is the patient times 1000 plus the slice, so slices of one eye belong together and lie in order.")
def _(r, cells):
    p = fresh(lambda: r.randint(11, 640))
    for s, c, k in groups(r, cells, 6, 19):
        q, z = p(), r.randint(3, 40)
        for i in range(k):
            yield s, c, f"{q * 1000 + z + i}"


@tree("colonoscopy_one_video", ONE, "polyp bleeding clean debris", "jpg",
      "frame, 003417",
      "Consecutive frame numbers of one film whose findings follow each other in stretches; neighbours show the same second.")
def _(r, cells):
    n = 1180
    for s, c in timeline(r, cells, 8, 30):
        n += 1
        yield s, c, f"{n:06d}"


@tree("endoscopy_runs_of_clips", ONE, "esophagus stomach duodenum", "jpg",
      "running number with gaps, 20411 to 20419 is one clip",
      "Each unbroken run of numbers is one clip of one patient; a gap starts another, so clip and order can be read.")
def _(r, cells):
    gs = list(groups(r, cells, 4, 14))
    r.shuffle(gs)
    n = 20000
    for s, c, k in gs:
        n += r.randint(20, 400)
        for _ in range(k):
            n += 1
            yield s, c, f"{n}"


@tree("bone_age_months", ONE, "female male", "png", "age in months, boneage-128",
      "The number is the child's bone age in months, a second label beside the sex.")
def _(r, cells):
    yield from ((s, c, f"boneage-{v}") for s, c, v in
                per_class(r, cells, lambda: min(228, max(1, int(r.gauss(127, 46))))))


@tree("newborn_weight_grams", ONE, "jaundice healthy", "jpg", "birth weight in grams, 3420",
      "The number is the newborn's weight in grams, heaped on tens, which a regression would read from the name.")
def _(r, cells):
    def w():
        g = r.gauss(3380, 540)
        return int(round(g, -1)) if r.random() < .8 else int(g)
    yield from ((s, c, str(v)) for s, c, v in per_class(r, cells, w))


@tree("danish_cpr_numbers", ONE, "fracture arthrosis normal", "png",
      "civil registration number ddmmyy-nnnn, 140357-2213",
      "The civil number begins with the birth date and its last digit's parity is the patient's sex.")
def _(r, cells):
    f = fresh(lambda: f"{day(r, '1931-01-01', '1996-01-01'):%d%m%y}-{r.randint(0, 3999):04d}")
    yield from ((s, c, f()) for s, c in each(cells))


@tree("well_positions", ONE, "active inactive control", "tif", "well of a 384 plate, C07",
      "The name is the well's row and column on the plate; controls lie in the outer columns and neighbours share edge effects.",
      train=(100, 150), test=(20, 38))
def _(r, cells):
    for split in ("train", "test"):
        outer = [f"{a}{n:02d}" for a in "ABCDEFGHIJKLMNOP" for n in (1, 2, 23, 24)]
        inner = [f"{a}{n:02d}" for a in "ABCDEFGHIJKLMNOP" for n in range(3, 23)]
        r.shuffle(inner)
        for s, c, n in cells:
            if s == split:
                if c == "control":
                    got = outer if s == "train" else r.sample(outer, n)
                else:
                    got, inner = inner[:n], inner[n:]
                for w in got:
                    yield s, c, w


@tree("reflectance_wavelength", ONE, "kaolinite calcite gypsum", "png", "wavelength, 1420nm",
      "Each file is one band of one mineral sample and its name is the wavelength, so bands form an ordered spectrum.")
def _(r, cells):
    for s, c, _ in cells:
        for w in range(400, 2481, 20) if s == "train" else range(410, 2450, 60):
            yield s, c, f"{w}nm"


@tree("embryo_hours", ONE, "arrested viable", "png", "hours since fertilisation, 026.4",
      "The name is the time since fertilisation; a viable embryo has a picture each twelve minutes, so stage and order can be read.")
def _(r, cells):
    for s, c, n in cells:
        t = r.randint(170, 260)
        for _ in range(n):
            yield s, c, f"{t / 10:05.1f}"
            t += r.choice([2, 2, 2, 2, 2, 4, 8])


@tree("mammography_view_digit", ONE, "benign malignant normal", "png",
      "exam*10+view, 48213 = exam 4821, view 3",
      "The last digit 1 to 4 is the view (two sides, two projections) and the digits before it the exam that all four share.")
def _(r, cells):
    e = fresh(lambda: r.randint(1020, 9870))
    for s, c, n in cells:
        for _ in range(n // 4):
            x = e()
            for v in (1, 2, 3, 4):
                yield s, c, str(x * 10 + v)


@tree("two_view_pairs_one_missing", ONE, "cyst tumour", "png", "even number and the next odd one, 5306 and 5307",
      "An even number and its odd successor are two views of one knee; a single partner was lost. Exchange breaks the pairs.")
def _(r, cells):
    e = fresh(lambda: 2 * r.randint(400, 4800))
    lost = False
    for s, c, n in cells:
        for _ in range(n // 2):
            x = e()
            yield s, c, str(x)
            if lost or r.random() > .08:
                yield s, c, str(x + 1)
            else:
                lost = True


@tree("lesion_control_offset", ONE, "lesion control", "jpg", "number, lesion 1273 with control 6273",
      "A control is the matching skin of the same person and bears the lesion's number plus 5000.")
def _(r, cells):
    f = fresh(lambda: r.randint(1, 4999))
    for split in ("train", "test"):
        for _ in range(next(n for s, c, n in cells if s == split)):
            x = f()
            yield split, "lesion", f"{x:04d}"
            yield split, "control", f"{x + 5000:04d}"


@tree("radiograph_two_findings", ONE, "effusion edema nodule atelectasis", "png", "study number, 118204 in effusion and in edema",
      "One radiograph with two findings lies under the same number in both classes; exchanging one copy breaks this identity.")
def _(r, cells):
    f = fresh(lambda: r.randint(100000, 139999))
    have = {(s, c): set() for s, c, _ in cells}
    for s, c, n in cells:
        others = [x for (t, d), v in have.items() if t == s and d != c for x in sorted(v)]
        for x in r.sample(others, min(len(others), n // 5)):
            have[s, c].add(x)
        while len(have[s, c]) < n:
            have[s, c].add(f())
    for (s, c), v in have.items():
        for x in sorted(v):
            yield s, c, str(x)


@tree("symptom_bits", ONE, "inpatient outpatient", "wav", "ten yes/no answers, 0110010001",
      "The ten digits are the answers to ten questions (fever, cough, smoker ...), ten more labels of the recording.")
def _(r, cells):
    p = [.5, .7, .3, .2, .4, .15, .35, .5, .25, .3]
    yield from per_class(r, cells, lambda: "".join(str(int(r.random() < q)) for q in p))


@tree("pathology_accession", ONE, "adenoma carcinoma hyperplasia", "png", "accession number, 1704521 = case 4521 of 2017",
      "The accession number carries the year and the running case of that year, hence the time at which each slide was taken.")
def _(r, cells):
    f = fresh(lambda s: f"{r.choice((14, 15, 16, 17) if s == 'train' else (18,)):02d}{int(r.triangular(1, 23000)):05d}")
    yield from ((s, c, f(s)) for s, c in each(cells))


@tree("peptide_spectra", ONE, "helical sheet disordered", "png", "amino acid sequence, AKLVFFAEDK",
      "The name is the measured peptide's sequence in one-letter code, the full content of the picture.")
def _(r, cells):
    bias = {"helical": "AELMQKRH", "sheet": "VIYFWTLK", "disordered": "GPSNDEKQ"}
    for s, c in each(cells):
        core = "".join(r.choice(bias[c]) if r.random() < .6 else r.choice("ACDEFGHILMNPQSTVWY")
                       for _ in range(r.randint(6, 15)))
        yield s, c, core + r.choice("KKR")


@tree("colony_counts", ONE, "ecoli yeast", "jpg", "count, 0143",
      "The number is how many colonies were counted on the plate, a quantity for regression.")
def _(r, cells):
    yield from ((s, c, f"{v:04d}") for s, c, v in
                per_class(r, cells, lambda: min(1900, int(r.lognormvariate(4.6, 1.0)))))


@tree("focus_offset", ONE, "diatom pollen spore", "png", "signed focus offset in micrometres, -12.5",
      "The signed number is the distance from focus, so the files of a class make one ordered stack.")
def _(r, cells):
    for s, c, _ in cells:
        for v in range(-60, 61) if s == "train" else range(-59, 60, 4):
            yield s, c, f"{v / 2:+05.1f}"


@tree("sediment_depth", ONE, "clay silt sand gravel", "jpg", "depth in centimetres, core_0345",
      "The number is the depth in one drilled core, so the files are an ordered section and neighbours touch.")
def _(r, cells):
    d = 15
    for s, c in timeline(r, cells, 3, 25):
        d += 5 if r.random() > .05 else 35
        yield s, c, f"core_{d:04d}"


@tree("variable_star_julian_date", ONE, "eclipsing pulsating", "fits", "Julian date, 2458342.71834",
      "The number is the moment of exposure, clustered in nights; phase and order of a star's light curve follow from it.")
def _(r, cells):
    night = {"eclipsing": 2458010, "pulsating": 2458013}
    for s, c, k in groups(r, cells, 4, 15):
        night[c] += r.choice([2, 2, 4, 6, 14])
        t = night[c] + r.uniform(.58, .72)
        for _ in range(k):
            yield s, c, f"{t:.5f}"
            t += r.gauss(.0062, .0004)


@tree("galaxy_sky_position", ONE, "spiral elliptical merger", "jpg", "sky position, J102315.48+051227.3",
      "The name is right ascension and declination, so place on the sky, neighbours and survey stripe can be read.")
def _(r, cells):
    for s, c in each(cells):
        yield s, c, (f"J{r.randint(8, 16):02d}{r.randint(0, 59):02d}{r.uniform(0, 59.9):05.2f}"
                     f"{r.choice('++-')}{r.randint(0, 61):02d}{r.randint(0, 59):02d}{r.uniform(0, 59.8):04.1f}")


@tree("solar_days", ONE, "quiet active flare", "png", "date, 2014-03-27",
      "One picture a day, named by the date; the sun's rotation and cycle make neighbours alike.")
def _(r, cells):
    d = dt.date(2012, 1, 3)
    for s, c in timeline(r, cells, 1, 7):
        d += dt.timedelta(1 if r.random() < .97 else 4)
        yield s, c, d.isoformat()


@tree("camera_trap_bursts", ONE, "deer boar fox badger", "jpg", "moment, 20190412063015",
      "The digits are date and time; three to five shots a second apart are one visit of one animal.")
def _(r, cells):
    for s, c, k in groups(r, cells, 3, 5):
        t = dt.datetime.combine(day(r, "2019-03-01", "2019-11-20"), dt.time(r.choice([4, 5, 6, 19, 20, 21, 22, 23]),
                                r.randint(0, 59), r.randint(0, 50)))
        for i in range(k):
            yield s, c, f"{t + dt.timedelta(seconds=i):%Y%m%d%H%M%S}"


@tree("epoch_milliseconds_conveyor", ONE, "scratched dented faultless", "png", "milliseconds since 1970, 1563187422417",
      "The number is the machine's clock; parts of one batch pass 400 ms apart, so batch, shift and order can be read.")
def _(r, cells):
    t = 1563170000000
    for s, c in timeline(r, cells, 2, 25):
        t += int(r.gauss(400, 9)) if r.random() < .94 else r.randint(10 ** 6, 3 * 10 ** 7)
        yield s, c, str(t)


@tree("traffic_time_of_day", ONE, "jammed flowing empty", "jpg", "time of day, 0745",
      "The four digits are the hour and minute at which one road camera took the picture, hence light and rush hour.")
def _(r, cells):
    mode = {"jammed": (480, 1020), "flowing": (640, 860), "empty": (180, 1350)}

    def m(c):
        while True:
            v = int(r.gauss(r.choice(mode[c]), 75))
            if 0 <= v < 1440:
                return v
    for s, c, n in cells:
        f = fresh(lambda: m(c))
        for _ in range(n):
            v = f()
            yield s, c, f"{v // 60:02d}{v % 60:02d}"


@tree("quadkey_tiles", ONE, "urban forest cropland water", "png", "quadkey, 1202102332031121",
      "The base 4 digits are the map tile's place; tiles with a common beginning are neighbours on the ground.")
def _(r, cells):
    def q():
        x, y = int(r.gauss(34400, 130)), int(r.gauss(22800, 90))
        return "".join(str((x >> b & 1) + 2 * (y >> b & 1)) for b in range(15, -1, -1))
    f = fresh(q)
    yield from ((s, c, f()) for s, c in each(cells))


@tree("slide_patch_packed", ONE, "tumour stroma fat necrosis", "png", "x*10000+y, 03120457 = x 312, y 457",
      "The number packs column and row of the patch in one slide, so adjoining patches can be found.")
def _(r, cells):
    used = set()
    for s, c, k in groups(r, cells, 9, 25):
        x, y = r.randint(20, 900), r.randint(20, 700)
        got = []
        for i in range(k * 4):
            if len(got) == k:
                break
            p = (x + i % 6, y + i // 6)
            if p not in used:
                used.add(p)
                got.append(p)
        for a, b in got:
            yield s, c, f"{a * 10000 + b:08d}"


@tree("geohash_potholes", ONE, "pothole crack intact", "jpg", "geohash, u33dc0q4",
      "The name is the geohash of the place; a common beginning means the same street.")
def _(r, cells):
    abc = "0123456789bcdefghjkmnpqrstuvwxyz"

    def gh():
        box, v, bits = [[-180, 180], [-90, 90]], (r.gauss(13.40, .06), r.gauss(52.51, .03)), 0
        for i in range(40):
            lo, hi = box[i % 2]
            mid = (lo + hi) / 2
            up = v[i % 2] >= mid
            bits = bits * 2 + up
            box[i % 2] = [mid, hi] if up else [lo, mid]
        return "".join(abc[bits >> 5 * j & 31] for j in range(7, -1, -1))
    f = fresh(gh)
    yield from ((s, c, f()) for s, c in each(cells))


@tree("price_tags", ONE, "shoes bags watches", "jpg", "price, 49.99",
      "The name is the article's price, a value that a pricing model would learn from the picture.")
def _(r, cells):
    mu = {"shoes": 4.2, "bags": 4.5, "watches": 5.2}
    for s, c, n in cells:
        f = fresh(lambda: f"{max(4, int(r.lognormvariate(mu[c], .7)))}.{r.choice(['99', '99', '99', '95', '90', '49', '00'])}")
        for _ in range(n):
            yield s, c, f()


@tree("ean_barcodes", ONE, "cereal soup biscuits", "jpg", "EAN-13, 4006381333931",
      "The barcode carries country and maker in its first seven digits, then the article, then a check digit.")
def _(r, cells):
    makers = [p + f"{r.randint(0, 9999):04d}" for p in ("400", "401", "405", "301", "303", "500", "541", "871", "760", "800")]

    def ean():
        d = r.choices(makers, range(10, 0, -1))[0] + f"{r.randint(100, 3999):05d}"
        return d + str(-sum(int(x) * (3 if i % 2 else 1) for i, x in enumerate(d)) % 10)
    f = fresh(ean)
    yield from ((s, c, f()) for s, c in each(cells))


@tree("turntable_angle", ONE, "mug teapot bottle lamp shoe", "png", "angle in degrees, 215",
      "The number is the turntable's angle, so one object's views form a circle with a pose label.")
def _(r, cells):
    for s, c, _ in cells:
        for a in range(0, 360, 5) if s == "train" else range(2, 360, 15):
            yield s, c, f"{a:03d}"


@tree("fold_first_digit", ONE, "siren drill jackhammer engine", "wav", "first digit is the fold, 31784 in fold 3",
      "The first digit is the cross-validation fold (1 to 4 in train, 5 in test); exchange across folds leaks recordings.")
def _(r, cells):
    f = fresh(lambda s: f"{r.randint(1, 4) if s == 'train' else 5}{r.randint(0, 9999):04d}")
    yield from ((s, c, f(s)) for s, c in each(cells))


@tree("quality_score", ONE, "portrait landscape", "jpg", "score, 0.8731",
      "The number is a rater model's quality score between 0 and 1, a regression target.")
def _(r, cells):
    yield from ((s, c, f"{v:.4f}") for s, c, v in per_class(r, cells, lambda: round(r.betavariate(5, 2.2), 4)))


@tree("captcha_text", ONE, "lined dotted", "png", "the text drawn in the picture, x4n7c",
      "The five characters are the text that the picture shows, the very thing to be recognised.")
def _(r, cells):
    f = fresh(lambda: rnd(r, 5, "2345678bcdefgmnpwxy"))
    yield from ((s, c, f()) for s, c in each(cells))


@tree("chess_positions", ONE, "wooden plastic", "jpeg", "board, 1b1B4-2pK2q1-8-...",
      "The name spells which piece stands on every square of the photographed board.")
def _(r, cells):
    def fen():
        b = ["1"] * 64
        for sq, p in zip(r.sample(range(64), 15), "Kk" + "".join(r.choice("PpNnBbRrQq") for _ in range(r.randint(3, 13)))):
            b[sq] = p
        rows = []
        for i in range(0, 64, 8):
            row, run = "", 0
            for x in b[i:i + 8]:
                if x == "1":
                    run += 1
                else:
                    row += (str(run) if run else "") + x
                    run = 0
            rows.append(row + (str(run) if run else ""))
        return "-".join(rows)
    yield from ((s, c, fen()) for s, c in each(cells))


@tree("paint_colour_hex", ONE, "red green blue", "png", "colour code, a3242f",
      "The six hexadecimal digits look like a hash but are the swatch's red, green and blue.")
def _(r, cells):
    hue = {"red": 0.0, "green": .35, "blue": .61}

    def col(c):
        q = colorsys.hsv_to_rgb((hue[c] + r.gauss(0, .025)) % 1, r.uniform(.45, 1), r.uniform(.35, 1))
        return "".join(f"{int(x * 255):02x}" for x in q)
    f = fresh(col)
    yield from ((s, c, f(c)) for s, c in each(cells))


@tree("instrument_notes", ONE, "piano organ marimba", "wav", "note, Fs4",
      "The name is the pitch that is played, a second label, and the same notes recur in every instrument.")
def _(r, cells):
    notes = [f"{n}{o}" for o in range(0, 9) for n in "C Cs D Ds E F Fs G Gs A As B".split()][9:97]
    part = {"piano": notes, "organ": notes[15:76], "marimba": notes[15:76]}
    for s, c, n in cells:
        for x in part[c] if s == "train" else r.sample(part[c], n):
            yield s, c, x


@tree("tempo_bpm", ONE, "house rock waltz", "mp3", "beats per minute, 127.98",
      "The number is the track's tempo, which a tempo model would take as its label.")
def _(r, cells):
    mu = {"house": (125, 4), "rock": (121, 22), "waltz": (158, 20)}

    def bpm(c):
        v = r.gauss(*mu[c])
        return f"{round(v) + r.choice([0, 0, .01, -.02, .02, -.01]) if r.random() < .55 else v:.2f}"
    for s, c, n in cells:
        f = fresh(lambda: bpm(c))
        for _ in range(n):
            yield s, c, f()


WORDS = """back bar base bath bean beg bite boat bone book bought burn cab calm came cause chain chair chalk chat cheek chief
choice cool dab date dead death deep dime dip ditch dodge dog doll door fail fall far fat fit five food gap gas gaze germ get
gin goal good goose gun half hall hash hate have haze hire hit hole home hug hurl hush jail jar join judge jug juice keen keep
keg kick kill king kite knock late laud lead leaf lean learn lease lid life limb live loaf long lore lose lot love luck make
match merge mess met mill mob mode mood moon mop mouse nag name near neat news nice note numb page pain pass pearl pick pike""".split()


@tree("spoken_words", ONE, "angry happy sad neutral", "wav", "the word that is said, goose",
      "The name is the spoken word, a second label; each emotion holds the same words, which makes them counterparts.")
def _(r, cells):
    for s, c, _ in cells:
        for w in WORDS[:95] if s == "train" else WORDS[95:130]:
            yield s, c, w


@tree("recording_chunks_alphabet", ONE, "whale ship rain", "wav", "letters of split(1), xabk",
      "Letters count the chunks of one long recording (xaaa, xaab ...), so the order and the neighbours can be read.")
def _(r, cells):
    for i, (s, c) in enumerate(timeline(r, cells, 2, 12)):
        yield s, c, "x" + chr(97 + i // 676) + chr(97 + i // 26 % 26) + chr(97 + i % 26)


def roman(n):
    out = ""
    for v, t in ((100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        while n >= v:
            out, n = out + t, n - v
    return out


@tree("herbal_plates_roman", ONE, "orchid fern", "jpg", "plate in Roman numerals, tab_CXLVII",
      "Roman numerals count the plates of one work, which is ordered by genus, so neighbours are kin.")
def _(r, cells):
    for i, (s, c) in enumerate(timeline(r, cells, 4, 18), 1):
        yield s, c, "tab_" + roman(i)


@tree("book_pages", ONE, "prose engraving table", "tif", "page, p0213",
      "Every page of a scanned book is there once; odd pages are rectos and following pages belong together.")
def _(r, cells):
    n = 0
    last = "train"
    for s, c in timeline(r, cells, 1, 9):
        if s != last:
            n, last = n + 20, s
        n += 1
        yield s, c, f"p{n:04d}"


@tree("marathon_bibs", ONE, "starting halfway finishing", "jpg", "bib number, 2417",
      "The bib is the runner, the same in all three classes, and its thousands are the start wave.")
def _(r, cells):
    pool = r.sample([w * 1000 + i for w in range(1, 8) for i in range(1, 620)], 170)
    for s, c, n in cells:
        part = pool[:130] if s == "train" else pool[130:]
        for b in r.sample(part, n):
            yield s, c, str(b)


@tree("number_plates", ONE, "truck van estate", "jpg", "number plate, HHKT482",
      "The name is the plate seen in the picture; its first letters are the district, and the text is what a reader must return.")
def _(r, cells):
    f = fresh(lambda: r.choices(["B", "M", "HH", "K", "F", "S", "OF", "DA", "MTK", "WI"], [5, 5, 4, 4, 9, 2, 8, 6, 5, 4])[0]
              + rnd(r, r.choice([1, 2, 2, 2]), "ABCDEFGHJKLMNPRSTUVWXYZ") + str(r.randint(10, 9999)))
    yield from ((s, c, f()) for s, c in each(cells))


@tree("vehicle_vin", ONE, "rusted sound", "jpg", "vehicle number, WVWZZZ1K7AW123456",
      "A vehicle identification number carries maker, model, model year and plant.")
def _(r, cells):
    pre = ["WVWZZZ1KZ", "WVWZZZ6RZ", "WAUZZZ8K9", "WBAVA3101", "VF1BZ0J0H", "ZFA31200A", "WF0DXXGAK", "TMBZZZ1Z9"]
    f = fresh(lambda: r.choice(pre) + r.choice("56789ABCDEF") + r.choice("WPMAE") + f"{r.randint(1000, 319999):06d}")
    yield from ((s, c, f()) for s, c in each(cells))


@tree("caller_numbers", ONE, "complaint order question", "wav", "telephone number, 49892144370",
      "The number's area code is the caller's place and dialect, and the number is the person.")
def _(r, cells):
    f = fresh(lambda: "49" + r.choices(["30", "40", "89", "221", "351", "341", "711", "911"], [8, 5, 6, 4, 3, 3, 3, 2])[0]
              + str(r.randint(2000000, 8999999)))
    yield from ((s, c, f()) for s, c in each(cells))


@tree("ulid_visit_bursts", ONE, "eczema psoriasis acne", "jpg", "ULID, 01E3Q8ZK9D7M2V0C5T1N6R4WXY",
      "The first ten characters are the upload's millisecond; pictures of one visit follow within seconds, so visits can be grouped.")
def _(r, cells):
    abc = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    for s, c, k in groups(r, cells, 2, 6):
        t = r.randint(1577900000000, 1609300000000)
        for _ in range(k):
            t += r.randint(1800, 14000)
            yield s, c, "".join(abc[t >> 5 * j & 31] for j in range(9, -1, -1)) + rnd(r, 16, abc)


# ================================================================ several fields
@tree("chest_followups", SEVERAL, "pneumonia clear mass", "png", "patient and follow-up, 00013774_005",
      "The first number is the patient, the second the follow-up in order of time.")
def _(r, cells):
    p = fresh(lambda: r.randint(1, 30805))
    for s, c, k in groups(r, cells, 1, 7):
        q, v = p(), 0
        for _ in range(k):
            yield s, c, f"{q:08d}_{v:03d}"
            v += r.choice([1, 1, 1, 2, 3])


@tree("malaria_cells_of_smears", SEVERAL, "parasitized uninfected", "png", "patient, photo, cell: C33P1thinF_IMG_20150619_114756a_cell_180",
      "Cells are crops of one photo of one patient's smear with the time at which it was taken.")
def _(r, cells):
    for s, c, k in groups(r, cells, 3, 14):
        t = dt.datetime.combine(day(r, "2015-06-02", "2015-11-30"), dt.time(r.randint(9, 16), r.randint(0, 59), r.randint(0, 59)))
        p = r.randint(33, 240)
        for q in sorted(r.sample(range(1, 230), k)):
            yield s, c, f"C{p}P{p - 32}thinF_IMG_{t:%Y%m%d_%H%M%S}_cell_{q}"


@tree("breast_slides_magnification", SEVERAL, "adenosis ductal", "png", "slide, magnification, part: SOB-14-22549AB-100-007",
      "Year, slide and magnification (40 to 400) stand in the name; the same field recurs at other magnifications.")
def _(r, cells):
    sl = fresh(lambda: f"SOB-{r.choice((14, 14, 14, 15))}-{r.randint(1000, 29999)}{r.choice(['', 'AB', 'CD', 'G'])}")
    for s, c, k in groups(r, cells, 8, 24):
        q = sl()
        for i in range(k):
            yield s, c, f"{q}-{(40, 100, 200, 400)[i % 4]}-{i // 4 + 1:03d}"


@tree("eye_sides", SEVERAL, "mild moderate severe none", "jpeg", "patient and side, 1084_left",
      "Number is the patient and left or right the eye, so two files are a pair and the side a label.")
def _(r, cells):
    p = fresh(lambda: r.randint(10, 44300))
    for s, c, n in cells:
        while n:
            q = p()
            for side in (["left", "right"] if n > 1 and r.random() < .8 else [r.choice(["left", "right"])]):
                yield s, c, f"{q}_{side}"
                n -= 1


@tree("tcga_mri_slices", SEVERAL, "glioma unremarkable", "tif", "patient, date, slice: TCGA_CS_4941_19960909_12",
      "Site, patient, day of the scan and slice are in the name.")
def _(r, cells):
    p = fresh(lambda: f"TCGA_{r.choice(['CS', 'DU', 'FG', 'HT'])}_{r.randint(4941, 8666)}_{day(r, '1994-01-01', '2004-01-01'):%Y%m%d}")
    for s, c, k in groups(r, cells, 8, 20):
        q, z = p(), r.randint(5, 20)
        for i in range(k):
            yield s, c, f"{q}_{z + i}"


@tree("plate_reader_channels", SEVERAL, "mitotic apoptotic resting", "tiff", "row, column, field, channel: r02c05f03p01-ch2",
      "Row and column of the well, field, plane and stain channel are in the name; channels of a field form one picture.")
def _(r, cells):
    w = fresh(lambda: f"r{r.randint(2, 15):02d}c{r.randint(2, 23):02d}f{r.randint(1, 9):02d}")
    for s, c, n in cells:
        for _ in range(n // 3):
            q = w()
            for ch in (1, 2, 3):
                yield s, c, f"{q}p01-ch{ch}"


@tree("age_and_sex_faces", SEVERAL, "glasses barefaced", "jpg", "age and sex, age34_f_10482",
      "Age and sex stand before a running number and are further labels.")
def _(r, cells):
    f = fresh(lambda: r.randint(10000, 23999))
    yield from ((s, c, f"age{age(r):02d}_{r.choice('fm')}_{f()}") for s, c in each(cells))


@tree("fever_thermograms", SEVERAL, "calf cow", "png", "temperature and distance, 38.6C_1.5m_0217",
      "Body temperature and the camera's distance stand in the name, one as a target.")
def _(r, cells):
    f = fresh(lambda: r.randint(1, 999))
    yield from ((s, c, f"{r.gauss(38.7, .5):.1f}C_{r.choice([0.5, 1.0, 1.0, 1.5, 2.0])}m_{f():04d}") for s, c in each(cells))


@tree("wound_before_after", SEVERAL, "ulcer burn", "jpg", "case and state, case031_before",
      "Each case has a picture before and one after treatment, which must stay together and in order.")
def _(r, cells):
    p = fresh(lambda: r.randint(1, 600))
    for s, c, n in cells:
        for _ in range(n // 2):
            q = p()
            yield s, c, f"case{q:03d}_before"
            yield s, c, f"case{q:03d}_after"


@tree("ct_dose_settings", SEVERAL, "liver spleen kidney", "png", "voltage, current, slice: ct_100kV_080mAs_s0417",
      "Tube voltage and dose are in the name, so the noise level of a picture can be read, beside its slice.")
def _(r, cells):
    f = fresh(lambda: r.randint(1, 960))
    yield from ((s, c, f"ct_{r.choice([80, 100, 120, 120, 140])}kV_{r.choice([40, 80, 80, 160, 200]):03d}mAs_s{f():04d}")
                for s, c in each(cells))


@tree("dicom_uids", SEVERAL, "axial sagittal", "png", "series and instance: 1.2.840.113619.2.55.3.604598.842.1398156427.17",
      "The UID's tail holds the study's epoch second and the instance in the series, so series and order can be read.")
def _(r, cells):
    for s, c, k in groups(r, cells, 7, 22):
        t, a = r.randint(1360000000, 1420000000), r.randint(100, 999)
        for i in range(k):
            yield s, c, f"1.2.840.113619.2.55.3.604598.{a}.{t}.{i + 1}"


@tree("mouse_strain_week", SEVERAL, "rearing grooming freezing", "avi", "animal, genotype, week: m034-KO-wk12",
      "Animal, genotype and week of age are in the name.")
def _(r, cells):
    gen = {m: r.choice(["WT", "KO", "HET"]) for m in range(1, 60)}
    for s, c, n in cells:
        pool = [(m, w) for m in (range(1, 44) if s == "train" else range(44, 60)) for w in (4, 6, 8, 10, 12)]
        for m, w in r.sample(pool, n):
            yield s, c, f"m{m:03d}-{gen[m]}-wk{w:02d}"


@tree("eeg_windows", SEVERAL, "seizure background", "png", "subject, session, seconds: chb01_03_1732-1736",
      "Subject, recording and the window's seconds are in the name; windows follow each other.")
def _(r, cells):
    u = fresh(lambda s: (r.randint(1, 17) if s == "train" else r.randint(18, 24), r.randint(1, 46)))
    for s, c, k in groups(r, cells, 4, 15):
        (p, q), t = u(s), 4 * r.randint(20, 800)
        for i in range(k):
            yield s, c, f"chb{p:02d}_{q:02d}_{t + 4 * i}-{t + 4 * i + 4}"


@tree("ecg_lead_beats", SEVERAL, "ventricular sinus paced", "png", "record, lead, beat: 208V1b0412",
      "Record, lead and the beat's place in the record are in the name.")
def _(r, cells):
    f = fresh(lambda s: f"{r.randint(100, 124) if s == 'train' else r.randint(200, 234)}{r.choice(['II', 'V1', 'V5'])}b{r.randint(1, 2400):04d}")
    yield from ((s, c, f(s)) for s, c in each(cells))


@tree("plankton_rois", SEVERAL, "copepod dinoflagellate chain", "png", "time, instrument, region: D20140115T123456_IFCB010_00042",
      "Moment of the water sample, instrument and the particle's number in that sample are in the name.")
def _(r, cells):
    bins = [f"D{day(r, '2014-01-02', '2014-12-20'):%Y%m%d}T{r.randint(0, 23):02d}{r.randint(0, 59):02d}{r.randint(0, 59):02d}_IFCB{r.choice(['010', '102'])}"
            for _ in range(30)]
    f = fresh(lambda s: f"{r.choice(bins[:22] if s == 'train' else bins[22:])}_{r.randint(1, 2800):05d}")
    yield from ((s, c, f(s)) for s, c in each(cells))


@tree("rosette_growth", SEVERAL, "mutant wildtype", "png", "plant, days after germination, view: pl012_dag21_sv090",
      "Plant, age in days and camera angle are in the name, a growth series.")
def _(r, cells):
    p = fresh(lambda: r.randint(1, 180))
    for s, c, k in groups(r, cells, 6, 12):
        q = p()
        for i in range(k):
            yield s, c, f"pl{q:03d}_dag{12 + i // 2 * 3:02d}_sv{i % 2 * 90:03d}"


@tree("birdsong_quality", SEVERAL, "wren robin blackbird", "mp3", "quality grade, XC418822-A",
      "The letter A to E after the archive's number is the recording's grade.")
def _(r, cells):
    f = fresh(lambda: r.randint(11000, 689000))
    yield from ((s, c, f"XC{f()}-{r.choices('ABCDE', [40, 35, 15, 7, 3])[0]}") for s, c in each(cells))


@tree("acted_speech_codes", SEVERAL, "calm angry fearful", "wav", "channel-intensity-sentence-take-actor: 03-01-02-01-12",
      "Codes give intensity, sentence, repetition and actor (odd is male).")
def _(r, cells):
    for s, c, n in cells:
        a = range(1, 20) if s == "train" else range(20, 25)
        pool = [f"03-{i:02d}-{t:02d}-{k:02d}-{x:02d}" for i in (1, 2) for t in (1, 2) for k in (1, 2) for x in a]
        yield from ((s, c, q) for q in r.sample(pool, n))


@tree("speaker_utterance_mic", SEVERAL, "scottish irish welsh", "flac", "speaker, sentence, microphone: p237_041_mic2",
      "Speaker, the read sentence and the microphone are in the name.")
def _(r, cells):
    sp = fresh(lambda: r.randint(225, 376))
    for s, c, k in groups(r, cells, 8, 22):
        p = sp()
        for u in sorted(r.sample(range(1, 400), k)):
            yield s, c, f"p{p}_{u:03d}_mic{r.choice('12')}"


@tree("command_speaker_hash", SEVERAL, "yes stop marvin go", "wav", "speaker hash and take, 0a7c2a8d_nohash_1",
      "The hash is the speaker, who recurs over words and takes; the digit is the take.")
def _(r, cells):
    sp = {"train": [hexs(r, 8) for _ in range(160)], "test": [hexs(r, 8) for _ in range(40)]}
    for s, c, n in cells:
        pool = [f"{h}_nohash_{t}" for h in sp[s] for t in range(r.choice([1, 1, 2, 3]))]
        yield from ((s, c, q) for q in r.sample(pool, min(n, len(pool))))


@tree("action_groups", SEVERAL, "biking diving fencing", "avi", "group and clip, g07_c03",
      "The group is one source film with one actor and background, the clip its part.")
def _(r, cells):
    for s, c, n in cells:
        g = 8 if s == "train" else 1
        while n:
            for k in range(1, min(n, r.randint(4, 7)) + 1):
                yield s, c, f"g{g:02d}_c{k:02d}"
                n -= 1
            g += 1


@tree("satellite_tile_bands", SEVERAL, "burnt flooded dry", "tif", "tile, date, band: T32TQM_20180412_B04",
      "Grid tile, date and spectral band are in the name; bands of one tile are one scene.")
def _(r, cells):
    t = fresh(lambda: f"T3{r.randint(1, 4)}T{r.choice('NPQRT')}{r.choice('KLMNS')}_{dt.date(2018, 1, 2) + dt.timedelta(5 * r.randint(0, 70)):%Y%m%d}")
    for s, c, n in cells:
        for _ in range(n // 4):
            q = t()
            for b in ("B02", "B03", "B04", "B08"):
                yield s, c, f"{q}_{b}"


@tree("slippy_tiles", SEVERAL, "roof solar", "png", "zoom, column, row: 19_274311_173882",
      "Zoom, column and row of the web map are in the name, hence the place and neighbours.")
def _(r, cells):
    f = fresh(lambda: f"19_{int(r.gauss(274300, 60))}_{int(r.gauss(173900, 45))}")
    yield from ((s, c, f()) for s, c in each(cells))


@tree("radar_station_times", SEVERAL, "hail tornado drizzle", "png", "station and time, KTLX20130520_200356",
      "Radar station and the scan's moment are in the name; scans of a storm are minutes apart.")
def _(r, cells):
    for s, c, k in groups(r, cells, 3, 9):
        st = r.choice(["KTLX", "KFWS", "KINX", "KDDC", "KBMX"])
        t = dt.datetime.combine(day(r, "2011-04-01", "2014-08-30"), dt.time(r.randint(14, 22), r.randint(0, 59), r.randint(0, 59)))
        for _ in range(k):
            yield s, c, f"{st}{t:%Y%m%d_%H%M%S}"
            t += dt.timedelta(seconds=r.randint(255, 290))


@tree("streetview_heading", SEVERAL, "shopfront fence hedge", "jpg", "latitude, longitude, heading: 48.85837,2.29448_270",
      "Place and compass heading are in the name; four headings belong to one place.")
def _(r, cells):
    for s, c, k in groups(r, cells, 1, 4):
        p = f"{r.gauss(48.857, .02):.5f},{r.gauss(2.335, .04):.5f}"
        for h in sorted(r.sample([0, 90, 180, 270], k)):
            yield s, c, f"{p}_{h}"


@tree("roboflow_copies", SEVERAL, "helmet vest", "jpg", "source before .rf., IMG_0412_jpg.rf.3f9c...",
      "The part before .rf. is the source photo and three augmented copies share it; the hash says nothing.")
def _(r, cells):
    f = fresh(lambda: r.randint(1, 9800))
    for s, c, n in cells:
        for _ in range(n // 3):
            q = f()
            for _ in range(3):
                yield s, c, f"IMG_{q:04d}_jpg.rf.{hexs(r, 32)}"


@tree("leaf_augmentations", SEVERAL, "rust blight mildew", "jpg", "source and operation, 3f9a12cc_rot90",
      "Copies of one leaf carry the same stem and the operation (flip, rot90, blur), so copies must stay in one place.")
def _(r, cells):
    for s, c, n in cells:
        while n:
            q = hexs(r, 8)
            for suf in ["", "_flipLR", "_rot90", "_rot270", "_blur"][:min(n, r.randint(1, 5))]:
                yield s, c, q + suf
                n -= 1


@tree("desktop_copies", SEVERAL, "kitten puppy", "jpg", "copy mark, IMG_3391 (2) and IMG_3391 - Copy",
      "A mark such as (1), (2) or - Copy says that the file doubles another one.")
def _(r, cells):
    f = fresh(lambda: r.randint(1, 9999))
    for s, c, n in cells:
        while n > 0:
            q = f"IMG_{f():04d}"
            marks = [""] + (r.choice([[" (1)"], [" (1)", " (2)"], [" - Copy"], [" - Copy", " - Copy (2)"]]) if r.random() < .3 else [])
            for m in marks[:n]:
                yield s, c, q + m
                n -= 1


@tree("crop_boxes", SEVERAL, "rider pedestrian", "png", "photo and box, 00412_x120y340w64h128",
      "The photo and the box's corner and size are in the name, a location label; boxes of one photo belong together.")
def _(r, cells):
    p = fresh(lambda: r.randint(1, 7480))
    for s, c, k in groups(r, cells, 1, 5):
        q = p()
        for _ in range(k):
            w = int(r.lognormvariate(3.8, .5))
            yield s, c, f"{q:05d}_x{r.randint(0, 1180)}y{r.randint(120, 330)}w{w}h{int(w * r.uniform(1.8, 2.6))}"


@tree("review_ratings", SEVERAL, "praise blame", "txt", "id and rating, 4217_9",
      "The number after the underscore is the author's stars from 1 to 10, finer than the class.")
def _(r, cells):
    f = fresh(lambda: r.randint(0, 12499))
    yield from ((s, c, f"{f()}_{r.choices((7, 8, 9, 10) if c == 'praise' else (1, 2, 3, 4), [4, 3, 3, 4])[0]}") for s, c in each(cells))


@tree("invoice_language_version", SEVERAL, "invoice reminder receipt", "png", "language, version, page: de_00412_v2_p3",
      "Language, document, version and page are in the name.")
def _(r, cells):
    p = fresh(lambda: r.randint(1, 3000))
    for s, c, k in groups(r, cells, 1, 4):
        q, l, v = p(), r.choice(["de", "de", "en", "fr", "it"]), r.choice([1, 1, 1, 2, 3])
        for i in range(k):
            yield s, c, f"{l}_{q:05d}_v{v}_p{i + 1}"


@tree("font_glyphs", SEVERAL, "alpha beta gamma delta", "png", "font, weight, size: Garamond-Bold-24",
      "Font, weight and point size are in the name, and every letter has the same list.")
def _(r, cells):
    fonts = {"train": "Arial Garamond Futura Bodoni Courier Verdana Palatino".split(), "test": ["Optima", "Rockwell"]}
    for s, c, _ in cells:
        for f in fonts[s]:
            for w in ("Regular", "Bold", "Italic"):
                for z in (10, 12, 18, 24):
                    yield s, c, f"{f}-{w}-{z}"


@tree("game_clock_frames", SEVERAL, "dunk layup block", "jpg", "match, quarter, clock: 20180511-BOSvCLE-Q3-0742",
      "Day, teams, quarter and game clock are in the name, so the match and the moment can be read.")
def _(r, cells):
    teams = "BOS CLE GSW HOU PHI TOR UTA NOP".split()
    ms = [f"{day(r, '2018-04-14', '2018-06-08'):%Y%m%d}-{'v'.join(r.sample(teams, 2))}" for _ in range(24)]
    f = fresh(lambda s: f"{r.choice(ms[:18] if s == 'train' else ms[18:])}-Q{r.randint(1, 4)}-{r.randint(0, 11):02d}{r.randint(0, 59):02d}")
    yield from ((s, c, f(s)) for s, c in each(cells))


@tree("agent_episodes", SEVERAL, "jump run crouch", "png", "episode, step, reward: ep0034_st0120_r-0.5",
      "Episode, step and reward of a playing agent are in the name, an order and a value.")
def _(r, cells):
    f = fresh(lambda s: (r.randint(1, 60) if s == "train" else r.randint(61, 75), 4 * r.randint(0, 250)))
    for s, c in each(cells):
        e, t = f(s)
        yield s, c, f"ep{e:04d}_st{t:04d}_r{r.choices([0.0, 1.0, -0.5, 5.0], [80, 12, 6, 2])[0]}"


@tree("gait_views", SEVERAL, "coat bag plain", "png", "subject, take, view: 017-02-090",
      "Subject, take and the view's angle (0 to 180 by 18) are in the name.")
def _(r, cells):
    for s, c, n in cells:
        sub = range(1, 75) if s == "train" else range(75, 125)
        pool = [f"{p:03d}-{t:02d}-{v:03d}" for p in sub for t in (1, 2) for v in range(0, 181, 18)]
        yield from ((s, c, q) for q in r.sample(pool, n))


@tree("spoof_devices", SEVERAL, "genuine replayed printed", "jpg", "user, phone, session: u12-phone3-s2-0450",
      "User, camera and session, then the frame, are in the name.")
def _(r, cells):
    f = fresh(lambda s: f"u{r.randint(1, 38) if s == 'train' else r.randint(39, 55):02d}-phone{r.randint(1, 6)}-s{r.randint(1, 3)}-{25 * r.randint(0, 20):04d}")
    yield from ((s, c, f(s)) for s, c in each(cells))


@tree("steel_coil_metres", SEVERAL, "scale inclusion pitting", "bmp", "coil, metre, face: K7781-0123.5m-top",
      "Coil, position along it and the face are in the name.")
def _(r, cells):
    for s, c, k in groups(r, cells, 3, 11):
        q = r.randint(6000, 8999)
        for x in sorted(r.sample(range(10, 18000), k)):
            yield s, c, f"K{q}-{x / 10:06.1f}m-{r.choice(['top', 'bottom'])}"


@tree("used_cars", SEVERAL, "hatchback saloon coupe", "jpg", "make, year, price: ford-2014-8990-kq2",
      "Make, year and asking price are in the name, three labels for other tasks.")
def _(r, cells):
    for s, c in each(cells):
        y = int(r.triangular(2004, 2020, 2015))
        yield s, c, f"{r.choice(['ford', 'opel', 'audi', 'toyota', 'skoda', 'fiat'])}-{y}-{max(5, int((y - 1999) * r.uniform(5, 13)))}{r.choice(['90', '90', '50', '00', '99'])}-{rnd(r, 4)}"


@tree("garments_colour_size", SEVERAL, "shirt skirt jacket", "jpg", "article, colour, size: 77814-navy-XL",
      "Article, colour and size are in the name, and one article comes in several.")
def _(r, cells):
    a = fresh(lambda: r.randint(10000, 99999))
    for s, c, k in groups(r, cells, 1, 5):
        q = a()
        for col, z in r.sample([(x, y) for x in ("navy", "black", "white", "red", "olive") for y in ("S", "M", "L", "XL")], k):
            yield s, c, f"{q}-{col}-{z}"


@tree("messenger_dates", SEVERAL, "pizza sushi salad", "jpg", "date and count of the day, IMG-20190512-WA0012",
      "Day and the count within that day are in the name, so a sitting's pictures can be grouped.")
def _(r, cells):
    d = fresh(lambda: f"{day(r, '2017-01-01', '2020-06-01'):%Y%m%d}")
    for s, c, k in groups(r, cells, 1, 6):
        q, n = d(), r.randint(0, 30)
        for i in range(k):
            yield s, c, f"IMG-{q}-WA{n + i:04d}"


@tree("exposure_brackets", SEVERAL, "chapel harbour meadow", "jpg", "scene and exposure, sc044_EV-2",
      "Three exposures (-2, 0, +2) of one scene are in the name; brightness follows from it.")
def _(r, cells):
    f = fresh(lambda: r.randint(1, 400))
    for s, c, n in cells:
        for _ in range(n // 3):
            q = f()
            for e in ("-2", "0", "+2"):
                yield s, c, f"sc{q:03d}_EV{e}"


@tree("steering_log", SEVERAL, "highway village", "jpg", "frame and steering angle, 001483_-12deg",
      "Frame of the drive and steering wheel's angle are in the name, the target of a driving model.")
def _(r, cells):
    n, a = 1000, 0.0
    for s, c in timeline(r, cells, 20, 50):
        n += 5
        a = .9 * a + r.gauss(0, 4)
        yield s, c, f"{n:06d}_{int(a)}deg"


@tree("drone_altitude", SEVERAL, "maize beet barley", "jpg", "altitude and gimbal, DJI_0412_alt40_pitch-90",
      "Flight altitude and camera pitch stand in the name, hence scale and view.")
def _(r, cells):
    f = fresh(lambda: r.randint(1, 999))
    yield from ((s, c, f"DJI_{f():04d}_alt{r.choice([20, 30, 40, 40, 60])}_pitch-{r.choice([90, 90, 60, 45])}") for s, c in each(cells))


# ================================================================ opaque
def deal(r, cells, pool):
    r.shuffle(pool)
    it = iter(pool)
    yield from ((s, c, next(it)) for s, c in each(cells))


def total(cells):
    return sum(n for _, _, n in cells)


@tree("export_numbers_shuffled", OPAQUE, "viral bacterial fungal", "png")
def _(r, cells):
    yield from deal(r, cells, [f"{i:05d}" for i in range(1, total(cells) + 1)])


@tree("export_numbers_unpadded", OPAQUE, "ripe unripe rotten overripe", "jpg")
def _(r, cells):
    yield from deal(r, cells, [f"{i}" for i in range(total(cells))])


@tree("md5_names", OPAQUE, "melanoma nevus", "jpg")
def _(r, cells):
    yield from ((s, c, hexs(r, 32)) for s, c in each(cells))


@tree("uuid_names", OPAQUE, "cat dog rabbit", "jpg")
def _(r, cells):
    yield from ((s, c, str(uuid.UUID(int=r.getrandbits(128), version=4))) for s, c in each(cells))


@tree("uuid_upper_suffix", OPAQUE, "tomato pepper potato", "JPG")
def _(r, cells):
    yield from ((s, c, str(uuid.UUID(int=r.getrandbits(128), version=4)).upper() + "___final") for s, c in each(cells))


@tree("short_hex_ids", OPAQUE, "retinopathy glaucoma sound", "png")
def _(r, cells):
    yield from ((s, c, hexs(r, 12)) for s, c in each(cells))


@tree("sha1_mixed_extensions", OPAQUE, "meme screenshot", ("jpg", "jpg", "jpg", "png", "jpeg"))
def _(r, cells):
    yield from ((s, c, hexs(r, 40)) for s, c in each(cells))


@tree("flickr_ids_secrets", OPAQUE, "daisy tulip rose dandelion sunflower", "jpg")
def _(r, cells):
    def one():
        n = r.choice([r.randint(10 ** 8, 10 ** 9 - 1), r.randint(10 ** 9, 9 * 10 ** 9), r.randint(10 ** 10, 3 * 10 ** 10)])
        return f"{n}_{hexs(r, 10)}"
    yield from ((s, c, one()) for s, c in each(cells))


@tree("flickr_ids_only", OPAQUE, "sailboat ferry canoe", "jpg")
def _(r, cells):
    f = fresh(lambda: int(r.triangular(2 * 10 ** 9, 9 * 10 ** 9)))
    yield from ((s, c, str(f())) for s, c in each(cells))


@tree("class_name_and_number", OPAQUE, "Forest River Pasture Highway", "jpg")
def _(r, cells):
    for c in dict.fromkeys(c for _, c, _ in cells):
        mine = [x for x in cells if x[1] == c]
        yield from ((s, d, f"{d}_{i}") for s, d, i in deal(r, mine, list(range(1, total(mine) + 1))))


@tree("class_dot_number_sample", OPAQUE, "owl hawk", "jpg")
def _(r, cells):
    f = {c: fresh(lambda: r.randrange(12500)) for _, c, _ in cells}
    yield from ((s, c, f"{c}.{f[c]()}") for s, c in each(cells))


@tree("imagenet_synsets", OPAQUE, "beagle collie pug", "JPEG")
def _(r, cells):
    syn = {c: f"n0{r.randint(2085620, 2113978)}" for c in dict.fromkeys(c for _, c, _ in cells)}
    f = fresh(lambda c: f"{syn[c]}_{int(r.triangular(1, 19000, 4000))}")
    yield from ((s, c, f(c)) for s, c in each(cells))


@tree("imagenet_validation", OPAQUE, "violin cello harp", "JPEG")
def _(r, cells):
    f = fresh(lambda: r.randint(1, 50000))
    yield from ((s, c, f"ILSVRC2012_val_{f():08d}") for s, c in each(cells))


@tree("camera_roll_many_users", OPAQUE, "cactus palm bonsai", "JPG")
def _(r, cells):
    # counters of many people's telephones: now and then one recurs in another class by chance
    yield from per_class(r, cells, lambda: f"IMG_{r.randint(1, 9999):04d}")


@tree("archive_prefix_sample", OPAQUE, "keratosis dermatofibroma", "jpg")
def _(r, cells):
    f = fresh(lambda: r.randint(24306, 34320))
    yield from ((s, c, f"SKIN_{f():07d}") for s, c in each(cells))


@tree("random_alphanumerics", OPAQUE, "plastic paper glass metal", "jpg")
def _(r, cells):
    yield from ((s, c, rnd(r, 8)) for s, c in each(cells))


@tree("video_platform_ids", OPAQUE, "applause laughter cough", "wav")
def _(r, cells):
    yield from ((s, c, base64.urlsafe_b64encode(r.randbytes(8)).decode()[:11]) for s, c in each(cells))


@tree("nanoid_names", OPAQUE, "graffiti mural", "webp")
def _(r, cells):
    abc = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    yield from ((s, c, rnd(r, 21, abc)) for s, c in each(cells))


@tree("ten_digit_random", OPAQUE, "mosaic blight healthy", "jpg")
def _(r, cells):
    f = fresh(lambda: r.randint(10 ** 6, 4294967295))
    yield from ((s, c, str(f())) for s, c in each(cells))


@tree("database_keys", OPAQUE, "chair table sofa shelf", "jpg")
def _(r, cells):
    f = fresh(lambda: r.randint(1, 2600000))
    yield from ((s, c, str(f())) for s, c in each(cells))


@tree("tempfile_names", OPAQUE, "bark howl growl", "wav")
def _(r, cells):
    yield from ((s, c, "tmp" + rnd(r, 8, "abcdefghijklmnopqrstuvwxyz0123456789_")) for s, c in each(cells))


@tree("stock_agency_ids", OPAQUE, "handshake meeting", "jpg")
def _(r, cells):
    f = fresh(lambda: r.randint(10 ** 7, 2 * 10 ** 9))
    yield from ((s, c, f"stock-photo-{f()}") for s, c in each(cells))


@tree("dataset_prefix_hash", OPAQUE, "nettle clover thistle", "png")
def _(r, cells):
    yield from ((s, c, f"weedset-{hexs(r, 16)}_thumb") for s, c in each(cells))


@tree("random_six_capitals", OPAQUE, "amber quartz jade", "png")
def _(r, cells):
    f = fresh(lambda: rnd(r, 6, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    yield from ((s, c, f()) for s, c in each(cells))
