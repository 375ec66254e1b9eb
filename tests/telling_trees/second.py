"""Small dataset trees: names that say something, and names that do not."""
from __future__ import annotations

import base64
import datetime as dt
import hashlib
import random
import uuid

from telling_trees.telling import Tree

TREES: list[Tree] = []
ONE, SEV, OPQ = "one field", "several fields", "opaque"


def add(name, kind, classes, ext, says="", field="", mode="random", seed=None, lo=60, hi=140, tlo=15, thi=38):
    """Decorator: gen(rng, cls, n, ctx) -> list of groups (lists of stems), or of stems.

    mode random: single files are split at random; group: whole groups go to a split (but for the one at the border);
    ordered: the last ones are the test split."""
    classes = classes.split()

    def deco(gen):
        rng = random.Random(f"second/{name}/{seed}")
        ctx: dict = {"classes": classes}
        files = []
        for cls in classes:
            ntr, nte = rng.randint(lo, hi), rng.randint(tlo, thi)
            groups = [[g] if isinstance(g, str) else list(g) for g in gen(rng, cls, ntr + nte, ctx)]
            if mode == "group":
                rng.shuffle(groups)
            flat, seen = [], set()
            for g in groups:
                for s in g:
                    if s not in seen:
                        seen.add(s)
                        flat.append(s)
            flat = flat[: ntr + nte]
            if mode == "random":
                rng.shuffle(flat)
            assert len(flat) >= 75, (name, cls, len(flat))
            if len(flat) < ntr + nte:
                nte = max(15, len(flat) // 5)
            te, tr = flat[len(flat) - nte:], flat[: len(flat) - nte]
            e = ext
            files += [f"train/{cls}/{s}.{e}" for s in tr] + [f"test/{cls}/{s}.{e}" for s in te]
        TREES.append(Tree(name, says, field, kind, tuple(sorted(files))))
        return gen
    return deco


def whole(name, kind, says="", field=""):
    """Decorator: build(rng) -> list of paths."""
    def deco(build):
        TREES.append(Tree(name, says, field, kind, tuple(sorted(build(random.Random(f"second/{name}"))))))
        return build
    return deco


def hexs(rng, k):
    return "".join(rng.choice("0123456789abcdef") for _ in range(k))


def chars(rng, k, alphabet):
    return "".join(rng.choice(alphabet) for _ in range(k))


B62 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
B64U = B62 + "-_"
LOW36 = "abcdefghijklmnopqrstuvwxyz0123456789"


def ean_check(d12):
    s = sum(int(c) * (3 if i % 2 else 1) for i, c in enumerate(d12))
    return d12 + str(-s % 10)


def uniq(rng, n, f):
    out, seen = [], set()
    for _ in range(200 * n):
        v = f()
        if v not in seen:
            seen.add(v)
            out.append(v)
            if len(out) == n:
                break
    return out


def sizes(rng, n, lo, hi):
    out = []
    while sum(out) < n:
        out.append(rng.randint(lo, hi))
    return out


WORDS = """harbour window lantern garden mother silver captain winter bridge letter orange castle thunder market
shadow butter river engine copper village island mirror summer velvet doctor basket candle forest hammer journey kitchen
ladder monkey needle office palace quarter ribbon saddle table under valley water yellow zebra answer bottle corner
dinner evening father glory honest iron jacket kettle lemon middle number oyster pepper queen rabbit season ticket uncle
violin wagon young anchor barrel cattle danger eagle feather giant hollow insect jungle knight legend marble narrow
ocean pillow quiet rescue soldier temple useful visit whisper across bitter canvas desert enough finger gather height
inside judge known listen meadow nation object people question reason stable travel upper voice wonder about before
church dream earth figure ground house image justice kingdom labour matter nature order public receive second though
until value world year above bread cloud dozen empty flour grain heart inner joint knife light month night other
paper quick round storm tower usual vapour wheat youth apple beach chair drink equal fence glass horse ideal juice""".split()

# --------------------------------------------------------------------------------------------------------------
# ONE VARYING FIELD
# --------------------------------------------------------------------------------------------------------------


@add("shoe_price_cents", ONE, "sneakers boots sandals heels", "jpg",
     "The number is the price in cents as scraped from the shop: a regression target that differs from picture to picture.",
     "whole stem, 12999 = 129.99")
def _(rng, cls, n, ctx):
    mu = {"sneakers": 85, "boots": 120, "sandals": 45, "heels": 75}[cls]
    return uniq(rng, n, lambda: str(int(max(9, rng.lognormvariate(0, .5) * mu)) * 100 + rng.choice([99, 99, 99, 95, 90, 49])))


@add("grocery_ean13", ONE, "soda cereal chocolate pasta", "jpg",
     "EAN-13 with check digit: the first seven or eight digits are country and maker, so brand and product line can be read.",
     "whole stem, 5449000131805 = Coca-Cola's prefix 5449000")
def _(rng, cls, n, ctx):
    makers = {"soda": ["5449000", "4060800", "8715600", "5000112"], "cereal": ["7613034", "5059319", "5010029", "4000540"],
              "chocolate": ["7622210", "8000500", "4000417", "7610400"], "pasta": ["8076809", "8001250", "4007400"]}[cls]
    out = []
    for m in makers:
        ref = rng.randint(1000, 60000)
        for _ in range(n // len(makers) + 1):
            ref += rng.choice([1, 1, 2, 3, 7, 15, 150])
            out.append(ean_check(f"{m}{ref % 100000:05d}"))
    return out


@add("book_cover_isbn", ONE, "thriller romance cookery history", "jpg",
     "ISBN-13: registration group (language area) and publisher can be read, and one publisher's covers share a design.",
     "whole stem, 9783455000139 = German, Hoffmann und Campe")
def _(rng, cls, n, ctx):
    regs = ["978345500", "978349200", "978014103", "978006223", "978207036", "978880617", "978031242", "978184533"]
    rng.shuffle(regs)
    return uniq(rng, n, lambda: ean_check(rng.choices(regs[:5], [5, 4, 3, 2, 1])[0] + f"{rng.randint(0, 999):03d}"))


@add("image_search_rank", ONE, "pizza ramen burrito falafel curry", "jpg",
     "Number is the rank in the image search when scraped: low ranks are the clean, typical hits; the test split is the tail.",
     "whole stem, 0007 = seventh hit", mode="ordered")
def _(rng, cls, n, ctx):
    out, k = [], 0
    while len(out) < n:
        k += 1
        if rng.random() < .85:
            out.append(f"{k:04d}")
    return out


@add("webcam_unix_bursts", ONE, "calm crowded", "jpg",
     "Unix seconds of a pier's webcam; bursts of shots a few seconds apart show the same people.",
     "whole stem, 1589382012", mode="group")
def _(rng, cls, n, ctx):
    out, t = [], 1589300000
    for k in sizes(rng, n, 4, 12):
        t = 1589300000 + rng.randint(0, 20 * 86400)
        b = []
        for _ in range(k):
            b.append(str(t))
            t += rng.choice([2, 2, 3, 5])
        out.append(b)
    return out


@add("kaggle_ct_patient_slice", ONE, "haemorrhage healthy", "png",
     "Patient number times 1000 plus slice number: neighbouring slices of one patient can be found.",
     "whole stem, 17034 = patient 17, slice 34", mode="group")
def _(rng, cls, n, ctx):
    pool = ctx.setdefault("p", rng.sample(range(2, 98), 90))
    out = []
    for k in sizes(rng, n, 8, 20):
        p, s = pool.pop(), rng.randint(5, 20)
        out.append([str(p * 1000 + s + j) for j in range(k)])
    return out


@add("chess_fen_boards", ONE, "wooden marble plastic", "jpeg",
     "The stem is the position in FEN with dashes for slashes: every piece on the board can be read, the true label of the picture.",
     "whole stem, 8-8-3k4-2p5-8-1K6-5R2-8")
def _(rng, cls, n, ctx):
    def fen():
        b = [None] * 64
        sq = rng.sample(range(64), rng.randint(4, 15))
        pcs = ["k", "K"] + [rng.choice("ppPPrRnNbBqQ") for _ in sq[2:]]
        for s, p in zip(sq, pcs):
            b[s] = p
        rows = []
        for r in range(8):
            row, e = "", 0
            for c in b[r * 8:r * 8 + 8]:
                if c is None:
                    e += 1
                else:
                    row += (str(e) if e else "") + c
                    e = 0
            rows.append(row + (str(e) if e else ""))
        return "-".join(rows)
    return uniq(rng, n, fen)


@add("five_dice_roll", ONE, "felt oak carpet", "png",
     "Five digits are the pips of the five dice in the photo: a second label.", "whole stem, 16342")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: "".join(str(rng.randint(1, 6)) for _ in range(5)))


@add("captcha_answer", ONE, "wavy dotted striped", "png",
     "The stem is the captcha's answer, the text to be recognised.", "whole stem, 2b827")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: chars(rng, 5, "2345678bcdefgmnpwxy"))


@add("plate_in_name", ONE, "hatchback lorry motorbike", "jpg",
     "The registration plate of the vehicle seen: identity and, in the first letters, the state and district office.",
     "whole stem, KA05MH1234")
def _(rng, cls, n, ctx):
    rto = ["KA01", "KA03", "KA05", "KA51", "TN09", "TN22", "MH12", "MH14", "AP28", "KL07"]
    return uniq(rng, n, lambda: rng.choices(rto, [9, 8, 8, 6, 2, 1, 1, 1, 1, 1])[0] + chars(rng, 2, "ABCDEFGHJKLMNPQRSTUVWXYZ") + f"{rng.randint(1, 9999):04d}")


@add("word_transcription", ONE, "pencil ballpoint fountain", "png",
     "The stem is the word written in the crop, the transcription; the same words come back under the other pens.",
     "whole stem, harbour")
def _(rng, cls, n, ctx):
    return rng.sample(WORDS, min(n, 140))


@add("hex_colour_chips", ONE, "matte satin gloss", "png",
     "Six hexadecimal digits are the paint's sRGB colour: hue and lightness can be read though it looks like a hash.",
     "whole stem, d8c3a5 = warm beige")
def _(rng, cls, n, ctx):
    def c():
        base = rng.choice([(216, 200, 175), (120, 140, 150), (190, 90, 70), (240, 236, 228), (85, 100, 80), (200, 180, 200)])
        return "%02x%02x%02x" % tuple(min(255, max(0, int(rng.gauss(v, 14)))) for v in base)
    return uniq(rng, n, c)


@whole("denoise_offset_5000", ONE, "Noisy file 5000+k is the noisy copy of clean file k: pair partners in two classes by a constant offset.",
       "whole stem, 5037 <-> 37")
def _(rng):
    ids = list(range(1, 131))
    rng.shuffle(ids)
    return [f"{'train' if i < 100 else 'test'}/{c}/{k + o}.png" for i, k in enumerate(ids) for c, o in (("clean", 0), ("noisy", 5000))]


@whole("faded_restored_pairs_holes", ONE, "A picture's archive number occurs in both classes (the faded scan and its restoration), save for a few lost ones: pair partners by equal number.",
       "whole stem, 83127 in faded and restored")
def _(rng):
    ids = rng.sample(range(10000, 99999), 140)
    out = []
    for i, k in enumerate(ids):
        s = "train" if i < 110 else "test"
        gone = rng.random()
        if gone > .03:
            out.append(f"{s}/faded/{k}.jpg")
        if gone < .03 or rng.random() > .04:
            out.append(f"{s}/restored/{k}.jpg")
    return out


@whole("poster_two_genres", ONE, "IMDb identity; a film with two genres is filed under both labels, so exchanging loses that the two files are one poster.",
       "whole stem, tt0468569 in crime and drama")
def _(rng):
    g = ["comedy", "crime", "drama", "western", "horror"]
    ids = rng.sample(range(20000, 3900000), 420)
    out = []
    for i, k in enumerate(ids):
        s = "test" if i % 5 == 0 else "train"
        own = g[(i // 5) % 5]
        for c in {own} | ({rng.choice(g)} if rng.random() < .3 else set()):
            out.append(f"{s}/{c}/tt{k:07d}.jpg")
    return out


@add("city_tiles_packed_xy", ONE, "roofs asphalt lawn", "png",
     "Column (four digits) and row (four digits) of the map tile in one number: neighbours can be found.",
     "whole stem, 20481337 = x 2048, y 1337")
def _(rng, cls, n, ctx):
    free = ctx.setdefault("f", set((x, y) for x in range(2040, 2064) for y in range(1330, 1354)))
    out = []
    while len(out) < n and free:
        cx, cy = rng.choice(sorted(free))
        for x in range(cx - 1, cx + 2):
            for y in range(cy - 1, cy + 2):
                if (x, y) in free:
                    free.discard((x, y))
                    out.append(f"{x:04d}{y:04d}")
    return out


@add("detector_confidence", ONE, "pedestrian cyclist", "png",
     "The name is the detector's confidence in the crop, which a script may sort or weigh by.", "whole stem, 0.9731")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"{rng.betavariate(6, 1.3):.4f}")


@add("daily_comic_date", ONE, "political slapstick", "gif",
     "Day of publication, one strip a day but Sundays: stories run on from day to day.", "whole stem, 19870412")
def _(rng, cls, n, ctx):
    d = dt.date(1987, 1, 2) if cls == "political" else dt.date(1991, 8, 5)
    out = []
    while len(out) < n:
        if d.weekday() != 6:
            out.append(d.strftime("%Y%m%d"))
        d += dt.timedelta(1)
    return out


@add("fold_first_digit", ONE, "ripe unripe rotten", "jpg",
     "The first digit is the cross-validation fold (1 to 5), the others count on within it; a script takes stem[0].",
     "first digit, 30417 = fold 3")
def _(rng, cls, n, ctx):
    c = ctx.setdefault("c", {k: 0 for k in range(1, 6)})
    out = []
    for i in range(n):
        f = i % 5 + 1
        c[f] += rng.choice([1, 1, 1, 2])
        out.append(f"{f}{c[f]:04d}")
    return out


@add("monster_dex_number", ONE, "fire water grass", "png",
     "National index number of the creature: evolutions are neighbours (4, 5, 6) and hundreds tell the game's generation.",
     "whole stem, 004, 005, 006 = one family", mode="group", lo=75, hi=110, tlo=15, thi=25)
def _(rng, cls, n, ctx):
    free = ctx.setdefault("start", [])
    if not free:
        k = 1
        fam = []
        while k < 1010:
            s = rng.choice([1, 2, 2, 3, 3])
            fam.append(list(range(k, k + s)))
            k += s
        rng.shuffle(fam)
        free.extend(fam)
    out, tot = [], 0
    while tot < n:
        f = free.pop()
        out.append([f"{k:03d}" for k in f])
        tot += len(f)
    return out


@add("coin_year", ONE, "cent dime quarter", "jpg",
     "Year of minting on the coin: a value and the key to its design.", "whole stem, 1943", lo=75, hi=95, tlo=16, thi=22)
def _(rng, cls, n, ctx):
    ys = [y for y in range(1856, 2018) if not (cls != "cent" and y in (1922, 1932, 1933))]
    return [str(y) for y in sorted(rng.choices(ys, [1 + (y - 1850) / 40 for y in ys], k=3 * n), key=lambda _: rng.random())]


@add("turntable_angle", ONE, "teapot toycar duck vase", "png",
     "Angle of the turntable in degrees by threes; neighbours look alike.", "whole stem, 87", lo=95, hi=95, tlo=25, thi=25)
def _(rng, cls, n, ctx):
    return [str(a) for a in range(0, 360, 3)]


@add("focus_height_signed", ONE, "pollen starch", "tif",
     "Distance of the focus from the slide's plane in tenths of a micrometre, with its sign.", "whole stem, -045", lo=90, hi=120)
def _(rng, cls, n, ctx):
    h = n // 2
    return [f"{z * 5:+04d}" for z in range(-h, n - h)]


@add("bone_age_months", ONE, "girls boys", "png",
     "Age in months; one radiograph for each age in the atlas.", "whole stem, 127", lo=90, hi=120, tlo=20, thi=30)
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"{min(228, max(3, int(rng.gauss(128, 45)))):d}")


@add("note_and_octave", ONE, "oboe cello marimba trumpet", "wav",
     "The pitch that is played, in English note names.", "whole stem, Fs4", lo=63, hi=68, tlo=16, thi=20)
def _(rng, cls, n, ctx):
    return [f"{p}{o}" for o in range(0, 8) for p in "C Cs D Ds E F Fs G Gs A As B".split()][9:97]


@add("mongo_objectid", ONE, "receipt ticket voucher", "jpg",
     "A Mongo ObjectId: the first eight digits are the second of the upload, the last six a running counter, so one user's uploads follow each other.",
     "whole stem, 5f3c1a2e9b1e8a0017c4d2a1", mode="group")
def _(rng, cls, n, ctx):
    proc = ctx.setdefault("proc", [hexs(rng, 10), hexs(rng, 10)])
    cnt = ctx.setdefault("cnt", [rng.randint(1 << 20, 1 << 23)])
    out = []
    for k in sizes(rng, n, 1, 6):
        t = rng.randint(0x5e0bd000, 0x5fee6600)
        p = rng.choice(proc)
        c = cnt[0] + (t - 0x5e0bd000) // 20
        g = []
        for _ in range(k):
            g.append(f"{t:08x}{p}{c & 0xffffff:06x}")
            t += rng.randint(1, 6)
            c += 1
        out.append(g)
    return out


@add("uuid_version_one", ONE, "forklift pallet crane", "jpg",
     "UUIDs of version 1: time to 100 ns and the recording computer's network card can be read; frames of one drive follow each other.",
     "whole stem, 6ba7b810-9dad-11d1-80b4-00c04fd430c8", mode="group")
def _(rng, cls, n, ctx):
    nodes = ctx.setdefault("nodes", [rng.getrandbits(48) & ~(1 << 40) for _ in range(3)])
    out = []
    for k in sizes(rng, n, 6, 18):
        t = 0x1EA000000000000 + rng.randint(0, 10 ** 7 * 86400 * 60)
        node, cs = rng.choice(nodes), rng.getrandbits(14)
        g = []
        for _ in range(k):
            t += 5_000_000 + rng.randint(-9000, 9000)
            g.append(str(uuid.UUID(fields=(t & 0xffffffff, (t >> 32) & 0xffff, ((t >> 48) & 0xfff) | 0x1000, (cs >> 8) | 0x80, cs & 0xff, node))))
        out.append(g)
    return out


def roman(k):
    s = ""
    for v, r in ((100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")):
        while k >= v:
            s += r
            k -= v
    return s


@add("manuscript_roman_folio", ONE, "psalter herbal bestiary", "jpg",
     "Folio in Roman numerals: order of the pages in the codex.", "whole stem, lxxiv")
def _(rng, cls, n, ctx):
    return [roman(k) for k in range(1, n + 1)]


@add("letters_as_counter", ONE, "juggling fencing", "png",
     "Frames of one clip counted in letters as 'split' does it: aaa, aab, aac ...", "whole stem, aek")
def _(rng, cls, n, ctx):
    a = "abcdefghijklmnopqrstuvwxyz"
    return ["a" + a[k // 26] + a[k % 26] for k in range(n)]


@add("modis_year_and_day", ONE, "snowy dusty cloudless", "png",
     "Year and day of the year of the satellite's passage: season can be read.", "whole stem, 2017123 = 3 May 2017")
def _(rng, cls, n, ctx):
    lo, hi = {"snowy": (310, 450), "dusty": (60, 170), "cloudless": (150, 290)}[cls]
    return uniq(rng, n, lambda: f"{rng.randint(2003, 2019)}{(rng.randint(lo, hi) - 1) % 365 + 1:03d}")


@add("signature_forger_owner", ONE, "genuine forged", "png",
     "Eight digits pack writer (3), sample (2) and owner of the signature (3): writers can be told apart, forged ones have writer != owner.",
     "whole stem, 00301030 = writer 3, sample 1, owner 30", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for w in range(1, 61):
        o = w if cls == "genuine" else rng.choice([x for x in range(1, 61) if x != w])
        out.append([f"{w:03d}{s:02d}{o:03d}" for s in rng.sample(range(1, 25), 5)])
    return out


@add("weld_serial_year_week", ONE, "porous cracked sound", "png",
     "Serial number: two digits of year, two of week, one of the line, three running on; the batch can be read.",
     "whole stem, 23194047 = 2023, week 19, line 4, piece 47", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 2, 9):
        y, w = rng.choice([(22, rng.randint(30, 52)), (23, rng.randint(1, 24))])
        s, l = rng.randint(1, 900), rng.choice([1, 2, 4])
        out.append([f"{y}{w:02d}{l}{s + j * rng.choice([1, 1, 2]):03d}" for j in range(k)])
    return out


@whole("sketch_even_photo_odd", ONE, "An even sketch k and the odd photo k+1 show one object: pair partners side by side in the count.",
       "whole stem, sketch/0214 <-> photo/0215")
def _(rng):
    return [f"{'test' if rng.random() < .2 else 'train'}/{c}/{2 * i + o:04d}.png" for i in range(125) for c, o in (("sketch", 0), ("photo", 1))]


@add("drill_core_depth", ONE, "granite schist gneiss", "jpg",
     "Depth of the core in centimetres, added to the borehole times 100000.", "whole stem, 301250 = hole 3, 12.50 m", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for b in rng.sample(range(1, 10), 7):
        d = rng.randint(0, 3000) // 25 * 25
        out.append([str(b * 100000 + d + 25 * j) for j in range(rng.randint(14, 32))])
    return out


@add("sdss_objid", ONE, "spiral elliptical merger", "jpg",
     "SDSS object identifier: bits hold run, camera column, field and object, so sky position and night can be read.",
     "whole stem, 587722981742084144")
def _(rng, cls, n, ctx):
    runs = ctx.setdefault("runs", [rng.randint(750, 6000) for _ in range(9)])

    def one():
        r = rng.choice(runs)
        return str((1 << 59) | (rng.choice([40, 41]) << 48) | (r << 32) | (rng.randint(1, 6) << 29) | (rng.randint(11, 400) << 16) | rng.randint(3, 500))
    return uniq(rng, n, one)


@add("quasar_jname", ONE, "radioloud radioquiet", "png",
     "Right ascension and declination of the source in its J-name.", "whole stem, J123456.78+012345.6")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"J{rng.randint(7, 17):02d}{rng.randint(0, 59):02d}{rng.randint(0, 5999) / 100:05.2f}{rng.choice('++-')}{int(abs(rng.gauss(0, 25))) % 60:02d}{rng.randint(0, 59):02d}{rng.randint(0, 599) / 10:04.1f}")


@add("film_still_timecode", ONE, "indoors outdoors", "jpg",
     "Time code in the film, hours minutes seconds milliseconds in one run of digits: shots in a row.",
     "whole stem, 011237480 = 1:12:37.480")
def _(rng, cls, n, ctx):
    out, t = [], 60000
    for k in sizes(rng, n, 3, 9):
        t += rng.randint(20000, 350000)
        for _ in range(k):
            t += 40 * rng.randint(20, 60)
            h, m, s, ms = t // 3600000, t // 60000 % 60, t // 1000 % 60, t % 1000
            out.append(f"{h:02d}{m:02d}{s:02d}{ms:03d}")
    return out


@add("player_elo", ONE, "aggressive defensive", "png",
     "Elo rating of the player whose move pattern is drawn: a score to regress on.", "whole stem, 1834")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: str(int(rng.gauss(1620, 310))))


@add("house_zip", ONE, "bungalow townhouse farmhouse", "jpg",
     "Postal code of the house, one house for each code: place and with it climate and wealth can be read.", "whole stem, 94103")
def _(rng, cls, n, ctx):
    c = {"bungalow": [(90001, 91000), (92000, 92900)], "townhouse": [(10001, 11500), (2108, 2500), (19100, 19160)], "farmhouse": [(50001, 53000), (66000, 68900)]}[cls]
    return uniq(rng, n, lambda: f"{rng.randint(*rng.choice(c)):05d}")


@add("interleaved_clip_frames", ONE, "serve volley smash", "jpg",
     "Frame number in the class's one clip; test frames lie between train frames and are nearly their copies.", "constant prefix, frame: court_00317")
def _(rng, cls, n, ctx):
    s = rng.randint(100, 900)
    return [f"court_{k:05d}" for k in range(s, s + n)]


@add("every_tenth_frame", ONE, "overtaking queueing roundabout", "jpg",
     "Frame number, every tenth frame kept, of several clips with gaps between them.", "whole stem, 004310", mode="group")
def _(rng, cls, n, ctx):
    out, t = [], 0
    for k in sizes(rng, n, 12, 30):
        t += rng.randint(90, 700) * 10
        out.append([f"{t + 10 * j:06d}" for j in range(k)])
        t += 10 * k
    return out


@add("what3words_place", ONE, "fountain statue mural", "jpg",
     "Three words name the 3 m square where the photo was made: a coordinate.", "whole stem, candle.forest.ribbon")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: ".".join(rng.sample(WORDS, 3)))


@add("geohash_place", ONE, "lighthouse windmill", "jpg",
     "Geohash of the place: a common beginning means near by.", "whole stem, u173zq37x", mode="group")
def _(rng, cls, n, ctx):
    g32 = "0123456789bcdefghjkmnpqrstuvwxyz"
    out = []
    for k in sizes(rng, n, 1, 7):
        base = rng.choice(["u1", "u3", "gc", "ez"]) + chars(rng, 4, g32)
        out.append([base + chars(rng, 3, g32) for _ in range(k)])
    return out


@add("artist_and_number_slug", SEV, "portrait landscape", "jpg",
     "The painter and his running number in one slug; style and hand follow from the name.", "rembrandt21: painter rembrandt, number 21", mode="group")
def _(rng, cls, n, ctx):
    ps = "rembrandt vermeer hals turner constable monet renoir cezanne gauguin degas sargent whistler corot hobbema".split()
    return [[f"{p}{k}" for k in range(1, rng.randint(6, 20))] for p in ps]


@whole("vowel_two_listeners", ONE, "One utterance's number lies under two labels when the two listeners disagreed: the same sound in two classes.",
       "whole stem, 482 in happy and bored")
def _(rng):
    cs = ["happy", "bored", "angry"]
    out = []
    ids = rng.sample(range(1, 1000), 330)
    for i, k in enumerate(ids):
        s = "train" if i < 255 else "test"
        for c in [cs[i % 3]] + ([cs[(i + 1) % 3]] if rng.random() < .18 else []):
            out.append(f"{s}/{c}/{k:03d}.wav")
    return out


@add("wave_height_cm", ONE, "breaking rolling", "jpg",
     "Wave height by the buoy in centimetres when the photo was made.", "prefix constant, value: Hs_243")
def _(rng, cls, n, ctx):
    m = 240 if cls == "breaking" else 150
    return uniq(rng, n, lambda: f"Hs_{int(rng.lognormvariate(0, .45) * m):03d}")


@add("decimal_likes", ONE, "selfie latte sunset", "jpg",
     "Number of likes at the time of the scrape, a popularity label.", "suffix constant, 1523likes")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"{int(rng.lognormvariate(5.5, 1.6))}likes")


# --------------------------------------------------------------------------------------------------------------
# SEVERAL FIELDS
# --------------------------------------------------------------------------------------------------------------


@add("utkface_style", SEV, "smiling neutral", "jpg", "Age, sex and ethnic group stand before the time stamp: three further labels.", "34_1_0_...: age 34")
def _(rng, cls, n, ctx):
    def age():
        return min(90, max(1, int(rng.choice([rng.gauss(28, 9), rng.gauss(50, 16), rng.expovariate(.25)]))))
    return uniq(rng, n, lambda: f"{age()}_{rng.randint(0, 1)}_{rng.choices(range(5), [10, 4, 3, 4, 1])[0]}_201701{rng.randint(9, 20):02d}{rng.randint(13, 22)}{rng.randint(0, 59):02d}{rng.randint(0, 59):02d}{rng.randint(0, 999):03d}")


@add("sku_colour_size", SEV, "dresses trousers coats", "jpg", "Article, colour and size of the garment; the colours of one article are the same cut.", "ZR-4521-navy-XL", mode="group")
def _(rng, cls, n, ctx):
    cols = "black white navy red olive beige grey mustard".split()
    out = []
    for k in sizes(rng, n, 2, 5):
        a, sz = rng.randint(1000, 9899), rng.choice("XS S M L XL".split())
        out.append([f"ZR-{a}-{c}-{sz}" for c in rng.sample(cols, k)])
    return out


@add("asin_view", SEV, "headphones keyboards webcams", "jpg", "Product identity and number of the view in its gallery: files of one product belong together.", "B07XJ8C8F5_3", mode="group")
def _(rng, cls, n, ctx):
    return [[f"{a}_{v}" for v in range(1, k + 1)] for k in sizes(rng, n, 2, 7)
            for a in ["B0" + chars(rng, 8, "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789")]]


@add("listing_price_and_beds", SEV, "kitchen bathroom bedroom facade", "jpg", "Price, bedrooms and town area of the house: regression targets.", "h0412_price450000_beds3")
def _(rng, cls, n, ctx):
    h = rng.sample(range(1, 999), n)
    return [f"h{k:04d}_price{int(rng.lognormvariate(12.9, .45)) // 5000 * 5000 + rng.choice([0, 0, 4900, 4000])}_beds{rng.choices([1, 2, 3, 4, 5], [1, 4, 7, 4, 1])[0]}" for k in h]


@add("roboflow_versions", SEV, "helmet barehead", "jpg", "The part before _jpg.rf. is the original photo; several augmented copies of it differ only in the hash.",
     "IMG_2231_jpg.rf.0f1e...: original IMG_2231", mode="group")
def _(rng, cls, n, ctx):
    src = rng.sample(range(1000, 9000), n)
    return [[f"IMG_{s}_jpg.rf.{hexs(rng, 32)}" for _ in range(3)] for s in src[: n // 3 + 2]]


@add("aug_suffixes", SEV, "scratched dented intact", "png", "Augmented copies name their original and the operation.", "0123_rot90, 0123_flip, 0123", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in range(1, n):
        ops = rng.sample(["flip", "rot90", "rot180", "rot270", "blur", "noise"], rng.randint(0, 4))
        out.append([f"{k:04d}"] + [f"{k:04d}_{o}" for o in ops])
    return out


@add("windows_copies", SEV, "spaniel beagle terrier", "jpg", "' - Copy' and '(2)' mark duplicates of a photo.", "dog 17 - Copy (2)", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in range(1, n + 1):
        out.append([f"dog {k}"] + [f"dog {k} - Copy", f"dog {k} - Copy (2)", f"dog {k} - Copy (3)"][: rng.choices([0, 1, 2, 3], [6, 3, 1, 1])[0]])
    return out


@add("crops_with_boxes", SEV, "wheel door bumper", "jpg", "Source photo and the crop's box: place and size in the photo.", "photo812_x120_y340_w64_h64", mode="group")
def _(rng, cls, n, ctx):
    return [[f"photo{p}_x{rng.randint(0, 1700)}_y{rng.randint(0, 950)}_w{(w := rng.choice([48, 64, 96, 128]))}_h{w}" for _ in range(rng.randint(1, 4))]
            for p in rng.sample(range(100, 999), n)]


@add("youtube_id_frame", SEV, "knitting welding baking", "jpg", "Video and frame number: frames of one video belong together.", "dQw4w9WgXcQ_000123", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 5, 14):
        v, s, st = chars(rng, 11, B64U), rng.randint(0, 4000), rng.choice([25, 30, 50])
        out.append([f"{v}_{s + st * j:06d}" for j in range(k)])
    return out


@add("librispeech_like", SEV, "fast slow", "flac", "Reader, chapter and utterance.", "84-121123-0007", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 4, 12):
        sp, ch, s = rng.randint(14, 8999), rng.randint(121, 300000), rng.randint(0, 30)
        out.append([f"{sp}-{ch}-{s + j:04d}" for j in range(k)])
    return out


@add("ravdess_like", SEV, "calm fearful surprised", "wav", "Seven codes: mode, channel, emotion, intensity, sentence, repetition, actor.", "03-01-06-02-01-02-12: actor 12")
def _(rng, cls, n, ctx):
    e = {"calm": 2, "fearful": 6, "surprised": 8}[cls]
    return [f"03-01-{e:02d}-{i:02d}-{s:02d}-{r:02d}-{a:02d}" for a in range(1, 25) for i in (1, 2) for s in (1, 2) for r in (1, 2)]


@add("speech_commands_nohash", SEV, "yes no stop go", "wav", "Hash of the speaker before _nohash_, repetition after it: one speaker's files, in several classes too.", "0a7c2a8d_nohash_0")
def _(rng, cls, n, ctx):
    sp = ctx.setdefault("sp", [hexs(rng, 8) for _ in range(130)])
    return uniq(rng, n, lambda: f"{rng.choice(sp)}_nohash_{rng.choices([0, 1, 2, 3, 4], [8, 3, 2, 1, 1])[0]}")


@add("esc50_like", SEV, "rooster rain siren footsteps", "ogg", "Fold, Freesound clip, take and class number; takes of one clip share a recording.", "1-100032-B-0: fold 1, clip 100032, take B", mode="group")
def _(rng, cls, n, ctx):
    c = {"rooster": 1, "rain": 10, "siren": 42, "footsteps": 25}[cls]
    out = []
    for k in sizes(rng, n, 1, 4):
        f, s = rng.randint(1, 5), rng.randint(9000, 260000)
        out.append([f"{f}-{s}-{'ABCD'[j]}-{c}" for j in range(k)])
    return out


@add("pneumonia_person", SEV, "sick well", "jpeg", "Person and, for the sick, the agent: a second label.", "person1234_bacteria_3091", mode="group")
def _(rng, cls, n, ctx):
    out, q = [], 1
    for p in sorted(rng.sample(range(1, 1900), n)):
        a = rng.choice(["bacteria", "bacteria", "virus"]) if cls == "sick" else "normal"
        k = rng.choice([1, 1, 1, 2, 3])
        q += rng.randint(1, 6)
        out.append([f"person{p}_{a}_{q + j}" for j in range(k)])
        q += k
    return out


@add("idc_patches", SEV, "malignant benign", "png", "Patient, position of the patch in the slide and the class.", "10253_idx5_x1351_y1101_class0", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 8, 25):
        p = rng.choice(ctx.setdefault("p", rng.sample(range(8800, 17000), 14)))
        x0, y0 = rng.randint(2, 30), rng.randint(2, 30)
        out.append([f"{p}_idx5_x{(x0 + rng.randint(0, 9)) * 50 + 1}_y{(y0 + rng.randint(0, 9)) * 50 + 1}_class{int(cls == 'malignant')}" for _ in range(k)])
    return out


@add("breakhis_like", SEV, "adenosis fibroma lobular", "png", "Patient's slide, magnification and sequence number.", "SOB_B_A-14-22549AB-40-001: magnification 40", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for _ in range(6):
        s = f"{rng.randint(2500, 29999)}{rng.choice(['', 'AB', 'CD', 'EF', 'G'])}"
        for m in (40, 100, 200, 400):
            out.append([f"SOB_B_{cls[0].upper()}-14-{s}-{m}-{q:03d}" for q in range(1, rng.randint(7, 16))])
    return out


@add("fundus_left_right", SEV, "mild severe none", "jpeg", "Patient and the eye's side: two eyes of a patient are partners.", "4317_left")
def _(rng, cls, n, ctx):
    pool = ctx.setdefault("p", rng.sample(range(10, 44000), 700))
    out = []
    while len(out) < n:
        p = pool.pop()
        out += [f"{p}_{s}" for s in (("left", "right") if rng.random() < .6 else (rng.choice(["left", "right"]),))]
    return out


@add("sentinel_scene_band", SEV, "vineyard orchard pasture", "tif", "Satellite, day, tile and band: files differing only in band show one place.", "S2A_20180512_T32TQM_B04", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 4, 4):
        d = dt.date(2018, 3, 1) + dt.timedelta(5 * rng.randint(0, 45))
        out.append([f"S2{(s := 'AB'[d.toordinal() % 2])}_{d:%Y%m%d}_T32T{t}_{b}" for t in [rng.choice(["QM", "PM", "NS", "QN", "MT"])] for b in ("B02", "B03", "B04", "B08")])
    return out


@add("slippy_map_tiles", SEV, "harbour suburb woodland", "png", "Zoom, column and row of the web map's tile.", "17_70123_43012")
def _(rng, cls, n, ctx):
    out = []
    while len(out) < n:
        z = rng.choice([16, 17, 17, 18])
        x, y = int(70123 * 2 ** (z - 17)) + rng.randint(-200, 200), int(43012 * 2 ** (z - 17)) + rng.randint(-200, 200)
        out += [f"{z}_{x + i}_{y + j}" for i in range(3) for j in range(2)]
    return out


@add("camera_trap_sequence", SEV, "lynx badger roe empty", "JPG", "Site, date, time and place in the burst of three.", "SiteA03_20190612_034512_2", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for _ in range(n // 3 + 2):
        t = dt.datetime(2019, 5, 1) + dt.timedelta(seconds=rng.randint(0, 120 * 86400))
        s = f"Site{rng.choice('ABC')}{rng.randint(1, 8):02d}"
        out.append([f"{s}_{(t + dt.timedelta(seconds=j)):%Y%m%d_%H%M%S}_{j + 1}" for j in range(3)])
    return out


@add("room_before_after", SEV, "attic cellar parlour", "jpg", "The job's number and whether the photo was made before or after the works.", "job55_before")
def _(rng, cls, n, ctx):
    js = rng.sample(range(1, 400), n // 2 + 1)
    return [f"job{j}_{w}" for j in js for w in ("before", "after")]


@add("manual_language_page", SEV, "diagram prose", "png", "Language, version and page of the manual.", "manual_de_v2_p014")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"manual_{rng.choice('de en fr it es ja'.split())}_v{rng.randint(1, 3)}_p{rng.randint(1, 64):03d}")


@add("invoice_scan", SEV, "stamped unstamped", "tif", "Date, sender and page: pages of one invoice belong together.", "2019-03-14_ACME_inv20718_p2", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 1, 4):
        d = dt.date(2019, 1, 2) + dt.timedelta(rng.randint(0, 360))
        f = f"{d}_{rng.choice(['ACME', 'Globex', 'Initech', 'Umbrella', 'Hooli', 'Stark'])}_inv{20000 + d.timetuple().tm_yday * 3 + rng.randint(0, 2)}"
        out.append([f"{f}_p{j + 1}" for j in range(k)])
    return out


@add("game_state_in_name", SEV, "dungeon overworld", "png", "Level, health and score at the time of the screenshot.", "lvl3_hp075_score12450")
def _(rng, cls, n, ctx):
    def one():
        l = rng.randint(1, 12)
        return f"lvl{l}_hp{rng.randint(1, 20) * 5:03d}_score{max(0, int(rng.gauss(l * 4000, 1500))) // 50 * 50}"
    return uniq(rng, n, one)


@add("steam_screenshots", SEV, "lobby combat", "jpg", "The game's Steam number, date and time, count in the second.", "730_20200412183412_1")
def _(rng, cls, n, ctx):
    apps = [730, 440, 570, 292030, 578080, 271590]
    def one():
        t = dt.datetime(2020, 4, 1, 18) + dt.timedelta(days=rng.randint(0, 60), seconds=rng.randint(0, 5 * 3600))
        return f"{rng.choice(apps)}_{t:%Y%m%d%H%M%S}_{rng.choice([1, 1, 1, 1, 2])}"
    return uniq(rng, n, one)


@add("match_quarter_clock", SEV, "dunk layup jumper", "jpg", "Teams, day, quarter and game clock.", "LALvBOS_20191225_Q3_0712", mode="group")
def _(rng, cls, n, ctx):
    tm = "LAL BOS MIL DEN GSW TOR PHI UTA DAL MIA".split()
    out = []
    for k in sizes(rng, n, 3, 10):
        a, b = rng.sample(tm, 2)
        d = dt.date(2019, 10, 22) + dt.timedelta(rng.randint(0, 130))
        out.append([f"{a}v{b}_{d:%Y%m%d}_Q{rng.randint(1, 4)}_{rng.randint(0, 11):02d}{rng.randint(0, 59):02d}" for _ in range(k)])
    return out


@add("pcb_lot_cam", SEV, "bridged open misplaced", "bmp", "Board, camera and production lot.", "brd0712_cam2_lot1145", mode="group")
def _(rng, cls, n, ctx):
    lots = [rng.randint(1100, 1190) for _ in range(8)]
    return [[f"brd{b:04d}_cam{c}_lot{l}" for c in range(1, rng.randint(2, 5))] for b in rng.sample(range(1, 2000), n) for l in [rng.choice(lots)]]


@add("xeno_canto_like", SEV, "blackbird robin wren", "mp3", "Recording, kind of call, quality letter and country.", "XC123456_song_A_Poland")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"XC{rng.randint(25000, 560000)}_{rng.choice(['song', 'song', 'call', 'alarm'])}_{rng.choices('ABCDE', [6, 6, 3, 1, 1])[0]}_{rng.choice('Poland Spain Sweden Germany France Turkey'.split())}")


@add("plot_row_ndvi", SEV, "barley rapeseed beet", "png", "Plot, row, day and the measured vegetation index.", "plot12_r03_0607_ndvi0.62")
def _(rng, cls, n, ctx):
    def one():
        w = rng.randint(0, 7)
        d = dt.date(2021, 5, 3) + dt.timedelta(7 * w)
        return f"plot{rng.randint(1, 24):02d}_r{rng.randint(1, 8):02d}_{d:%m%d}_ndvi{min(.92, max(.1, rng.gauss(.3 + .07 * w, .06))):.2f}"
    return uniq(rng, n, one)


@add("head_pose", SEV, "glasses bare", "jpg", "Person, pitch and yaw in degrees.", "p07_pitch-30_yaw+15")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"p{rng.randint(1, 15):02d}_pitch{rng.choice([-60, -30, -15, 0, 15, 30, 60]):+d}_yaw{rng.randrange(-90, 91, 15):+d}")


@add("culture_temp_ph", SEV, "yeast bacillus", "tif", "Temperature and acidity of the culture.", "dish12_37.5C_pH7.4")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"dish{rng.randint(1, 40):02d}_{rng.choice([25.0, 30.0, 32.5, 35.0, 37.0, 37.5, 42.0])}C_pH{rng.choice([5.5, 6.0, 6.5, 7.0, 7.4, 8.0])}")


@add("gtsrb_tracks", SEV, "yield priority roadworks", "ppm", "Track of one sign and the place in the track (30 each, nearing).", "00012_00029", mode="group")
def _(rng, cls, n, ctx):
    return [[f"{t:05d}_{k:05d}" for k in range(30)] for t in range(n // 30 + 1)]


@add("market_person_camera", SEV, "backpack handbag", "jpg", "Person, camera with sequence, frame and box.", "0002_c1s1_000451_03", mode="group")
def _(rng, cls, n, ctx):
    pool = ctx.setdefault("p", rng.sample(range(2, 1501), 200))
    out = []
    for k in sizes(rng, n, 4, 14):
        p, f = pool.pop(), rng.randint(100, 90000)
        out.append([f"{p:04d}_c{rng.randint(1, 6)}s{1 + f // 30000}_{f + rng.randint(0, 200) * 25:06d}_{rng.randint(0, 3):02d}" for _ in range(k)])
    return out


@add("loop_bpm_key", SEV, "bass drums pads", "wav", "Tempo and key of the loop.", "loop042_120bpm_Am")
def _(rng, cls, n, ctx):
    return [f"loop{k:03d}_{rng.choice([70, 85, 90, 95, 100, 110, 120, 120, 124, 125, 128, 128, 140, 174])}bpm_{rng.choice(['C', 'Am', 'G', 'Em', 'Fm', 'Dm', 'Gm', 'F', 'Bbm'])}" for k in rng.sample(range(1, 600), n)]


@add("iam_form_line_word", SEV, "noun verb", "png", "Form (with its writer's letter), line and word.", "a01-000u-03-05", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 5, 15):
        f = f"{rng.choice('abcdefghjk')}{rng.randint(1, 7):02d}-{rng.randint(0, 130):03d}{rng.choice(['', 'u', 'x'])}"
        out.append([f"{f}-{rng.randint(0, 9):02d}-{rng.randint(0, 9):02d}" for _ in range(k)])
    return out


@add("glyph_font_weight", SEV, "serif grotesque script", "png", "Code point, typeface and weight: the glyph that is drawn.", "U+0041_Garamond_Bold")
def _(rng, cls, n, ctx):
    f = {"serif": "Garamond Bodoni Caslon Times", "grotesque": "Helvetica Univers Futura Inter", "script": "Zapfino Pacifico Lobster Kaushan"}[cls].split()
    return uniq(rng, n, lambda: f"U+{rng.choice(list(range(0x41, 0x5b)) + list(range(0x61, 0x7b))):04X}_{rng.choice(f)}_{rng.choice(['Light', 'Regular', 'Bold'])}")


@add("wine_vintage_points", SEV, "rioja barolo riesling", "jpg", "Estate, vintage and the critics' points.", "velasco_2005_96pts")
def _(rng, cls, n, ctx):
    es = "velasco moreau conti brandt alder fontana keller ibarra rossi lindner".split()
    return uniq(rng, n, lambda: f"{rng.choice(es)}_{rng.randint(1990, 2018)}_{min(100, max(80, int(rng.gauss(90, 3))))}pts")


@add("whatsapp_dates", SEV, "memes receipts pets", "jpg", "Day of sending and that day's running number: albums sent together follow each other.", "IMG-20190823-WA0012", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 1, 9):
        d = dt.date(2018, 9, 1) + dt.timedelta(rng.randint(0, 500))
        s = rng.randint(0, 25)
        out.append([f"IMG-{d:%Y%m%d}-WA{s + j:04d}" for j in range(k)])
    return out


@add("phone_bursts_cover", SEV, "skateboard surfing", "jpg", "Time of the burst, number in it and the mark COVER for the best shot.", "IMG_20190823_142311_BURST003", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 4, 12):
        t = dt.datetime(2019, 6, 1, 10) + dt.timedelta(days=rng.randint(0, 90), seconds=rng.randint(0, 28000))
        c = rng.randrange(k)
        out.append([f"IMG_{t:%Y%m%d_%H%M%S}_BURST{j + 1:03d}{'_COVER' if j == c else ''}" for j in range(k)])
    return out


@add("mac_screenshots", SEV, "error dashboard chat", "png", "Day and time of the screenshot in words.", "Screenshot 2020-03-12 at 14.05.33")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"Screenshot {(dt.datetime(2020, 1, 6) + dt.timedelta(days=rng.randint(0, 200), seconds=rng.randint(30000, 70000))):%Y-%m-%d at %H.%M.%S}")


@add("brick_part_colour_angle", SEV, "plate slope hinge", "png", "Part number, colour and the angle of rendering.", "3001_red_045deg")
def _(rng, cls, n, ctx):
    parts = rng.sample(range(2400, 6700), 6)
    return uniq(rng, n, lambda: f"{rng.choice(parts)}_{rng.choice('red blue yellow white black tan'.split())}_{rng.randrange(0, 360, 15):03d}deg")


@add("fruits360_rotation", SEV, "quince guava kiwi", "jpg", "Turn of the fruit on its motor (number) and the axis (prefix r, r2 or none).", "r_123_100: axis r, step 123")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"{rng.choice(['', 'r_', 'r2_'])}{rng.randint(0, 327)}_100")


@add("plantvillage_like", SEV, "blight rust mildew", "JPG", "After the uuid stand the station that made the photo, its session's number and the augmentation: sessions have their own background.",
     "0a5e9323-dbad-432d-ac58-d291718345d9___FREC_Scab 3417", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 4, 20):
        st, s = rng.choice(["RS", "FREC", "GCREC", "JR", "UF.GRC"]), rng.randint(500, 8900)
        g = []
        for j in range(k):
            u = uuid.UUID(int=rng.getrandbits(128), version=4)
            g.append(f"{u}___{st}_{cls.title()} {s + j}{rng.choices(['', '_flipTB', '_90deg'], [8, 1, 1])[0]}")
        out.append(g)
    return out


@add("reddit_score_comments", SEV, "cats corgis parrots", "jpg", "Upvotes and comments beside the post: popularity.", "t3_e8x2kq_s1523_c87")
def _(rng, cls, n, ctx):
    def one():
        s = int(rng.lognormvariate(5, 1.8))
        return f"t3_{rng.choice('abcdef')}{chars(rng, 5, LOW36)}_s{s}_c{int(s * rng.uniform(.01, .12))}"
    return uniq(rng, n, one)


@add("radar_station_time", SEV, "hail tornado drizzle", "png", "Radar station, day and time of the scan.", "KTLX20130520_201643_V06", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 3, 10):
        t = dt.datetime(2013, 4, 1) + dt.timedelta(seconds=rng.randint(0, 90 * 86400))
        st = rng.choice(["KTLX", "KFDR", "KVNX", "KINX", "KDDC"])
        g = []
        for _ in range(k):
            g.append(f"{st}{t:%Y%m%d_%H%M%S}_V06")
            t += dt.timedelta(seconds=rng.randint(250, 275))
        out.append(g)
    return out


@add("fetal_week_hc", SEV, "normal atypical", "png", "Patient, week of pregnancy and head circumference.", "pt0123_wk22_HC195mm")
def _(rng, cls, n, ctx):
    def one():
        w = rng.choice([12, 13, 20, 20, 21, 21, 22, 22, 28, 30, 32, 36])
        return f"pt{rng.randint(1, 700):04d}_wk{w}_HC{int(rng.gauss(w * 9 - 5, 7))}mm"
    return uniq(rng, n, one)


@add("streetview_lat_lon", SEV, "cobbled paved gravel", "jpg", "Latitude, longitude and heading of the camera.", "48.8566_2.3522_h090", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for _ in range(n // 2 + 2):
        a, b = rng.gauss(48.86, .03), rng.gauss(2.34, .05)
        out.append([f"{a:.4f}_{b:.4f}_h{h:03d}" for h in rng.sample([0, 90, 180, 270], rng.randint(1, 4))])
    return out


@add("cow_tag_lactation", SEV, "lame upright", "mp4", "Ear tag, lactation and day in milk.", "cow0421_L3_dim112", mode="group")
def _(rng, cls, n, ctx):
    return [[f"cow{c:04d}_L{l}_dim{d}" for d in sorted(rng.sample(range(5, 305), rng.randint(2, 8)))] for c in rng.sample(range(1, 900), 45) for l in [rng.choice([1, 1, 2, 2, 3, 4, 5])]]


@add("drone_zoom_thermal", SEV, "hotspot panel", "jpg", "DJI's number with the lens: W wide, Z zoom, T thermal of one release.", "DJI_0412_T", mode="group")
def _(rng, cls, n, ctx):
    s = rng.randint(1, 500)
    return [[f"DJI_{s + k:04d}_{l}" for l in "WZT"] for k in range(n // 3 + 1)]


@add("fingerprint_sex_hand", SEV, "whorl arch loop", "BMP", "Subject, sex, hand and finger.", "100__M_Left_index_finger", mode="group")
def _(rng, cls, n, ctx):
    return [[f"{p}__{s}_{h}_{f}_finger" for h in ("Left", "Right") for f in ("thumb", "index", "middle", "ring", "little") if rng.random() < .35]
            for p in rng.sample(range(1, 601), 60) for s in [rng.choice("MMMF")]]


@add("gait_condition_view", SEV, "women men", "png", "Subject, condition (normal, bag, coat), take and camera's angle.", "001-nm-01-090")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"{rng.randrange(1 if cls == 'men' else 2, 124, 2):03d}-{rng.choice(['nm', 'nm', 'nm', 'bg', 'cl'])}-{rng.randint(1, 6):02d}-{rng.randrange(0, 181, 18):03d}")


@add("whale_fluke_identity", SEV, "calf adult", "jpg", "Identity of the whale (w_ and seven hex digits), then number of the sighting.", "w_1287fbc_02", mode="group")
def _(rng, cls, n, ctx):
    return [[f"w_{w}_{j:02d}" for j in range(1, k + 1)] for k in sizes(rng, n, 1, 9) for w in [hexs(rng, 7)]]


@add("card_set_number_grade", SEV, "creature spell land", "jpg", "Set, collector's number and grade of preservation.", "zen-123-nm")
def _(rng, cls, n, ctx):
    return uniq(rng, n, lambda: f"{rng.choice('zen lea isd rav mir tsp'.split())}-{rng.randint(1, 280)}-{rng.choices(['m', 'nm', 'ex', 'gd', 'pl'], [1, 6, 3, 2, 1])[0]}")


@add("star_quarter_magnitude", SEV, "pulsating eclipsing", "png", "Star, quarter of the mission and magnitude.", "KIC8462852_Q03_m11.7", mode="group")
def _(rng, cls, n, ctx):
    return [[f"KIC{k:08d}_Q{q:02d}_m{m:.1f}" for q in sorted(rng.sample(range(1, 18), rng.randint(2, 8)))] for k in rng.sample(range(1000000, 12900000), 50) for m in [rng.gauss(13.2, 1.3)]]


@add("parking_lot_slot", SEV, "vacant taken", "jpg", "Day, time and number of the parking slot.", "2012-09-12_06_05_16#014", mode="group")
def _(rng, cls, n, ctx):
    out = []
    for k in sizes(rng, n, 5, 15):
        t = dt.datetime(2012, 9, 11, 6, 5, 16) + dt.timedelta(minutes=5 * rng.randint(0, 140), days=rng.randint(0, 30))
        out.append([f"{t:%Y-%m-%d_%H_%M_%S}#{s:03d}" for s in sorted(rng.sample(range(1, 41), k))])
    return out


@add("exposure_bracket", SEV, "interior nightscape", "jpg", "Scene and exposure in stops: the bracket of one scene.", "scene031_ev-2", mode="group")
def _(rng, cls, n, ctx):
    return [[f"scene{s:03d}_ev{e:+d}" for e in (-2, -1, 0, 1, 2)] for s in rng.sample(range(1, 300), n // 5 + 2)]


@add("logo_resolution_set", SEV, "airline bank brewery", "png", "One logo in several sizes and file versions.", "logo118_64x64, logo118_256x256", mode="group")
def _(rng, cls, n, ctx):
    return [[f"logo{l}_{s}x{s}" for s in rng.sample([32, 64, 128, 256, 512], rng.randint(1, 4))] for l in rng.sample(range(1, 900), n)]


@add("plant_day_daytime", SEV, "sprout flower fruitlet", "jpg", "Plant's letter, day of growth and time of day.", "plantC_day_17_evening")
def _(rng, cls, n, ctx):
    return [f"plant{p}_day_{d:02d}_{w}" for p in "ABCDEF" for d in range(1, 31) for w in ("morning", "evening")][:: 2 if cls == "flower" else 1]


# --------------------------------------------------------------------------------------------------------------
# OPAQUE
# --------------------------------------------------------------------------------------------------------------


def glob_unique(ctx, f):
    s = ctx.setdefault("seen", set())
    while True:
        v = f()
        if v not in s:
            s.add(v)
            return v


@add("plain_uuid4", OPQ, "tulip daisy crocus", "jpg")
def _(rng, cls, n, ctx):
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(n)]


@add("plain_md5", OPQ, "pigeon gull heron stork", "jpg")
def _(rng, cls, n, ctx):
    return [hashlib.md5(rng.randbytes(20)).hexdigest() for _ in range(n)]


@add("sha1_ten_with_class", OPQ, "mug spoon plate", "png")
def _(rng, cls, n, ctx):
    return [f"{cls}_{hashlib.sha1(rng.randbytes(20)).hexdigest()[:10]}" for _ in range(n)]


@add("sha256_upper", OPQ, "invoice letter memo", "pdf")
def _(rng, cls, n, ctx):
    return [hashlib.sha256(rng.randbytes(20)).hexdigest().upper() for _ in range(n)]


@add("flickr_id_secret", OPQ, "sunflower dandelion rose", "jpg")
def _(rng, cls, n, ctx):
    return [f"{glob_unique(ctx, lambda: int(10 ** rng.uniform(8, 10.69)))}_{hexs(rng, 10)}_n" for _ in range(n)]


@add("imagenet_wnid", OPQ, "retriever tabby goldfish", "JPEG")
def _(rng, cls, n, ctx):
    w = {"retriever": "n02099601", "tabby": "n02123045", "goldfish": "n01443537"}[cls]
    return [f"{w}_{k}" for k in rng.sample(range(1, 22000), n)]


@whole("export_counter_shuffled", OPQ)
def _(rng):
    ids = list(range(1, 561))
    rng.shuffle(ids)
    out = []
    for c, a, b in (("cardboard", 120, 30), ("glass", 95, 25), ("metal", 110, 30), ("paper", 118, 32)):
        for s, k in (("train", a), ("test", b)):
            out += [f"{s}/{c}/{ids.pop():05d}.jpg" for _ in range(k)]
    return out


@whole("item_counter_prefix_shuffled", OPQ)
def _(rng):
    ids = list(range(0, 410))
    rng.shuffle(ids)
    out = []
    for c, a, b in (("sarcasm", 140, 40), ("sincere", 90, 30), ("neutral", 80, 30)):
        for s, k in (("train", a), ("test", b)):
            out += [f"{s}/{c}/item{ids.pop()}.wav" for _ in range(k)]
    return out


@add("sparse_kaggle_id", OPQ, "forest desert tundra wetland", "jpg")
def _(rng, cls, n, ctx):
    return [str(glob_unique(ctx, lambda: rng.randint(1, 25000))) for _ in range(n)]


@add("camera_rolls_many_users", OPQ, "umbrella bicycle bench hydrant", "JPG")
def _(rng, cls, n, ctx):
    return [f"IMG_{k:04d}" for k in rng.sample(range(1, 10000), n)]


@add("nikon_rolls_many_users", OPQ, "moth beetle dragonfly", "JPG")
def _(rng, cls, n, ctx):
    return [f"DSC_{int(k):04d}" for k in uniq(rng, n, lambda: min(9999, int(rng.triangular(1, 9999, 1200))))]


@add("imgur_seven", OPQ, "meme screenshot artwork", "png")
def _(rng, cls, n, ctx):
    return [chars(rng, 7, B62) for _ in range(n)]


@add("youtube_one_clip_each", OPQ, "laughter applause cough", "m4a")
def _(rng, cls, n, ctx):
    return [chars(rng, 10, B64U) + rng.choice("AEIMQUYcgkosw048") for _ in range(n)]


@add("openimages_sixteen_hex", OPQ, "piano guitar", "jpg")
def _(rng, cls, n, ctx):
    return [hexs(rng, 16) for _ in range(n)]


@add("product_primary_key", OPQ, "lamp sofa rug mirror", "jpg")
def _(rng, cls, n, ctx):
    return [f"product_{glob_unique(ctx, lambda: rng.randint(1, 1800000))}_main" for _ in range(n)]


@add("isic_like_registry", OPQ, "naevus keratosis melanoma", "jpg")
def _(rng, cls, n, ctx):
    return [f"ISIC_{glob_unique(ctx, lambda: rng.randint(24306, 73254)):07d}" for _ in range(n)]


@add("coco_twelve_digits", OPQ, "zebra giraffe elephant", "jpg")
def _(rng, cls, n, ctx):
    return [f"{glob_unique(ctx, lambda: rng.randint(9, 581929)):012d}" for _ in range(n)]


@add("getty_constant_suffix", OPQ, "handshake protest wedding", "jpg")
def _(rng, cls, n, ctx):
    return [f"gettyimages-{glob_unique(ctx, lambda: rng.choice([rng.randint(450000000, 1350000000), rng.randint(80000000, 200000000)]))}-612x612" for _ in range(n)]


@add("food_site_numbers", OPQ, "waffles sushi tacos risotto gnocchi", "jpg")
def _(rng, cls, n, ctx):
    return [str(glob_unique(ctx, lambda: rng.randint(1, 3930000))) for _ in range(n)]


@add("google_thumbnail_keys", OPQ, "volcano glacier canyon", "jpg")
def _(rng, cls, n, ctx):
    return ["ANd9GcQ" + base64.urlsafe_b64encode(rng.randbytes(24)).decode() for _ in range(n)]


@add("crc_eight_hex", OPQ, "violin banjo", "wav")
def _(rng, cls, n, ctx):
    return [glob_unique(ctx, lambda: hexs(rng, 8)) for _ in range(n)]


@add("python_tempfiles", OPQ, "spam ham", "eml")
def _(rng, cls, n, ctx):
    return ["tmp" + chars(rng, 8, "abcdefghijklmnopqrstuvwxyz0123456789_") for _ in range(n)]


@add("signed_url_hash", OPQ, "jeans shirts hats", "jpg")
def _(rng, cls, n, ctx):
    return [str(rng.randint(-2 ** 63, 2 ** 63 - 1)) for _ in range(n)]


@add("class_and_stock_id", OPQ, "apple banana cherry", "jpg")
def _(rng, cls, n, ctx):
    return [f"stock-photo-{cls}-{glob_unique(ctx, lambda: rng.randint(20000000, 1900000000))}" for _ in range(n)]


@add("braceless_uuid_dataset_prefix", OPQ, "pothole crack patch", "jpg")
def _(rng, cls, n, ctx):
    return [f"roadset_{uuid.UUID(int=rng.getrandbits(128), version=4).hex}" for _ in range(n)]
