"""What a clip of the miniature benchmark can show, sound like and say, and the words that captions have for it."""

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
# Of each ground, the plain colour and that of the second stripe.
GROUNDS = {
    "black": ((8, 8, 8), (62, 62, 62)),
    "brown": ((84, 52, 30), (128, 92, 64)),
    "grey": ((112, 112, 112), (160, 160, 160)),
    "white": ((244, 244, 244), (196, 196, 196)),
}
# Fundamentals in Hz; a glide of half an octave either way leaves them apart.
PITCHES = {"deep": 150, "low": 350, "high": 800, "shrill": 1800}

# Modality, attribute, value and the ways a caption may put it. The keys of the values are what a row records.
VOCABULARY = {
    "video": {
        "shape": {name: (name,) for name in ("circle", "square", "triangle", "star", "cross", "ring")},
        "colour": {name: (name,) for name in COLOURS},
        "ground": {name: (name,) for name in GROUNDS},
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
        "pitch": {name: (name,) for name in PITCHES},
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
    },
    "subtitle": {
        "speaker": {
            name: (name,)
            for name in (
                "Anna Boris Clara David Emma Felix Greta Hugo Ines Jonas Karin Leon "
                "Maria Nils Olga Pablo Rosa Simon Tanja Umar Vera Walter Yusuf Zoe"
            ).split()
        },
        "topic": {
            name: (name,)
            for name in (
                "apples bridges castles dragons elephants football gardens history islands jazz knitting lemons "
                "mountains novels oceans planets robots sailing tigers uniforms volcanoes weather yoga zebras"
            ).split()
        },
        "weekday": {name: (name,) for name in "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()},
    },
}

SUBTITLES = (
    "Hello, I am {speaker}, and this {weekday} we talk about {topic}.",
    "It is {weekday}. My name is {speaker} and I love {topic}.",
    "{speaker} here! Let me tell you everything about {topic} this {weekday}.",
    "Welcome to the {weekday} show on {topic}, with your host {speaker}.",
    "Today is {weekday}, so {topic} it is, says {speaker}.",
    "Good evening, this is {speaker} with news of {topic} for {weekday}.",
)

PAIRS = ("{0}, while there is {1}", "{0}, together with {1}", "{0} and {1}", "there is {0}, and also {1}")
ALONE = {
    "video": ("{0}", "the picture shows {0}", "one sees {0}"),
    "audio": ("{0}", "the sound of {0}", "one hears {0}"),
    "subtitle": ("{0}", "a clip of {0}", "one listens to {0}"),
}

__all__ = ["ALONE", "COLOURS", "GROUNDS", "PAIRS", "PITCHES", "SUBTITLES", "VOCABULARY"]
