"""The possible content of clips of the miniature benchmark, and the words for it in captions.

`VOCABULARY` is the content of each modality alone; `FACTORS` are values that several modalities can express together.
`EVIDENCE` is optional: texts with content that nothing else in a clip has.
"""

from collections.abc import Iterable
from itertools import product


def _names(words: Iterable[str]) -> dict[str, tuple[str]]:
    """Return values that a caption puts as they are."""
    return {word: (word,) for word in words}


COLOURS = {
    "red": (225, 25, 30),
    "orange": (255, 135, 0),
    "yellow": (250, 225, 20),
    "green": (20, 165, 45),
    "turquoise": (0, 210, 215),
    "blue": (25, 55, 240),
    "purple": (155, 35, 215),
    "pink": (255, 105, 190),
}
# For each ground, the plain colour and that of the second stripe.
GROUNDS = {
    "black": ((8, 8, 8), (62, 62, 62)),
    "brown": ((84, 52, 30), (128, 92, 64)),
    "grey": ((112, 112, 112), (160, 160, 160)),
    "white": ((244, 244, 244), (196, 196, 196)),
}
# Fundamentals in Hz, still distinct after a glide of half an octave either way.
PITCHES = {"deep": 150, "low": 350, "high": 800, "shrill": 1800}
# Share of the clip before the sound comes in.
ENTRIES = {"prompt": 0.0, "delayed": 0.25, "late": 0.5}
# Places as in captions and subtitles.
PLACES = {
    "desert": ("in the desert", "in a desert"),
    "factory": ("at the factory", "in a factory"),
    "railway": ("at the railway", "beside a railway"),
    "campfire": ("at the campfire", "around a campfire"),
    "parade": ("at the parade", "during a parade"),
    "forest": ("in the forest", "in a forest"),
}

# Modality, attribute, value and the ways a caption may put it. The keys of the values are what a row records.
VOCABULARY = {
    "video": {
        "shape": _names(("circle", "square", "triangle", "star", "cross", "ring")),
        "colour": _names(COLOURS),
        "size": {"small": ("small", "little"), "large": ("large", "big")},
        "ground": _names(GROUNDS),
        "pattern": {"plain": ("plain", "smooth"), "striped": ("striped", "banded")},
        "motion": {
            "still": ("staying still", "that does not move"),
            "slide": ("sliding from side to side", "moving left and right"),
            "bounce": ("bouncing up and down", "hopping up and down"),
            "grow": ("growing and shrinking", "that swells and shrinks"),
            "blink": ("blinking on and off", "that keeps vanishing"),
        },
    },
    "audio": {
        "pitch": _names(PITCHES),
        "timbre": {
            "flute": ("flute", "pure tone"),
            "buzz": ("buzzer", "buzzing tone"),
            "noise": ("hiss", "whoosh of noise"),
            "bell": ("bell", "ringing bell"),
            "pluck": ("plucked string", "guitar string"),
            "warble": ("siren", "warbling siren"),
        },
        "rhythm": {
            "steady": ("held steadily", "in one go"),
            "slow": ("in slow beats", "repeated slowly"),
            "quick": ("in quick beats", "repeated quickly"),
            "rising": ("rising", "going upwards"),
            "falling": ("falling", "going downwards"),
        },
        "backing": {
            "alone": ("with nothing behind it", "all alone"),
            "hum": ("over an electric hum", "with humming behind it"),
            "whistle": ("under a thin whistle", "with whistling behind it"),
            "crackle": ("amid crackling", "with crackling behind it"),
            "drum": ("over a drum", "with drumming behind it"),
            "birds": ("among birdsong", "with birds behind it"),
        },
        "entry": {
            "prompt": ("from the very start", "that starts right away"),
            "delayed": ("after a moment", "that starts a little late"),
            "late": ("only near the end", "that starts very late"),
        },
    },
    "subtitle": {
        "speaker": _names(
            "Anna Boris Clara David Emma Felix Greta Hugo Ines Jonas Karin Leon "
            "Maria Nils Olga Pablo Rosa Simon Tanja Umar Vera Walter Yusuf Zoe".split()
        ),
        "topic": _names(
            "apples bridges castles dragons elephants football gardens history islands jazz knitting lemons "
            "mountains novels oceans planets robots sailing tigers uniforms volcanoes weather yoga zebras".split()
        ),
        "weekday": _names("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
        "place": PLACES,
    },
}


# As `VOCABULARY`, of modalities that are texts. What stands on the screen is short: it is written into small pictures.
EVIDENCE = {
    "title": {
        "series": _names(
            "Beacon Cascade Diary Echo Frontier Garland Horizon Inkwell Journey Kaleidoscope Lantern Meridian "
            "Nocturne Odyssey Passage Quartet Riddle Silhouette Tapestry Undertow Vagabond Whisper Yonder "
            "Zenith".split()
        ),
        "city": _names(
            "Athens Berlin Cairo Dublin Geneva Havana Istanbul Jakarta Lisbon Madrid Nairobi Oslo Paris Rome Sydney "
            "Tokyo".split()
        ),
        "part": {str(number): (f"part {number}", f"episode {number}") for number in range(1, 13)},
    },
    "screen": {
        "sign": _names(
            "BANK BOOKS BREAD CAFE CLUB EXIT FRUIT GOLF HOTEL LIVE MUSIC NEWS OPEN PARK PIZZA RADIO RENT SALE SHOES "
            "STOP SWIM TAXI TOYS TRAIN".split()
        ),
        "letter": {letter: (f"the letter {letter}",) for letter in "ABCDEFGH"},
        "number": {str(number): (f"the number {number}",) for number in range(10, 82, 3)},
    },
}
# How a clip puts its own.
TEXTS = {
    "title": ("{series} in {city}, part {part}", "{city}: {series} (part {part})", "{series} {part}, from {city}"),
    "screen": ("{sign} {letter} {number}",),
}
# How captions begin that name it.
READS = {
    "title": ("a title that names", "a heading that names"),
    "screen": ("a screen that says", "writing that says"),
}

_COLOUR_PAIRS = tuple(zip(tuple(COLOURS)[::2], tuple(COLOURS)[1::2], strict=True))
_TEMPI = {
    "calm": ("still", "steady"),
    "leisurely": ("bounce", "slow"),
    "hurried": ("blink", "quick"),
    "swelling": ("grow", "rising"),
    "gliding": ("slide", "falling"),
}
_SCENES = {
    "desert": ("brown", "plain", "alone"),
    "factory": ("grey", "striped", "hum"),
    "railway": ("black", "striped", "whistle"),
    "campfire": ("black", "plain", "crackle"),
    "parade": ("white", "striped", "drum"),
    "forest": ("brown", "striped", "birds"),
}
# Factor, value, modality, attribute and the values of it that express the factor's value. Only a colour has two: which
# of them it is stays the picture's own. White and grey plain grounds belong to no scene.
FACTORS: dict[str, dict[str, dict[str, dict[str, tuple[str, ...]]]]] = {"subject": {}, "tempo": {}, "scene": {}}
for _topic, (_shape, _pair), (_pitch, _timbre) in zip(
    VOCABULARY["subtitle"]["topic"],
    product(VOCABULARY["video"]["shape"], _COLOUR_PAIRS),
    product(VOCABULARY["audio"]["pitch"], VOCABULARY["audio"]["timbre"]),  # no shape has one timbre alone
    strict=True,
):
    FACTORS["subject"][_topic] = {
        "video": {"shape": (_shape,), "colour": _pair},
        "audio": {"pitch": (_pitch,), "timbre": (_timbre,)},
        "subtitle": {"topic": (_topic,)},
    }
for _tempo, (_motion, _rhythm) in _TEMPI.items():
    FACTORS["tempo"][_tempo] = {"video": {"motion": (_motion,)}, "audio": {"rhythm": (_rhythm,)}}
for _scene, (_ground, _pattern, _backing) in _SCENES.items():
    FACTORS["scene"][_scene] = {
        "video": {"ground": (_ground,), "pattern": (_pattern,)},
        "audio": {"backing": (_backing,)},
        "subtitle": {"place": (_scene,)},
    }
# The words for a factor's value, which fit whatever modality expresses it.
CONCEPTS = {
    "subject": VOCABULARY["subtitle"]["topic"],
    "tempo": {
        "calm": ("calmly", "at rest"),
        "leisurely": ("without haste", "at a leisurely pace"),
        "hurried": ("hurriedly", "in a rush"),
        "swelling": ("swelling", "ever stronger"),
        "gliding": ("gliding", "drifting along"),
    },
    "scene": PLACES,
}

# The spoken words, with all attributes of a subtitle.
SUBTITLES = (
    "Hello, I am {speaker}, and this {weekday} we talk about {topic} {place}.",
    "It is {weekday} {place}. My name is {speaker} and I love {topic}.",
    "{speaker} here {place}! Let me tell you everything about {topic} this {weekday}.",
    "Welcome to the {weekday} show on {topic}, live {place}, with your host {speaker}.",
    "Today is {weekday}, so {topic} it is, says {speaker} {place}.",
    "Good evening, this is {speaker} {place} with news of {topic} for {weekday}.",
)

# How captions join the phrases of one, two or three modalities, and a concept with one of them.
ALONE = {
    "video": ("{0}", "the picture shows {0}", "one sees {0}"),
    "audio": ("{0}", "the sound of {0}", "one hears {0}"),
    "subtitle": ("{0}", "a clip of {0}", "one listens to {0}"),
    "title": ("{0}", "a clip with {0}", "above it stands {0}"),
    "screen": ("{0}", "a clip with {0}", "one reads {0}"),
}
PAIRS = ("{0}, while there is {1}", "{0}, together with {1}", "{0} and {1}", "there is {0}, and also {1}")
TRIPLES = ("{0}, {1} and {2}", "{0} with {1} and {2}", "there is {0}, then {1}, and also {2}")
SHARED = ("{0}, with {1}", "{0} and {1}", "a clip of {0} with {1}", "{1}, and {0}")

__all__ = [
    "ALONE",
    "COLOURS",
    "CONCEPTS",
    "ENTRIES",
    "EVIDENCE",
    "FACTORS",
    "GROUNDS",
    "PAIRS",
    "PITCHES",
    "PLACES",
    "READS",
    "SHARED",
    "SUBTITLES",
    "TEXTS",
    "TRIPLES",
    "VOCABULARY",
]
