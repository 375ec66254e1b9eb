"""A corpus of small dataset trees: what do file names say beside their directory's label?"""
import hashlib
import math
import random
import string
import uuid
from datetime import datetime, timedelta
from itertools import product

from telling_trees.telling import Tree

TREES: list[Tree] = []
ONE, MANY, OPAQUE = "one field", "several fields", "opaque"


def tree(kind, name, says="", field=""):
    def deco(fn):
        seed = int(hashlib.md5(name.encode()).hexdigest()[:8], 16)
        files = fn(random.Random(seed))
        TREES.append(Tree(name, says, field, kind, tuple(sorted(files))))
        return fn
    return deco


def sizes(r):
    return r.randint(60, 150), r.randint(15, 40)


def take(gen, n, seen=None):
    out, seen, dull = [], set() if seen is None else seen, 0
    for s in gen:
        if s in seen:
            dull += 1
            if dull > 200000:
                raise ValueError("generator exhausted")
            continue
        seen.add(s)
        out.append(s)
        if len(out) == n:
            return out
    raise ValueError(f"only {len(out)} of {n}")


def make(r, classes, g, ext, how="random", n=None, unique_over_tree=False):
    """g(class) yields stems; how: random split of stems, or tail (the later ones go to test)."""
    files, seen = [], set()
    for c in classes.split():
        a, b = n(c) if n else sizes(r)
        stems = take(g(c), a + b, seen if unique_over_tree else None)
        if how == "random":
            r.shuffle(stems)
        files += [f"train/{c}/{s}.{ext}" for s in stems[:a]]
        files += [f"test/{c}/{s}.{ext}" for s in stems[a:]]
    return files


def gauss_int(r, m, s, lo, hi):
    while True:
        v = round(r.gauss(m, s))
        if lo <= v <= hi:
            return v


def rs(r, alphabet, k):
    return "".join(r.choice(alphabet) for _ in range(k))


HEX = "0123456789abcdef"
B62 = string.ascii_letters + string.digits
LOW = string.ascii_lowercase
UP = string.ascii_uppercase
DIG = string.digits
WORDS = """apple bridge candle desert engine forest garden harbour island jacket kitchen ladder market needle orange
pencil quarry ribbon shadow temple umbrella valley window yellow zebra anchor basket camera donkey eagle feather guitar
hammer insect jungle kettle lantern meadow napkin oyster pepper rabbit saddle tunnel village walnut yoghurt acorn blanket
copper dragon elbow falcon ginger helmet iron jewel kitten lemon marble nickel onion parrot river silver tomato uncle
velvet whistle almond barrel cactus dinner ember fabric goblet hollow icicle jigsaw kernel lizard magnet nugget orchid
puzzle rocket sailor thunder urchin violin wagon zipper autumn beaver cherry doctor easter flower glacier honey ivory
juniper lobster mirror number office pirate rubber spider ticket utopia vessel winter butter circle dancer effort finger
glove hunter ink joke king letter monkey night ocean paper queen road sugar table unit voice water year zone arrow bottle
castle drum earth fire grass hand ice juice knife lamp moon nose oven pillow roof stone train vase wheel yard arch bell
coat door egg fish gate horse idea jar key leaf milk nest oak pear ring ship tree vine wolf""".split()


# ------------------------------------------------------------------ one field

@tree(ONE, "bottling line tracklets",
      "The number is the frame counter of the line camera: runs of some ten consecutive numbers are one bottle passing by, so neighbours in number are the same object.",
      "counter: 004512, 004513, 004514")
def _(r):
    pos = [r.randint(900, 2000)]

    def g(c):
        while True:
            pos[0] += r.randint(20, 160)
            for _ in range(r.randint(6, 15)):
                yield f"line_{pos[0]:06d}"
                pos[0] += 1
    return make(r, "intact chipped scratched", g, "jpg")


@tree(ONE, "swim race phases at every 25th frame",
      "The number is the frame of one broadcast, one image a second; every phase is a block of time, so the number gives order and time.",
      "frame: 003125 = second 125")
def _(r):
    pos = [375]

    def g(c):
        while True:
            pos[0] += 25
            yield f"{pos[0]:06d}"
    return make(r, "diving gliding stroking turning finishing", g, "png")


@tree(ONE, "gripper camera microsecond stamps",
      "The number is a unix time in microseconds; bursts at 30 Hz are one grasp attempt.",
      "stamp: 1523881912345678")
def _(r):
    def g(c):
        t = 1523881912345678 + r.randint(0, 10**11)
        while True:
            t += r.randint(4_000_000, 90_000_000)
            for _ in range(r.randint(5, 22)):
                yield str(t)
                t += 33333 + r.randint(-900, 900)
    return make(r, "held slipped missed", g, "png")


@tree(ONE, "roadside webcam on the ten minutes",
      "The number is a unix time in seconds, always a multiple of 600; it gives day, hour, light and the neighbouring pictures.",
      "stamp: 1437580800")
def _(r):
    def g(c):
        t = 1437523200
        while True:
            t += 600 * (1 if r.random() < .8 else r.randint(20, 200))
            yield f"cam_{t}"
    return make(r, "free dense jammed", g, "jpg")


@tree(ONE, "radar chips by azimuth",
      "The number is the target's azimuth in hundredths of a degree, a pose that decides the picture as much as the class does.",
      "azimuth: 03427 = 34.27 degrees")
def _(r):
    def g(c):
        off = r.uniform(0, 3)
        a = off
        while True:
            a = (a + r.gauss(2.07, .25)) % 360
            yield f"chip{int(a * 100):05d}"
    return make(r, "tank truck bulldozer howitzer", g, "tif")


@tree(ONE, "toys on a turntable every three degrees",
      "The number is the turntable's angle; the object of a class is one object and neighbours are the same view nearly.",
      "angle: 117")
def _(r):
    return make(r, "duck teapot racer piggybank mug", lambda c: (f"{c}__{a}" for a in range(0, 360, 3)), "png",
                n=lambda c: (96, 24))


@tree(ONE, "road survey by chainage",
      "The number is the chainage in metres along the road; images five metres apart show the same crack or patch.",
      "chainage: ch12350, ch12355")
def _(r):
    def g(c):
        m = r.randint(0, 400) * 5
        while True:
            m += r.choice([200, 355, 610, 90])
            for _ in range(r.randint(1, 9)):
                yield f"ch{m:05d}"
                m += 5
    return make(r, "sound cracked patched potholed", g, "jpg")


@tree(ONE, "landsat year and day",
      "The number is year and day of year of the pass, sixteen days apart: a date, a season.",
      "date: 2004187")
def _(r):
    def g(c):
        d = datetime(1999, 1, 1) + timedelta(days=r.randint(0, 15))
        while True:
            d += timedelta(days=16 * r.choice([1, 1, 1, 2, 3]))
            yield d.strftime("%Y%j")
    return make(r, "glacier reservoir delta", g, "tif")


@tree(ONE, "land cover patches on a packed grid",
      "The number is column times a thousand plus row of the mosaic; patches of one class lie in connected areas and neighbours touch.",
      "cell: 17023 = column 17, row 23")
def _(r):
    used = set()

    def g(c):
        while True:
            x, y = r.randint(3, 60), r.randint(3, 60)
            for _ in range(r.randint(8, 30)):
                if (x, y) not in used:
                    used.add((x, y))
                    yield f"patch_{x * 1000 + y}"
                dx, dy = r.choice([(1, 0), (-1, 0), (0, 1), (0, -1)])
                x, y = min(63, max(0, x + dx)), min(63, max(0, y + dy))
    return make(r, "meadow wheat spruce water settlement", g, "png")


@tree(ONE, "swimming pools by quadkey",
      "The name is a quadkey: every digit is a quarter of the tile before, a common beginning is a common place.",
      "quadkey: 120213302113203311")
def _(r):
    def g(c):
        towns = ["1202133" + rs(r, "0123", 6) for _ in range(4)]
        while True:
            yield r.choice(towns) + rs(r, "0123", 5)
    return make(r, "pool pond roof", g, "jpg")


@tree(ONE, "tree crowns by geohash",
      "The name is a geohash, the coordinates in base 32; a common beginning means trees that stand side by side.",
      "geohash: u281zk4qd")
def _(r):
    b32 = "0123456789bcdefghjkmnpqrstuvwxyz"

    def g(c):
        parks = ["u28" + rs(r, b32, 3) for _ in range(5)]
        while True:
            yield r.choice(parks) + rs(r, b32, 3)
    return make(r, "lime maple plane chestnut", g, "jpg")


@tree(ONE, "siren detector with the fold first",
      "The first digit is the fold (1 to 5) that keeps the cuts of one recording together; exchanging over folds breaks the cross validation.",
      "fold: 3 in 30417")
def _(r):
    def g(c):
        while True:
            yield f"{r.randint(1, 5)}{r.randint(0, 1999):04d}"
    return make(r, "ambulance police firetruck traffic", g, "wav")


@tree(ONE, "football stills by match clock",
      "The number is the match clock as mmss of one game: order, and stills of one attack.",
      "clock: 6734 = minute 67, second 34")
def _(r):
    def g(c):
        while True:
            s = r.randint(0, 94 * 60)
            for _ in range(r.randint(1, 6)):
                yield f"clock{s // 60:02d}{s % 60:02d}"
                s += r.randint(1, 3)
    return make(r, "corner freekick throwin openplay", g, "jpg")


@tree(ONE, "ct slices numbered patient times thousand",
      "The number is patient times 1000 plus slice; slices of one patient must stay together and in order.",
      "patient and slice: 17042 = patient 17, slice 42")
def _(r):
    p = [10]

    def g(c):
        while True:
            p[0] += r.randint(1, 3)
            s = r.randint(20, 80)
            for k in range(r.randint(8, 25)):
                yield str(p[0] * 1000 + s + k)
    return make(r, "healthy nodule effusion", g, "png")


@tree(ONE, "deblurring pairs with an offset",
      "The blurred picture of n is n + 50000; the two classes are pairs and exchanging parts partners.",
      "number: sharp 01234 with blurred 51234")
def _(r):
    ids = r.sample(range(100, 9000), 150)
    out = []
    for k, i in enumerate(ids):
        s = "train" if k < 120 else "test"
        out += [f"{s}/sharp/{i:05d}.png", f"{s}/blurred/{i + 50000:05d}.png"]
    return out


@tree(ONE, "rain removal pairs one of which is missing",
      "A number in clean and the same in rainy is one street scene (a few lack their partner): the pairing is in the name.",
      "scene: 0734 in both classes")
def _(r):
    ids = r.sample(range(1, 1200), 140)
    out = []
    for k, i in enumerate(ids):
        s = "train" if k < 112 else "test"
        if k % 23 != 5:
            out.append(f"{s}/clean/{i:04d}.jpg")
        if k % 31 != 7:
            out.append(f"{s}/rainy/{i:04d}.jpg")
    return out


@tree(ONE, "scenes under two labels",
      "About a quarter of the identities lie in two or three classes: the picture has several labels, and the name joins them.",
      "identity: 2894417 in beach and in sunset")
def _(r):
    cs = "beach sunset mountain city".split()
    out, quota = set(), {}
    for c in cs:
        quota[c] = sizes(r)
    for j, s in enumerate(("train", "test")):
        left = {c: quota[c][j] for c in cs}
        while any(left.values()):
            i = r.randint(1000000, 4999999)
            open_ = [c for c in cs if left[c]]
            k = 1 if r.random() < .75 else r.choice([2, 2, 3])
            for c in r.sample(open_, min(k, len(open_))):
                out.add(f"{s}/{c}/{i}.jpg")
                left[c] -= 1
    return out


def ean(d12):
    t = sum(int(x) * (3 if i % 2 else 1) for i, x in enumerate(d12))
    return d12 + str(-t % 10)


@tree(ONE, "shelf products by barcode",
      "The name is an EAN-13 with its check digit: country, maker and product can be read, and makers come back.",
      "barcode: 4006381333931, maker 4006381")
def _(r):
    def g(c):
        makers = [r.choice(["400", "401", "500", "760", "800", "301"]) + rs(r, DIG, 4) for _ in range(7)]
        while True:
            yield ean(r.choice(makers) + f"{int(r.expovariate(1 / 900)) % 100000:05d}")
    return make(r, "cereal shampoo biscuits coffee", g, "jpg")


@tree(ONE, "freight containers by owner code",
      "The name is the container's ISO 6346 code: owner (a colour and a logo on the picture), serial, check digit.",
      "owner: MSKU in MSKU4482137")
def _(r):
    val, v = {}, 10
    for ch in UP:
        if v % 11 == 0:
            v += 1
        val[ch] = v
        v += 1

    def g(c):
        while True:
            s = r.choices(["MSKU", "MAEU", "CMAU", "HLXU", "EGHU", "TCLU", "OOLU"], [8, 3, 5, 4, 4, 6, 2])[0] + rs(r, DIG, 6)
            t = sum((val[x] if x in val else int(x)) * 2**i for i, x in enumerate(s))
            yield s + str(t % 11 % 10)
    return make(r, "dented rusty sound", g, "jpg")


@tree(ONE, "number plates named by their text",
      "The name is the text on the plate, the target of a reader; its first two letters tell the place and the digits the half year.",
      "plate: LK17XBD")
def _(r):
    def g(c):
        while True:
            y = r.choice([r.randint(2, 22), r.randint(52, 71)])
            yield r.choice("LKBSGMY") + r.choice("ABCDEFGHJKLMNOPRSTUVWXY") + f"{y:02d}" + rs(r, "ABCDEFGHJKLMNOPRSTUVWXYZ", 3)
    return make(r, "private taxi lorry", g, "png")


@tree(ONE, "single words whispered and shouted",
      "The name is the word that is spoken, a transcript and so a second label; the same words come in every class.",
      "word: harbour")
def _(r):
    def g(c):
        w = WORDS[:]
        r.shuffle(w)
        yield from w
    return make(r, "whispered spoken shouted", g, "wav", n=lambda c: (r.randint(90, 130), r.randint(20, 30)))


@tree(ONE, "wind instruments by quarter tone",
      "The number is the fundamental in tenths of a hertz, on a grid of quarter tones from A2: a pitch.",
      "pitch: 04400 = 440.0 Hz")
def _(r):
    def g(c):
        lo = {"flute": 24, "oboe": 22, "clarinet": 8, "bassoon": 0}[c]
        for k in range(lo, lo + 110):
            yield f"{c}-{round(1100 * 2 ** (k / 24)):05d}"
    return make(r, "flute oboe clarinet bassoon", g, "flac", n=lambda c: (r.randint(70, 85), r.randint(16, 24)))


@tree(ONE, "melt surface by temperature",
      "The number is the pyrometer's reading, a value that a regression would have as its target.",
      "temperature: 873.4C")
def _(r):
    def g(c):
        m = {"steel": 1532, "bronze": 948, "aluminium": 668}[c]
        while True:
            yield f"{r.gauss(m, 22):.1f}C"
    return make(r, "steel bronze aluminium", g, "bmp")


@tree(ONE, "bearing run to failure",
      "The name is the time of the recording, ten minutes apart; the condition develops from the first to the last.",
      "time: 2004.02.12.10.32.39")
def _(r):
    t = [datetime(2004, 2, 12, 10, 32, 39)]

    def g(c):
        while True:
            t[0] += timedelta(seconds=600 if r.random() < .97 else 8400)
            yield t[0].strftime("%Y.%m.%d.%H.%M.%S")
    return make(r, "healthy worn failing", g, "wav")


@tree(ONE, "second hand cars by price",
      "The number is the asked price in euro (they end in 990, 900, 500 or 50): a value.",
      "price: 14990")
def _(r):
    def g(c):
        m = {"hatchback": 9.1, "saloon": 9.6, "estate": 9.5, "offroad": 10.1}[c]
        while True:
            v = int(math.exp(r.gauss(m, .55)))
            yield str(v // 1000 * 1000 + r.choices([990, 900, 500, 490, 950, 0, 999, 750], [8, 5, 4, 2, 3, 2, 2, 1])[0])
    return make(r, "hatchback saloon estate offroad", g, "jpg", n=lambda c: (r.randint(62, 75), r.randint(15, 18)))


@tree(ONE, "pedestrian crops by confidence",
      "The number is the detector's confidence, four places: a value, and a measure of how hard the crop is.",
      "confidence: 0.9134")
def _(r):
    def g(c):
        a = {"walking": 9, "running": 5, "sitting": 3}[c]
        while True:
            yield f"{r.betavariate(a, 1.2):.4f}"
    return make(r, "walking running sitting", g, "png")


@tree(ONE, "steering angles",
      "The number is the steering angle in radians, with sign, the target of a driving model.",
      "steering: -0.1243")
def _(r):
    def g(c):
        s = {"highway": .02, "suburb": .09, "mountain": .24}[c]
        while True:
            yield f"{r.gauss(0, s):+.4f}"
    return make(r, "highway suburb mountain", g, "jpg")


@tree(ONE, "wheel sets left even right odd",
      "2k is the left wheel of axle k and 2k + 1 its right one: always a pair, and the parity tells the side.",
      "number: 0412 left, 0413 right")
def _(r):
    def pick(cs, per):
        out, axles = [], r.sample(range(50, 900), sum(map(sum, per)))
        for c, (a, b) in zip(cs, per):
            for k in range(a + b):
                x = axles.pop()
                s = "train" if k < a else "test"
                out += [f"{s}/{c}/wheel_{2 * x:04d}.jpg", f"{s}/{c}/wheel_{2 * x + 1:04d}.jpg"]
        return out
    return pick("round flat shelled".split(), [(60, 15), (48, 12), (35, 9)])


@tree(ONE, "weed seedlings augmented by the ten thousand",
      "The first digit is the augmentation (1 as taken, 2 mirrored, 3 turned), the rest the photograph: three files are one plant.",
      "number: 10231, 20231 and 30231 are one photograph")
def _(r):
    out, ids = [], r.sample(range(1, 4000), 400)
    for c in "thistle nettle dock bindweed".split():
        for s, n in (("train", r.randint(25, 45)), ("test", r.randint(6, 12))):
            for _ in range(n):
                i = ids.pop()
                out += [f"{s}/{c}/{k}{i:04d}.jpg" for k in (1, 2, 3)]
    return out


def roman(n):
    s = ""
    for v, t in zip((1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1), "m cm d cd c xc l xl x ix v iv i".split()):
        while n >= v:
            s, n = s + t, n - v
    return s


@tree(ONE, "manuscript pages in roman numbers",
      "The name is the page number of one book, so facing pages and the scribe's hand follow from it.",
      "page: cxlvii")
def _(r):
    pages = list(range(1, 420))
    r.shuffle(pages)
    return make(r, "plain rubricated illuminated", lambda c: (roman(pages.pop()) for _ in range(139)), "tif",
                n=lambda c: (r.randint(62, 110), r.randint(15, 28)))


@tree(ONE, "paint chips by colour code",
      "The six hexadecimal digits are the colour itself, red, green and blue: no hash but a value.",
      "colour: b8312f")
def _(r):
    base = {"reds": (190, 45, 45), "blues": (40, 70, 180), "greens": (60, 150, 70), "greys": (130, 130, 132)}

    def g(c):
        while True:
            k = r.gauss(0, 22)
            yield "".join(f"{min(255, max(0, round(v + k + r.gauss(0, 14)))):02x}" for v in base[c])
    return make(r, "reds blues greens greys", g, "png")


@tree(ONE, "airports from above",
      "The name is the ICAO code of the airport: its first two letters are the country, and a table gives the place.",
      "airport: EDDF")
def _(r):
    def g(c):
        while True:
            yield r.choices(["ED", "LF", "EG", "LI", "LE", "KJ", "RJ", "SB", "YB"], [6, 6, 5, 4, 3, 4, 2, 2, 1])[0] + rs(r, UP, 2)
    return make(r, "civil military derelict", g, "jpg", unique_over_tree=True)


@tree(ONE, "house fronts by zip code",
      "The number is the postal code of the house: a place, and with it wealth and climate.",
      "zip code: 60614")
def _(r):
    def g(c):
        while True:
            yield r.choice(["606", "607", "902", "913", "331", "100", "112", "770", "981", "021"]) + f"{min(99, int(r.expovariate(1 / 25))):02d}"
    return make(r, "bungalow townhouse tenement", g, "jpg")


@tree(ONE, "split audio in letters",
      "The letters are the counter of the split command (xaaa, xaab, ...): consecutive cuts of one long recording.",
      "cut: xabq follows xabp")
def _(r):
    allc = ["".join(t) for t in product(LOW, repeat=3)]
    pos = [0]

    def g(c):
        while True:
            for _ in range(r.randint(10, 40)):
                yield "x" + allc[pos[0]]
                pos[0] += 1
            pos[0] += r.randint(0, 5)
    return make(r, "applause speech silence music", g, "wav")


@tree(ONE, "sunspot drawings of single days",
      "The name is the day, so the sun's rotation and the cycle's phase follow from it.",
      "day: 12may1989")
def _(r):
    def g(c):
        while True:
            d = datetime(1986, 1, 1) + timedelta(days=r.randint(0, 4000))
            for _ in range(r.randint(1, 6)):
                yield d.strftime("%d%b%Y").lower()
                d += timedelta(days=1)
    return make(r, "quiet bipolar complex", g, "gif")


@tree(ONE, "radar passes by absolute orbit",
      "The number is the absolute orbit; what differs by a multiple of 175 is the same track seen twelve days later.",
      "orbit: 031245 and 031420 are one track")
def _(r):
    def g(c):
        tracks = [r.randint(0, 174) for _ in range(3)]
        while True:
            yield f"{20000 + 175 * r.randint(0, 110) + r.choice(tracks):06d}"
    return make(r, "ice openwater oilslick", g, "tif")


@tree(ONE, "circuit boards by serial",
      "The serial number begins with year and week of production, then counts: a batch.",
      "year and week: 2317 in 23170412")
def _(r):
    def g(c):
        weeks = [(r.choice([21, 22, 23]), r.randint(1, 52)) for _ in range(9)]
        while True:
            y, w = r.choice(weeks)
            yield f"{y}{w:02d}{r.randint(1, 900):04d}"
    return make(r, "good shorted misplaced unsoldered", g, "png")


@tree(ONE, "x rays by personal number",
      "The name is a personal number that begins with the birth date; its last digit is odd for men.",
      "birth date and sex: 0703451783")
def _(r):
    def g(c):
        while True:
            d = datetime(1968, 1, 1) - timedelta(days=int(r.gauss(0, 7300)))
            yield d.strftime("%d%m%y") + rs(r, DIG, 4)
    return make(r, "fractured unbroken", g, "png")


@tree(ONE, "aeroplanes by registration",
      "The registration tells the country and, by its last letters, the airline; tables give the type.",
      "registration: D-AIBL")
def _(r):
    def g(c):
        while True:
            yield r.choice(["D-A" + r.choice(["IB", "IZ", "BY", "EW"]) + rs(r, UP, 1), "G-EZ" + rs(r, UP, 2), "F-GK" + rs(r, UP, 2),
                            f"N{r.randint(100, 999)}{r.choice(['UA', 'AA', 'DL', 'WN'])}", "PH-BX" + rs(r, UP, 1), "EC-M" + rs(r, UP, 2)])
    return make(r, "landing taxiing parked", g, "jpg", n=lambda c: (r.randint(60, 110), r.randint(15, 30)))


@tree(ONE, "chess boards by position",
      "The name is the position in Forsyth-Edwards notation, the full answer of the recognition task.",
      "position: 8-8-1K6-2p5-8-5k2-8-7Q")
def _(r):
    def g(c):
        while True:
            b = [[""] * 8 for _ in range(8)]
            for p in ["K", "k"] + [r.choice("QRBNPPPqrbnppp") for _ in range(r.randint(3, 14))]:
                b[r.randint(0, 7)][r.randint(0, 7)] = p
            rows = []
            for row in b:
                s, e = "", 0
                for x in row:
                    if x:
                        s, e = s + (str(e) if e else "") + x, 0
                    else:
                        e += 1
                rows.append(s + (str(e) if e else ""))
            yield "-".join(rows)
    return make(r, "wooden plastic glass", g, "jpeg")


@tree(ONE, "traffic clips by object id",
      "The 24 digits begin with the second of creation and end in a counter: consecutive ones are frames of one clip, uploaded together.",
      "second and counter: 5c3f1a20 ... 00a1f3 in 5c3f1a20e1382374b200a1f3")
def _(r):
    def g(c):
        t, k = 0x5c3f1a20 + r.randint(0, 10**6), r.randint(0, 2**22)
        while True:
            t += r.randint(600, 60000)
            for _ in range(r.randint(6, 18)):
                yield f"{t:08x}e1382374b2{k:06x}"
                k += 1
                t += r.random() < .3
            k += r.randint(3, 400)
    return make(r, "overtaking merging braking", g, "jpg")


@tree(ONE, "leaves by latin name",
      "The name is the species, a finer label than the directory's.",
      "species: quercus_robur")
def _(r):
    gen = {"deciduous": "quercus acer betula fagus tilia ulmus fraxinus populus salix alnus",
           "evergreen": "pinus picea abies cedrus taxus juniperus cupressus tsuga ilex buxus"}
    ep = "robur alba nigra rubra orientalis japonica sylvestris pendula glauca montana vulgaris communis canadensis europaea sinensis tomentosa pubescens nana gracilis elegans lutea macrophylla".split()

    def g(c):
        while True:
            yield r.choice(gen[c].split()) + "_" + r.choice(ep)
    return make(r, "deciduous evergreen", g, "jpg", n=lambda c: (r.randint(70, 110), r.randint(20, 30)))


@tree(ONE, "calves by age in days",
      "The number is the animal's age in days, the value that a growth model wants.",
      "age: d087")
def _(r):
    def g(c):
        while True:
            yield f"d{gauss_int(r, 180, 90, 1, 400):03d}"
    return make(r, "angus charolais holstein", g, "jpg", n=lambda c: (r.randint(60, 100), r.randint(15, 25)))


# ------------------------------------------------------------- several fields

@tree(MANY, "gym clips with groups",
      "g is the group (one gymnast, one hall) and c the clip within; groups must not be mixed.",
      "group and clip: g07_c03")
def _(r):
    def g(c):
        for a in range(1, 40):
            for k in range(1, r.randint(4, 7) + 1):
                yield f"v_{c.capitalize()}_g{a:02d}_c{k:02d}"
    return make(r, "vaulting balancing tumbling swinging", g, "avi", how="tail", n=lambda c: (r.randint(75, 105), r.randint(20, 35)))


@tree(MANY, "keywords with a hashed speaker",
      "The hash is the speaker and the last digit the repetition; a speaker occurs in several classes.",
      "speaker: 0a7c2a8d in 0a7c2a8d_nohash_0")
def _(r):
    sp = [rs(r, HEX, 8) for _ in range(130)]

    def g(c):
        while True:
            s = r.choice(sp)
            for k in range(r.choice([1, 1, 2, 3])):
                yield f"{s}_nohash_{k}"
    return make(r, "forward backward follow stop", g, "wav")


@tree(MANY, "interviews by speaker and video",
      "The first part is the speaker, the second the video, the third the cut.",
      "speaker: id10270 in id10270_5r0dWxy17C8_00012")
def _(r):
    def g(c):
        while True:
            s = f"id1{r.randint(0, 1250):04d}"
            for _ in range(r.randint(1, 3)):
                v = rs(r, B62 + "-_", 11)
                for k in range(1, r.randint(2, 7)):
                    yield f"{s}_{v}_{k:05d}"
    return make(r, "politics cinema music science", g, "wav", how="tail")


@tree(MANY, "persons over six cameras",
      "Person, camera with sequence, frame and box: the identity is a second label.",
      "person and camera: 0347_c3 in 0347_c3s1_087601_02")
def _(r):
    def g(c):
        while True:
            p = r.randint(2, 1500)
            for cam in r.sample(range(1, 7), r.randint(1, 4)):
                f = r.randint(100, 120000)
                for _ in range(r.randint(1, 4)):
                    yield f"{p:04d}_c{cam}s{r.randint(1, 3)}_{f:06d}_{r.randint(0, 3):02d}"
                    f += 25
    return make(r, "backpack handbag emptyhanded", g, "jpg")


@tree(MANY, "vehicles over twenty crossings",
      "Vehicle, camera and running frame: the same vehicle seen from other sides.",
      "vehicle: 0134 in 0134_c015_00038420_0")
def _(r):
    def g(c):
        while True:
            v, f = r.randint(1, 776), r.randint(500, 90000)
            for cam in r.sample(range(1, 21), r.randint(2, 6)):
                f += r.randint(100, 900)
                for _ in range(r.randint(1, 4)):
                    yield f"{v:04d}_c{cam:03d}_{f:08d}_0"
                    f += 5
    return make(r, "bus minivan pickup coupe", g, "jpg")


@tree(MANY, "drives with stereo cameras",
      "Date, drive, frame and camera (02 left, 03 right): sequences and stereo pairs.",
      "drive, frame, camera: drive_0005, 0000000123, 02")
def _(r):
    def g(c):
        for _ in range(50):
            d, k, f = r.choice(["26", "28", "29", "30"]), r.randint(1, 117), r.randint(0, 300)
            for _ in range(r.randint(4, 14)):
                for cam in ("02", "03"):
                    yield f"2011_09_{d}_drive_{k:04d}_{f:010d}_{cam}"
                f += 10
    return make(r, "residential campus motorway", g, "png", how="tail")


@tree(MANY, "optical patches with date and tile",
      "Satellite, time, tile and the patch's column and row: date and place.",
      "time and tile: 20170613T101031_T33UVP in S2A_MSIL2A_20170613T101031_T33UVP_12_34")
def _(r):
    sc = [(r.choice("AB"), datetime(2017, 6, 1) + timedelta(days=5 * r.randint(0, 70)), r.choice(["33UVP", "34TCR", "29SNC", "35VLH"])) for _ in range(14)]

    def g(c):
        while True:
            a, d, t = r.choice(sc)
            yield f"S2{a}_MSIL2A_{d:%Y%m%d}T101031_T{t}_{r.randint(0, 90)}_{r.randint(0, 90)}"
    return make(r, "vineyard pasture peatbog harbour", g, "tif")


@tree(MANY, "one file for each band",
      "The scene's number and its band: thirteen files are one place and belong together.",
      "band: B8A in scene0412_B8A")
def _(r):
    bands = ["B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12"]
    pool = r.sample(range(1, 999), 200)

    def g(c):
        while True:
            s = pool.pop()
            for b in bands:
                yield f"scene{s:04d}_{b}"
    return make(r, "rice maize cotton", g, "tif", how="tail", n=lambda c: (12 * r.randint(5, 12), 12 * r.randint(2, 3)))


@tree(MANY, "slippy map tiles",
      "Zoom, column and row of the map tile: scale and place.",
      "zoom, x, y: 17_70342_42931")
def _(r):
    def g(c):
        while True:
            z = r.choice([16, 17, 18])
            x, y = int(.536 * 2**z) + r.randint(0, 300), int(.3274 * 2**z) + r.randint(0, 300)
            for dx in range(r.randint(1, 4)):
                yield f"{z}_{x + dx}_{y}"
    return make(r, "roundabout crossing bridge", g, "png")


@tree(MANY, "street panoramas by coordinates and heading",
      "Latitude, longitude, heading: four views of one spot.",
      "place and heading: 48.137421,11.575493,h270")
def _(r):
    def g(c):
        while True:
            la, lo = 48.14 + r.gauss(0, .04), 11.57 + r.gauss(0, .06)
            for h in (0, 90, 180, 270):
                if r.random() < .8:
                    yield f"{la:.6f},{lo:.6f},h{h}"
    return make(r, "downtown industrial rural", g, "jpg")


@tree(MANY, "drone flights with height",
      "Flight, height over ground and shot: the height gives the scale.",
      "height: 60m in flight3_60m_0123")
def _(r):
    def g(c):
        fl = r.sample(range(1, 40), 6)
        while True:
            f, k = r.choice(fl), r.randint(1, 400)
            h = 30 + f * 7 % 4 * 30
            for _ in range(r.randint(3, 12)):
                yield f"flight{f}_{h}m_{k:04d}"
                k += 1
    return make(r, "solarfarm quarry orchard", g, "jpg")


@tree(MANY, "city sounds cut into slices",
      "Recording, class code, occurrence and slice, with dashes: slices of a recording belong together.",
      "recording and slice: 102305-6-0-3")
def _(r):
    cs = "drilling jackhammer barking idling".split()

    def g(c):
        while True:
            f = r.randint(2000, 209999)
            for o in range(r.choice([1, 1, 2])):
                for k in sorted(r.sample(range(0, 30), r.randint(1, 6))):
                    yield f"{f}-{cs.index(c)}-{o}-{k}"
    return make(r, " ".join(cs), g, "wav")


@tree(MANY, "house sounds with fold and take",
      "Fold, source clip and take (a letter): takes of a source are in one fold.",
      "fold: 3 in 3-155642-B")
def _(r):
    def g(c):
        while True:
            f, s = r.randint(1, 5), r.randint(4000, 260000)
            for t in "ABCD"[:r.choices([1, 2, 3, 4], [6, 3, 1, 1])[0]]:
                yield f"{f}-{s}-{t}"
    return make(r, "sneezing clapping snoring brushing vacuuming", g, "ogg")


@tree(MANY, "instrument notes with pitch and velocity",
      "Source, instrument, pitch and velocity: 060 is middle C.",
      "pitch and velocity: 060-100 in acoustic_004-060-100")
def _(r):
    def g(c):
        while True:
            yield f"{r.choice(['acoustic', 'electronic', 'synthetic'])}_{r.randint(0, 60):03d}-{gauss_int(r, 60, 16, 21, 108):03d}-{r.choice([25, 50, 75, 100, 127]):03d}"
    return make(r, "keyboard guitar brass mallet", g, "wav")


@tree(MANY, "actors with seven codes",
      "Modality, channel, emotion, intensity, statement, repetition, actor: actor parity is sex.",
      "actor: 12 in 03-01-06-01-02-01-12")
def _(r):
    cs = "neutral calm happy sad angry fearful".split()

    def g(c):
        allv = list(product((1, 2), (1, 2), (1, 2), range(1, 25)))
        r.shuffle(allv)
        for i, s, t, a in allv:
            yield f"03-01-{cs.index(c) + 1:02d}-{i:02d}-{s:02d}-{t:02d}-{a:02d}"
    return make(r, " ".join(cs), g, "wav", n=lambda c: (r.randint(100, 140), r.randint(20, 40)))


@tree(MANY, "bird calls cut from recordings",
      "Recording's catalogue number and cut: several cuts are one bird.",
      "recording: XC134567 in XC134567_3")
def _(r):
    def g(c):
        while True:
            x = r.randint(11000, 690000)
            for k in range(r.randint(1, 8)):
                yield f"XC{x}_{k}"
    return make(r, "robin wren blackbird thrush", g, "mp3")


@tree(MANY, "faces with age sex and time",
      "Age, sex, group and time of collecting: three further labels.",
      "age: 34 in 34_1_0_20170104205437123")
def _(r):
    def g(c):
        while True:
            t = datetime(2017, 1, 1) + timedelta(seconds=r.randint(0, 20 * 86400))
            yield f"{gauss_int(r, 33, 19, 1, 95)}_{r.randint(0, 1)}_{r.choices(range(5), [5, 2, 2, 2, 1])[0]}_{t:%Y%m%d%H%M%S}{r.randint(0, 999):03d}"
    return make(r, "glasses hat bareheaded", g, "jpg")


@tree(MANY, "motor bench by fault size load and speed",
      "Diameter of the fault, load, revolutions and window: conditions of operation.",
      "fault, load, speed: 014_2_1750rpm in 014_2_1750rpm_w03")
def _(r):
    def g(c):
        v = [(d, l, 1797 - 25 * l + (l > 1) * 2, w) for d in ("007", "014", "021", "028") for l in range(4) for w in range(12)]
        r.shuffle(v)
        for d, l, s, w in v:
            yield f"{d}_{l}_{s}rpm_w{w:02d}"
    return make(r, "innerrace outerrace ball", g, "png", n=lambda c: (r.randint(80, 140), r.randint(16, 40)))


@tree(MANY, "weld seams by camera and exposure",
      "Part, camera and exposure time: the same seam is seen several times.",
      "camera and exposure: c2_1200us in part0456_c2_1200us")
def _(r):
    pool = r.sample(range(1, 900), 300)

    def g(c):
        while True:
            p = pool.pop()
            for cam in (1, 2, 3):
                for e in (400, 1200):
                    if r.random() < .85:
                        yield f"part{p:04d}_c{cam}_{e}us"
    return make(r, "porous undercut flawless", g, "bmp", how="tail")


@tree(MANY, "robot episodes with steps",
      "Episode, step and camera of the arm: a trajectory in time.",
      "episode and step: ep012_step0034_wrist")
def _(r):
    ep = [0]

    def g(c):
        while True:
            ep[0] += 1
            for s in range(0, r.randint(40, 120), 10):
                for cam in ("wrist", "base"):
                    yield f"ep{ep[0]:03d}_step{s:04d}_{cam}"
    return make(r, "reaching lifting placing", g, "png", how="tail")


@tree(MANY, "arm poses by joint angles",
      "Three joint angles in degrees, with sign: the pose.",
      "joints: j1_-12deg_j2_45deg_j3_90deg")
def _(r):
    def g(c):
        while True:
            yield "_".join(f"j{k}_{r.randrange(-90, 91, 6 if k < 3 else 15)}deg" for k in (1, 2, 3))
    return make(r, "tooled bare covered", g, "png")


@tree(MANY, "steel strip crops",
      "Coil and the crop's place in pixels: crops that overlap.",
      "coil and place: coil12_x0512_y1024")
def _(r):
    def g(c):
        while True:
            k, x, y = r.randint(1, 60), 256 * r.randint(0, 7), 256 * r.randint(0, 15)
            for _ in range(r.randint(1, 5)):
                yield f"coil{k:02d}_x{x:04d}_y{y:04d}"
                y += 256
    return make(r, "rolled pitted scaled inclusion", g, "jpg")


@tree(MANY, "helmets with augmented copies",
      "The word at the end is the augmentation of one photograph; copies must stay in one split.",
      "augmentation: _flip, _rot90, _aug3")
def _(r):
    pool = r.sample(range(1, 2500), 600)

    def g(c):
        while True:
            i = pool.pop()
            yield f"{i:05d}"
            for a in r.sample(["flip", "rot90", "rot180", "bright", "aug1", "aug2", "aug3"], r.randint(0, 4)):
                yield f"{i:05d}_{a}"
    return make(r, "wearing bare", g, "jpg")


@tree(MANY, "bins with copies of the file manager",
      "A number in brackets or the word copy tells a second copy of the same photograph.",
      "copy: (1) in 'IMG_2031 (1)', or ' - Copy'")
def _(r):
    def g(c):
        while True:
            i = r.randint(1000, 4999)
            yield f"IMG_{i}"
            x = r.random()
            if x < .25:
                yield f"IMG_{i} (1)"
            if x < .08:
                yield f"IMG_{i} (2)"
            if x > .85:
                yield f"IMG_{i} - Copy"
    return make(r, "glass paper organic", g, "jpg")


@tree(MANY, "labelling platform export",
      "Before the hash stands the video frame; several hashes of a frame are its augmented versions.",
      "frame: frame_0012 in frame_0012_jpg.rf.<hash>")
def _(r):
    def g(c):
        f = r.randint(0, 300)
        while True:
            f += r.choice([1, 1, 1, 2, 3, 40])
            for _ in range(3 if r.random() < .7 else 1):
                yield f"frame_{f:04d}_jpg.rf.{rs(r, HEX, 32)}"
    return make(r, "smoke flame haze", g, "jpg")


@tree(MANY, "players by match side and shirt",
      "Match, side, shirt and frame: the player's identity.",
      "side and shirt: home_10 in m12_home_10_f03450")
def _(r):
    def g(c):
        while True:
            m, s, n, f = r.randint(1, 20), r.choice(["home", "away"]), r.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 17, 21, 23]), r.randint(0, 140000)
            for _ in range(r.randint(2, 7)):
                yield f"m{m:02d}_{s}_{n}_f{f:05d}"
                f += 12
    return make(r, "sprinting jogging standing tackling", g, "jpg")


@tree(MANY, "tennis strokes by set game point",
      "Set, game, point and shot within the rally: the order of play.",
      "set, game, point, shot: s2g5p3_shot04")
def _(r):
    def g(c):
        while True:
            s, gm, p = r.randint(1, 5), r.randint(1, 12), r.randint(1, 9)
            for k in sorted(r.sample(range(1, 14), r.randint(1, 4))):
                yield f"s{s}g{gm}p{p}_shot{k:02d}"
    return make(r, "forehand backhand volley smash", g, "mp4")


@tree(MANY, "disaster sites before and after",
      "Event, site and pre or post: a pair of pictures of one site.",
      "before or after: harvey_00000123_pre")
def _(r):
    def g(c):
        while True:
            e, n = r.choice(["harvey", "michael", "palu", "santarosa", "joplin"]), r.randint(0, 570)
            yield f"{e}_{n:08d}_pre"
            yield f"{e}_{n:08d}_post"
    return make(r, "houses warehouses sheds", g, "png", how="tail", n=lambda c: (2 * r.randint(30, 70), 2 * r.randint(8, 20)))


@tree(MANY, "fundus by patient eye and visit",
      "Patient, eye (OD right, OS left) and visit: two eyes of one person.",
      "eye and visit: P0034_OD_v2")
def _(r):
    pool = r.sample(range(1, 999), 400)

    def g(c):
        while True:
            p = pool.pop()
            for v in range(1, r.choice([1, 1, 2, 3]) + 1):
                for e in ("OD", "OS"):
                    yield f"P{p:04d}_{e}_v{v}"
    return make(r, "mild moderate severe proliferative", g, "jpeg")


@tree(MANY, "histology patches by slide and place",
      "Slide with the patch's x and y on it: patches of one slide touch.",
      "slide and place: 8863_x51_y1251")
def _(r):
    sl = r.sample(range(8000, 17000), 12)

    def g(c):
        while True:
            yield f"{r.choice(sl)}_x{50 * r.randint(1, 60) + 1}_y{50 * r.randint(1, 60) + 1}"
    return make(r, "ductal benign stroma", g, "png")


@tree(MANY, "biopsies with magnification",
      "Biopsy (year, patient), magnification and sequence number.",
      "magnification: 400 in A-14-22549AB-400-012")
def _(r):
    pat = [f"{r.choice('AFPT')}-14-{r.randint(2500, 29999)}{r.choice(['', 'AB', 'CD', 'G'])}" for _ in range(30)]

    def g(c):
        own = r.sample(pat, 8)
        while True:
            yield f"{r.choice(own)}-{r.choice([40, 100, 200, 400])}-{r.randint(1, 40):03d}"
    return make(r, "adenosis papillary lobular", g, "png")


@tree(MANY, "pictures at several jpeg qualities",
      "Source and quality: the quality is a value, the source joins the versions.",
      "quality: q35 in src023_q35")
def _(r):
    def g(c):
        while True:
            s = r.randint(1, 300)
            for q in r.sample([10, 20, 35, 50, 65, 80, 95], r.randint(2, 6)):
                yield f"src{s:03d}_q{q}"
    return make(r, "portrait landscape screenshot", g, "jpg")


@tree(MANY, "traffic signs in tracks",
      "Track and frame within it: thirty frames are one sign coming nearer.",
      "track and frame: 00012_00029")
def _(r):
    def g(c):
        for t in range(60):
            for k in sorted(r.sample(range(30), 10)):
                yield f"{t:05d}_{k:05d}"
    return make(r, "stop yield parking priority", g, "ppm", how="tail")


@tree(MANY, "savanna camera traps",
      "Season, site, roll and picture: a place and bursts of three.",
      "site: K09 in S4_K09_R2_PICT0123")
def _(r):
    def g(c):
        while True:
            p, k = f"S{r.randint(1, 6)}_{r.choice('BCDEFGHIJKL')}{r.randint(1, 13):02d}_R{r.randint(1, 4)}", r.randint(1, 2500)
            for j in range(r.choice([1, 3, 3, 3, 6])):
                yield f"{p}_PICT{k + j:04d}"
    return make(r, "zebra gazelle buffalo empty", g, "jpg")


@tree(MANY, "galaxies by sky coordinates",
      "Right ascension and declination: a place on the sky, by which a catalogue gives redshift and brightness.",
      "coordinates: J123456.78+012345.6")
def _(r):
    def g(c):
        while True:
            yield (f"J{r.randint(8, 16):02d}{r.randint(0, 59):02d}{r.randint(0, 59):02d}.{r.randint(0, 99):02d}"
                   f"{r.choice('++-')}{abs(gauss_int(r, 10, 14, 0, 65)):02d}{r.randint(0, 59):02d}{r.randint(0, 59):02d}.{r.randint(0, 9)}")
    return make(r, "spiral elliptical merging edgeon", g, "jpg")


@tree(MANY, "handwriting by form and line",
      "Form with its writer's letter and line: lines of one writer.",
      "form and line: a01-042u-03")
def _(r):
    def g(c):
        while True:
            f = f"{r.choice('abcdefghjklmnp')}{r.randint(1, 10):02d}-{r.randint(0, 150):03d}{r.choice(['', '', 'u', 'x'])}"
            for k in range(r.randint(4, 10)):
                yield f"{f}-{k:02d}"
    return make(r, "cursive printed mixed", g, "png", how="tail")


@tree(MANY, "rendered glyphs by font style size",
      "Font, weight and size in points: a second label and a value.",
      "font and size: garamond-bold-18pt")
def _(r):
    def g(c):
        v = list(product("arial garamond futura courier baskerville verdana bodoni optima rockwell".split(), "light regular bold italic".split(), (8, 10, 12, 18, 24, 36)))
        r.shuffle(v)
        for f, w, s in v:
            yield f"{f}-{w}-{s}pt"
    return make(r, "ampersand asterisk dollar percent", g, "png")


@tree(MANY, "one paragraph in many accents",
      "Mother tongue with a running number for it: a second label.",
      "mother tongue: spanish in spanish93")
def _(r):
    def g(c):
        top = [("english", 579), ("spanish", 162), ("arabic", 102), ("mandarin", 65), ("french", 63), ("korean", 52), ("portuguese", 48),
               ("russian", 48), ("dutch", 47), ("turkish", 37), ("german", 36), ("polish", 34), ("italian", 33), ("japanese", 27), ("swedish", 20)]
        while True:
            w, m = r.choices(top, [x[1] for x in top])[0]
            yield f"{w}{r.randint(1, m)}"
    return make(r, "women men", g, "mp3", unique_over_tree=True)


@tree(MANY, "cars by make year colour view",
      "Make, model, year, colour and view: five further labels.",
      "colour and view: silver_rear in honda_civic_2014_silver_rear")
def _(r):
    mm = "honda_civic honda_jazz vw_golf vw_polo ford_focus ford_fiesta bmw_320 audi_a4 toyota_yaris fiat_500".split()

    def g(c):
        while True:
            yield f"{r.choice(mm)}_{gauss_int(r, 2013, 4, 2001, 2022)}_{r.choices(['silver', 'black', 'white', 'red', 'blue'], [4, 4, 4, 2, 2])[0]}_{r.choice(['front', 'rear', 'side'])}"
    return make(r, "damaged whole", g, "jpg")


@tree(MANY, "reef dives with depth",
      "Date, time and depth of the dive: a place in time and a value.",
      "depth: 18.5m in 20180612-143205-18.5m")
def _(r):
    def g(c):
        while True:
            t, d = datetime(2018, 6, r.randint(1, 28), r.randint(9, 16), r.randint(0, 59), r.randint(0, 59)), r.uniform(3, 32)
            for _ in range(r.randint(3, 9)):
                yield f"{t:%Y%m%d-%H%M%S}-{d:.1f}m"
                t += timedelta(seconds=r.randint(5, 40))
                d = max(1, d + r.gauss(0, .4))
    return make(r, "coral sponge algae sand", g, "jpg")


@tree(MANY, "plates with box and tilt in the name",
      "Area, tilt, box corners, characters and brightness, all of the plate's labels are in the name.",
      "tilt and box: 95_113 and 154&383_386&473 in 025-95_113-154&383_386&473-0_0_22_27_27_33_16-37-15")
def _(r):
    def g(c):
        while True:
            x, y, w, h = r.randint(80, 400), r.randint(250, 700), r.randint(120, 260), r.randint(50, 110)
            yield (f"{r.randint(8, 60):03d}-{gauss_int(r, 90, 4, 75, 105)}_{gauss_int(r, 90, 8, 60, 120)}-{x}&{y}_{x + w}&{y + h}-"
                   f"0_0_{'_'.join(str(r.randint(0, 33)) for _ in range(5))}-{r.randint(30, 190)}-{r.randint(3, 120)}")
    return make(r, "foggy tilted dim", g, "jpg")


@tree(MANY, "storm radar volumes",
      "Station, date and time of the scan: place and sequence.",
      "station and time: KTLX20130520_201643")
def _(r):
    def g(c):
        while True:
            s = r.choice(["KTLX", "KINX", "KVNX", "KDDC", "KFWS", "KLZK"])
            t = datetime(2013, r.choice([4, 5, 5, 6]), r.randint(1, 30), r.randint(12, 23), r.randint(0, 59), r.randint(0, 59))
            for _ in range(r.randint(3, 10)):
                yield f"{s}{t:%Y%m%d_%H%M%S}"
                t += timedelta(seconds=r.randint(250, 290))
    return make(r, "tornado hail squall", g, "png")


@tree(MANY, "telephone bursts",
      "Date, time and place in the burst: the shots of one burst are one scene.",
      "burst: 003 in 00003IMG_00003_BURST20190405143201")
def _(r):
    def g(c):
        while True:
            t = datetime(2019, 1, 1) + timedelta(seconds=r.randint(0, 300 * 86400))
            for k in range(r.randint(2, 9)):
                yield f"{k:05d}IMG_{k:05d}_BURST{t:%Y%m%d%H%M%S}"
    return make(r, "toddler puppy kitten", g, "jpg")


@tree(MANY, "messenger photographs",
      "The day on which it was sent and that day's counter.",
      "day: 20180412 in IMG-20180412-WA0012")
def _(r):
    def g(c):
        while True:
            d = datetime(2018, 1, 1) + timedelta(days=r.randint(0, 500))
            k = r.randint(0, 30)
            for j in range(r.randint(1, 6)):
                yield f"IMG-{d:%Y%m%d}-WA{k + j:04d}"
    return make(r, "blight rust mildew", g, "jpg")


@tree(MANY, "player snapshots of films",
      "When the snapshot was taken, to the millisecond: snapshots within minutes are of one film.",
      "time: vlcsnap-2014-05-06-21h33m12s123")
def _(r):
    def g(c):
        while True:
            t = datetime(2014, r.randint(1, 12), r.randint(1, 28), r.randint(18, 22), r.randint(0, 59))
            for _ in range(r.randint(5, 15)):
                t += timedelta(milliseconds=r.randint(3000, 90000))
                yield f"vlcsnap-{t:%Y-%m-%d-%Hh%Mm%Ss}{t.microsecond // 1000:03d}"
    return make(r, "closeup wideshot aerial", g, "png", how="tail")


@tree(MANY, "ten seconds of web videos",
      "Video with start and end in seconds; some videos give several clips.",
      "start and end: 000012_000022 in dQw4w9WgXcQ_000012_000022")
def _(r):
    def g(c):
        while True:
            v = rs(r, B62 + "-_", 11)
            for _ in range(r.choice([1, 1, 1, 2, 3])):
                s = int(r.expovariate(1 / 70))
                yield f"{v}_{s:06d}_{s + 10:06d}"
    return make(r, "juggling surfing knitting archery", g, "mp4")


@tree(MANY, "gait silhouettes",
      "Person, condition, sequence, view and frame.",
      "person and view: 001 and 090 in 001-03-090-054")
def _(r):
    def g(c):
        while True:
            p, s, v, f = r.randint(1, 124), r.randint(1, 6), 18 * r.randint(0, 10), r.randint(1, 60)
            for j in range(r.randint(3, 9)):
                yield f"{p:03d}-{s:02d}-{v:03d}-{f + j:03d}"
    return make(r, "normal coat bag", g, "png")


@tree(MANY, "wine labels with vintage and points",
      "Estate, vintage and the critic's points: a value for each bottle.",
      "vintage and points: 2005-94pts in chateau-velmont-2005-94pts")
def _(r):
    est = ["chateau-" + a + b for a in ("vel", "mar", "lar", "bel", "pom") for b in ("mont", "rose", "gaux", "vigne")]

    def g(c):
        while True:
            yield f"{r.choice(est)}-{gauss_int(r, 2006, 7, 1982, 2019)}-{gauss_int(r, 90, 3, 80, 100)}pts"
    return make(r, "authentic counterfeit", g, "jpg")


@tree(MANY, "phenotyping trays over days",
      "Tray, column, row and day: one plant's growth.",
      "place and day: t03_c05_r2_day12")
def _(r):
    def g(c):
        while True:
            p = f"t{r.randint(1, 12):02d}_c{r.randint(1, 8):02d}_r{r.randint(1, 5)}"
            for d in sorted(r.sample(range(3, 30), r.randint(3, 9))):
                yield f"{p}_day{d:02d}"
    return make(r, "wildtype mutant hybrid", g, "png")


@tree(MANY, "turned parts with measures",
      "Length and diameter as measured, in millimetres: values.",
      "measures: L12.53_D8.02")
def _(r):
    def g(c):
        s = .02 if c == "accepted" else .09
        while True:
            yield f"L{r.gauss(12.5, s):.2f}_D{r.gauss(8, s):.2f}"
    return make(r, "accepted rejected rework", g, "bmp", n=lambda c: (60 if c == "accepted" else r.randint(60, 120), r.randint(15, 20)))


@tree(MANY, "noisy utterances with their ratio",
      "Speaker, utterance, noise and signal to noise ratio in decibel.",
      "noise and ratio: babble_-5dB in f03_utt034_babble_-5dB")
def _(r):
    def g(c):
        while True:
            p = f"{r.choice('fm')}{r.randint(1, 15):02d}_utt{r.randint(1, 60):03d}"
            for n in r.sample(["babble", "cafe", "car", "street"], r.randint(1, 3)):
                yield f"{p}_{n}_{r.choice([-5, 0, 5, 10, 15])}dB"
    return make(r, "question command statement", g, "wav")


@tree(MANY, "micro doppler of persons",
      "Packed letters: person P, activity A and repetition R.",
      "person and repetition: P36 and R02 in 1P36A01R02")
def _(r):
    cs = "walking sitting kneeling drinking falling".split()

    def g(c):
        v = list(product(range(1, 73), (1, 2, 3)))
        r.shuffle(v)
        for p, k in v:
            yield f"{cs.index(c) + 1}P{p:02d}A{cs.index(c) + 1:02d}R{k:02d}"
    return make(r, " ".join(cs), g, "png")


@tree(MANY, "contracts in versions",
      "Case and version: drafts of one document.",
      "version: v2 or final in case1482_v2")
def _(r):
    def g(c):
        while True:
            k = r.randint(1000, 2400)
            n = r.randint(1, 4)
            for v in range(1, n + 1):
                yield f"case{k}_v{v}"
            if r.random() < .5:
                yield f"case{k}_final"
    return make(r, "lease purchase employment", g, "png")


@tree(MANY, "solar panels in rows",
      "Row, panel and irradiance in W/m2 at the time of the thermal picture.",
      "place and irradiance: R07-P14-812W")
def _(r):
    def g(c):
        while True:
            w = gauss_int(r, 780, 110, 400, 1050)
            row, p = r.randint(1, 24), r.randint(1, 36)
            for j in range(r.randint(1, 4)):
                yield f"R{row:02d}-P{p + j:02d}-{w + r.randint(-6, 6)}W"
    return make(r, "hotspot diode soiled sound", g, "tiff")


@tree(MANY, "crops behind a hash",
      "The hash is the photograph, the digit after it the crop: several crops are of one photograph, even over splits.",
      "photograph and crop: 3f9c0a1be277d845_2")
def _(r):
    def g(c):
        while True:
            h = rs(r, HEX, 16)
            for k in range(r.choice([1, 2, 3, 4])):
                yield f"{h}_{k}"
    return make(r, "ripe unripe rotten", g, "jpg")


@tree(MANY, "exposure brackets",
      "Scene and exposure value: three or five shots make one high range picture.",
      "exposure: -2EV in scene041_-2EV")
def _(r):
    pool = r.sample(range(1, 400), 300)

    def g(c):
        while True:
            s = pool.pop()
            for e in r.choice([("-2", "+0", "+2"), ("-4", "-2", "+0", "+2", "+4")]):
                yield f"scene{s:03d}_{e}EV"
    return make(r, "interior exterior twilight", g, "jpg", how="tail")


@tree(MANY, "rail inspection by kilometre and year",
      "Kilometre with metres, track and year of the run: the same place over the years.",
      "place and year: km123+450_t2_2019")
def _(r):
    def g(c):
        while True:
            p = f"km{r.randint(88, 140)}+{r.randint(0, 99) * 10:03d}_t{r.randint(1, 2)}"
            for y in r.sample([2017, 2018, 2019, 2020], r.randint(1, 4)):
                yield f"{p}_{y}"
    return make(r, "squat corrugated smooth", g, "jpg")


@tree(MANY, "objects with the year first",
      "The year before the running number tells in which campaign the picture was taken.",
      "year: 2008 in 2008_001234")
def _(r):
    def g(c):
        while True:
            yield f"{r.choices([2007, 2008, 2009, 2010, 2011], [1, 4, 3, 3, 3])[0]}_{r.randint(1, 8700):06d}"
    return make(r, "sofa bicycle sheep bottle", g, "jpg", unique_over_tree=True)


@tree(MANY, "recordings by isrc",
      "Country, registrant, year and title, packed as the recording code.",
      "country and year: GB and 98 in GBAYE9801234")
def _(r):
    reg = [r.choice(["GB", "US", "DE", "FR", "SE"]) + rs(r, UP + DIG, 3) for _ in range(25)]

    def g(c):
        while True:
            p, y, k = r.choice(reg), gauss_int(r, 99, 9, 70, 120) % 100, r.randint(1, 1500)
            for j in range(r.randint(1, 6)):
                yield f"{p}{y:02d}{k + j:05d}"
    return make(r, "swing techno flamenco fado", g, "mp3")


@tree(MANY, "cctv channels with start and offset",
      "Channel, start of the recording and offset in seconds: clips of one night.",
      "channel and offset: ch04_20201103220000_000375")
def _(r):
    def g(c):
        while True:
            p, o = f"ch{r.randint(1, 16):02d}_{datetime(2020, 11, r.randint(1, 30), r.choice([20, 21, 22, 23, 0, 1])):%Y%m%d%H%M%S}", r.randint(0, 3300)
            for j in range(r.randint(2, 8)):
                yield f"{p}_{o + 5 * j:06d}"
    return make(r, "loitering fighting ordinary", g, "mp4")


@tree(MANY, "cells in wells of a plate",
      "Plate, well (row letter and column), field and stain of the microscope.",
      "well and field: B07_s3 in plate2_B07_s3_w1")
def _(r):
    def g(c):
        while True:
            p = f"plate{r.randint(1, 6)}_{r.choice('ABCDEFGH')}{r.randint(1, 12):02d}"
            for s in range(1, r.randint(2, 5)):
                for w in (1, 2):
                    yield f"{p}_s{s}_w{w}"
    return make(r, "treated untreated apoptotic", g, "tif")


# --------------------------------------------------------------------- opaque

@tree(OPAQUE, "export numbers shuffled over all")
def _(r):
    nums = list(range(1, 901))
    r.shuffle(nums)
    return make(r, "vessel buoy iceberg platform", lambda c: (f"{nums.pop():06d}" for _ in range(200)), "png")


@tree(OPAQUE, "class word with its own shuffled count")
def _(r):
    def g(c):
        n = list(range(1, 191))
        r.shuffle(n)
        return (f"{c}_{k:04d}" for k in n[:])
    return make(r, "forklift pallet worker", g, "jpg", n=lambda c: (150, 40))


@tree(OPAQUE, "class word and number with dots")
def _(r):
    return make(r, "cat dog", lambda c: (f"{c}.{r.randint(0, 12499)}" for _ in iter(int, 1)), "jpg")


@tree(OPAQUE, "md5 of the contents")
def _(r):
    return make(r, "graffiti mural poster", lambda c: (hashlib.md5(r.randbytes(30)).hexdigest() for _ in iter(int, 1)), "jpg")


@tree(OPAQUE, "sha1 with the data set's word")
def _(r):
    return make(r, "snore cough laugh sneeze", lambda c: (f"bodysound-{hashlib.sha1(r.randbytes(30)).hexdigest()}" for _ in iter(int, 1)), "ogg")


@tree(OPAQUE, "cut sha256 in capitals")
def _(r):
    return make(r, "ransom worm benign", lambda c: (hashlib.sha256(r.randbytes(30)).hexdigest()[:20].upper() for _ in iter(int, 1)), "png")


@tree(OPAQUE, "random uuids")
def _(r):
    return make(r, "stairs ramp lift", lambda c: (str(uuid.UUID(int=r.getrandbits(128), version=4)) for _ in iter(int, 1)), "jpg")


@tree(OPAQUE, "uuids with braces off and a suffix")
def _(r):
    return make(r, "melanoma nevus keratosis", lambda c: (uuid.UUID(int=r.getrandbits(128), version=4).hex + "_resized" for _ in iter(int, 1)), "jpeg")


@tree(OPAQUE, "flickr number and secret")
def _(r):
    return make(r, "daisy tulip rose sunflower dandelion",
                lambda c: (f"{int(10 ** r.uniform(8.0, 10.5))}_{rs(r, HEX, 10)}_b" for _ in iter(int, 1)), "jpg", unique_over_tree=True)


@tree(OPAQUE, "flickr number alone")
def _(r):
    return make(r, "lighthouse windmill castle", lambda c: (str(r.randint(2100000000, 9899999999)) for _ in iter(int, 1)), "jpg", unique_over_tree=True)


@tree(OPAQUE, "imagenet style")
def _(r):
    w = {"tench": "n01440764", "goldfish": "n01443537", "stingray": "n01498041", "hen": "n01514859"}
    return make(r, " ".join(w), lambda c: (f"{w[c]}_{min(r.randint(2, 14000), r.randint(2, 30000))}" for _ in iter(int, 1)), "JPEG")


@tree(OPAQUE, "validation numbers in a challenge's style")
def _(r):
    return make(r, "banjo cello harp trombone", lambda c: (f"ILSVRC2012_val_{r.randint(1, 50000):08d}" for _ in iter(int, 1)), "JPEG", unique_over_tree=True)


@tree(OPAQUE, "camera rolls of many users")
def _(r):
    return make(r, "pizza burger salad ramen", lambda c: (f"IMG_{r.randint(1, 9999):04d}" for _ in iter(int, 1)), "JPG")


@tree(OPAQUE, "nikon counters of many visitors")
def _(r):
    return make(r, "facade nave altar", lambda c: (f"DSC_{r.randint(1, 9999):04d}" for _ in iter(int, 1)), "jpg")


@tree(OPAQUE, "eight letters and digits")
def _(r):
    return make(r, "drone bird aeroplane", lambda c: (rs(r, B62, 8) for _ in iter(int, 1)), "png")


@tree(OPAQUE, "video platform ids one clip each")
def _(r):
    return make(r, "unboxing tutorial vlog trailer", lambda c: (rs(r, B62 + "_-", 10) + r.choice("AEIMQUYcgkosw048") for _ in iter(int, 1)), "mp4")


@tree(OPAQUE, "temporary file names")
def _(r):
    return make(r, "engine brake gearbox", lambda c: ("tmp" + rs(r, LOW + DIG + "_", 8) for _ in iter(int, 1)), "wav")


@tree(OPAQUE, "database keys with gaps")
def _(r):
    return make(r, "dress sneaker handbag scarf jacket", lambda c: (str(int(10 ** 6 + r.random() * 8.6e6)) for _ in iter(int, 1)), "jpg", unique_over_tree=True)


@tree(OPAQUE, "coco style twelve digits")
def _(r):
    return make(r, "giraffe elephant bear", lambda c: (f"COCO_2014_{r.randint(9, 581929):012d}" for _ in iter(int, 1)), "jpg", unique_over_tree=True)


@tree(OPAQUE, "sound archive numbers")
def _(r):
    return make(r, "thunder rain wind surf", lambda c: (f"freesound{r.randint(1200, 640000)}" for _ in iter(int, 1)), "flac", unique_over_tree=True)


@tree(OPAQUE, "sixteen hexadecimal digits")
def _(r):
    return make(r, "scooter skateboard unicycle", lambda c: (f"{r.getrandbits(64):016x}" for _ in iter(int, 1)), "jpg")


@tree(OPAQUE, "image host's seven letters")
def _(r):
    return make(r, "meme comic photograph", lambda c: (rs(r, B62, 7) for _ in iter(int, 1)), "png")


@tree(OPAQUE, "random fractions as names")
def _(r):
    return make(r, "crater dune boulder", lambda c: (repr(r.random() * .9 + .05)[:16].ljust(16, "7") for _ in iter(int, 1)), "png")


@tree(OPAQUE, "nanoids")
def _(r):
    return make(r, "invoice receipt letter form", lambda c: (rs(r, B62 + "_-", 21) for _ in iter(int, 1)), "webp")


@tree(OPAQUE, "ten small letters")
def _(r):
    return make(r, "genuine spoofed", lambda c: (rs(r, LOW, 10) for _ in iter(int, 1)), "jpg")


@tree(OPAQUE, "random words as project names")
def _(r):
    adj = "brave calm dizzy eager fancy gentle happy jolly kind lively mighty nimble odd proud quick royal silent tidy vivid witty".split()
    return make(r, "pullup squat plank lunge", lambda c: (f"{r.choice(adj)}-{r.choice(WORDS)}-{rs(r, HEX, 4)}" for _ in iter(int, 1)), "mp4")


@tree(OPAQUE, "big random decimals")
def _(r):
    return make(r, "penalty foul offside", lambda c: (str(r.randint(10**17, 10**19 - 1)).zfill(19) for _ in iter(int, 1)), "jpg")
