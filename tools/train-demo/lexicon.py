"""Words of the synthetic corpus, and which of them are kept out of training.

Every list is plain data. `HELD_OUT_NAMES` never occur in training text; numbers and combinations of words are held
out by a hash (`held_out_code`, `held_out_pair`), so that a recall test asks for something that cannot be remembered
from training.
"""

import zlib

GIRLS = """Anna Mira Lena Clara Sofia Emma Ruby Nora Ida Alice Maya Tessa Julia Vera Wanda Iris Olive Hazel Lucy Rosa
Eva Marta Greta Elsa Petra Dora Flora Stella Zara Lily Daisy Molly Sally Kate Jane Ella Mina Nina Tina Rita Hanna Freya
Astrid Sigrid Ingrid Paula Laura Amina Leila Fatima Yasmin Priya Anika Meera Yuki Hana Sakura Mei Lin Chiara Bianca
Elena Irina Olga Tanya Katya Marisol Carmen Lucia Ines Beatrice Agnes Martha Edith Harriet Violet Rose Ivy Willow Pearl
Jasmine Amber Scarlett Naomi Ruth Esther Miriam Leah Rachel Sarah Abigail Grace Hope Faith Joy""".split()

BOYS = """Tom Ben Max Leo Finn Oscar Hugo Felix Otto Karl Peter Paul Simon Jonas Lukas Noah Adam Sam Jack Harry George
Henry Arthur Edgar Oliver Toby Theo Victor Walter Martin Daniel David Michael Robert Edward Frank Albert Anton Emil Erik
Lars Nils Sven Bjorn Ivan Boris Dmitri Pavel Marco Luca Carlo Diego Pablo Mateo Rafael Omar Karim Hassan Yusuf Ravi Arjun
Kiran Kenji Hiro Taro Wei Jun Ming Kofi Kwame Jamal Marcus Julian Adrian Vincent Stefan Gregor Rolf Bruno Nico Milo Jasper
Silas Caleb Joshua Elias Isaac Jacob Nathan Owen Rhys Liam Connor Declan Ewan Angus""".split()

# Names that only evaluation uses.
HELD_OUT_GIRLS = (
    "Matilda Johanna Selma Odette Rowena Camille Linnea Thora Saskia Ottilie Noor Imani Sunita Keiko".split()
)
HELD_OUT_BOYS = (
    "Leopold Magnus Tobias Fergus Anselm Ruben Casper Basil Idris Desmond Takumi Sanjay Mikkel Lorenzo".split()
)
HELD_OUT_NAMES = HELD_OUT_GIRLS + HELD_OUT_BOYS

# Syllables of invented names.
ONSETS = "b br c ch d dr f fl g gl h j k kr l m n p pr qu r s sh sk st t th tr v w y z".split()
CODAS = ["", "", "", *"n l r s t x m ck ll nd rn sk th".split()]

PETS = """Biscuit Pepper Shadow Button Whiskers Pebble Snowball Ginger Patch Rusty Bramble Clover Cookie Muffin Nugget
Smoky Tiger Misty Socks Domino Pickle Acorn Maple Comet Rocket Sunny Lucky Bella Coco Luna Ziggy Mango Olly Dusty Fudge
Toffee Sparky Bandit Scout Rolo Turnip Waffles Barley Thistle Marbles Jingle Nimbus Echo Pip""".split()

SURNAME_HEADS = """Black White Green Brown Stone Wood Hill Marsh Field North South East West Thorn Ash Oak Birch Long Short
Silver Gold Iron Copper Wind Winter Summer Moor Lake Bright Swift Hart Fox Raven Good New Old""".split()
SURNAME_TAILS = "man son wood field well ford ton ley by bridge water smith worth more land brook stone gate".split()

COLOURS = (
    "red blue green yellow white black brown purple orange pink grey silver golden turquoise violet crimson".split()
)

OBJECTS = """lamp key book clock kite drum bell basket hat scarf coat boot cup bowl plate spoon knife bottle jar box chest
ring necklace coin map letter flute violin guitar trumpet ball doll puppet candle lantern mirror comb brush bucket ladder
rope hammer saw shovel rake broom umbrella blanket pillow chair stool table boat cart wheel sled bicycle wagon compass
telescope notebook pencil pen crayon stamp ticket photograph painting vase teapot kettle pan feather shell pebble marble
crystal whistle button thimble needle ribbon purse bag suitcase glove belt watch medal crown mask sword shield flag magnet
calendar hourglass harp barrel bench parcel cushion anchor""".split()

CONTAINERS = """in the drawer|under the bed|on the shelf|behind the door|in the attic|in the cellar|under the stairs|on the
 windowsill|in the kitchen|in the garden|behind the curtain|under the pillow|in the wooden chest|on the table|in the
 barn|by the fireplace|in the hollow tree|under the bridge|behind the mill|in the boathouse|on the roof|in the old
 well|beside the gate|in the library|under the carpet|in the closet|on the piano|in the tower|behind the mirror|in the
 tin box|under the big stone|in the greenhouse|at the station|in the bakery|under the porch|in the cupboard|behind the
 clock|in the basket|on the balcony|in the stable""".replace("\n", "").split("|")

PLACES = """village town city valley forest harbour farm island castle market school mill mountain meadow lighthouse garden
library bakery station hill beach lake river bridge desert orchard cottage palace inn workshop""".split()

TOWNS = """Ashford Brambleton Coldwater Dunmore Eastvale Fernhill Graystone Highmoor Ivybridge Juniper Kestrel Larkspur
Millbrook Northgate Oakham Pinewood Quarry Redcliff Silverlake Thornbury Underhill Vinewood Westmarch Yarrow Zennor
Riverton Stonebridge Applewick Marlow Winterfold Summerset Hollow Foxley Ravenna Brightwater Saltmarsh Tidewell Elmstead
Mossley Greenfield""".split()

ANIMALS = """dog cat rabbit horse cow goat sheep pig duck goose hen fox wolf bear deer owl crow sparrow swan mouse squirrel
hedgehog badger otter frog turtle snail bee butterfly fish parrot donkey pony lamb kitten puppy dragon lion tiger elephant
monkey penguin""".split()

FOODS = """bread|cheese|soup|apple pie|honey|porridge|pancakes|plums|cherries|pears|strawberries|noodles|rice|beans|potatoes
|carrot cake|chocolate|butter|milk|walnuts|roast corn|pumpkin soup|blueberry jam|fried eggs|grapes|melon|cinnamon rolls
|ginger biscuits|tomatoes|mushrooms|fish stew|peaches|waffles|dumplings|lemon cake|raisins|onion soup|oranges|figs|toast
""".replace("\n", "").split("|")

JOBS = """baker miller farmer teacher doctor nurse carpenter tailor blacksmith fisherman sailor painter gardener cook
librarian clockmaker shoemaker musician potter weaver postman driver pilot engineer baker shepherd captain builder hunter
beekeeper juggler singer dancer poet judge guard merchant""".split()

KIN = "mother father sister brother grandmother grandfather aunt uncle cousin neighbour friend teacher".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SEASONS = "spring summer autumn winter".split()
WEATHER = "sunny rainy windy cloudy stormy snowy foggy warm cold".split()
# Of people and animals, and of things and places.
MOODS = """old young small big little tall quiet loud strange lovely clever brave kind gentle proud shy happy sad angry tired
hungry thirsty lonely famous careful lazy quick slow wise rich poor funny busy calm wild good polite curious cheerful
friendly strong""".split()
ADJECTIVES = """old small big little round heavy light bright dark quiet warm cold soft hard shiny dusty broken new strange
lovely simple clean dirty empty full sharp smooth rough wet dry deep high low long short narrow wide wooden golden iron
secret hidden lost precious beautiful ugly plain fine tiny huge ancient""".split()
ADVERBS = """slowly|quickly|quietly|softly|carefully|happily|sadly|gently|proudly|bravely|again|together|alone|at once|once
 more|very well|for a long time|every day|all night|in the end|as fast as possible|without a word|with a smile|with great
 care|for the first time|until the evening|before breakfast|after supper|in the rain|in the dark|as always|twice""".replace(
    "\n", ""
).split("|")

NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen \
eighteen nineteen twenty".split()
)

# (base, past) of verbs that take a thing as object.
TRANSITIVE = [
    tuple(p.split("/"))
    for p in """find/found|lose/lost|carry/carried|clean/cleaned|paint/painted|hide/hid|
open/opened|close/closed|mend/mended|break/broke|buy/bought|sell/sold|bring/brought|take/took|hold/held|see/saw|
watch/watched|draw/drew|build/built|make/made|wash/washed|throw/threw|catch/caught|drop/dropped|lift/lifted|move/moved|
push/pushed|pull/pulled|keep/kept|forget/forgot|remember/remembered|borrow/borrowed|choose/chose|cover/covered|
count/counted|fix/fixed|follow/followed|give away/gave away|leave behind/left behind|look for/looked for|
look at/looked at|pick up/picked up|put down/put down|wrap/wrapped|share/shared|show/showed|steal/stole|touch/touched|
use/used|want/wanted|need/needed|love/loved|like/liked|describe/described|examine/examined|polish/polished|
repair/repaired|send/sent|receive/received""".replace("\n", "").split("|")
]

# Past forms of verbs without an object.
INTRANSITIVE = (
    """laughed smiled waited slept sang danced walked|ran away|sat down|stood still|went home|came back|looked
 around|listened|nodded|shouted|whispered|cried|worked|played|rested|fell asleep|woke up|climbed up|turned around|stayed|swam|
jumped|hurried|wandered|dreamed|stopped|returned|began to sing|began to laugh|had to wait|said nothing|looked up|knew
 the way|told a joke|counted to ten|ate lunch|drank some tea|took a deep breath|made a plan|lit a fire|closed the
 door""".replace("laughed smiled waited slept sang danced walked", "laughed|smiled|waited|slept|sang|danced|walked")
    .replace("\n", "")
    .split("|")
)

NATURE = """sun moon wind rain snow river sea sky fog storm forest road bridge clock bell fire grass field garden house street
door window lamp tree leaf stone cloud star boat train""".split()

CAPITALS = dict(
    p.split(":")
    for p in """France:Paris|Spain:Madrid|Italy:Rome|Germany:Berlin|Austria:Vienna|Poland:Warsaw|
Portugal:Lisbon|Greece:Athens|Norway:Oslo|Sweden:Stockholm|Finland:Helsinki|Denmark:Copenhagen|Ireland:Dublin|England:London|
Hungary:Budapest|Egypt:Cairo|Japan:Tokyo|China:Beijing|India:New Delhi|Kenya:Nairobi|Peru:Lima|Cuba:Havana|Canada:Ottawa|
Russia:Moscow|Turkey:Ankara|Chile:Santiago|Iceland:Reykjavik|Belgium:Brussels|the Netherlands:Amsterdam|Australia:Canberra
""".replace("\n", "").split("|")
)

OPPOSITES = [
    p.split("/")
    for p in """hot/cold big/small tall/short fast/slow old/young light/dark day/night good/bad
happy/sad open/closed full/empty hard/soft wet/dry high/low rich/poor early/late near/far loud/quiet up/down left/right
strong/weak clean/dirty heavy/light thick/thin true/false""".split()
]
SOUNDS = [
    p.split("/")
    for p in """dog/barks cat/meows cow/moos sheep/bleats lion/roars duck/quacks horse/neighs owl/hoots
bee/buzzes frog/croaks wolf/howls snake/hisses hen/clucks pig/grunts""".split()
]
HABITATS = dict(
    p.split(":")
    for p in """fish:in the water|bear:in the forest|bee:in a hive|bird:in a nest|camel:in the
 desert|penguin:in the cold south|cow:on a farm|spider:in a web|fox:in a den|whale:in the sea|monkey:in the
 jungle|worm:in the ground""".replace("\n", "").split("|")
)
COLOUR_OF = dict(
    p.split(":")
    for p in """grass:green|the sky:blue|snow:white|coal:black|a banana:yellow|a ripe
 tomato:red|an orange:orange|chocolate:brown|milk:white|the sun:yellow|a frog:green|the sea:blue""".replace(
        "\n", ""
    ).split("|")
)


def held_out_code(digits):
    """True if evaluation owns this number: about a tenth of all codes of four digits or more."""
    return zlib.crc32(b"code" + digits.encode()) % 10 == 3


def held_out_pair(*words):
    """True if evaluation owns this combination of words: about a tenth of them."""
    return zlib.crc32("|".join(words).encode()) % 10 == 3


def pick(rng, words):
    """One of `words`, the first ones far more often, as in any language.

    Even odds would leave a model with ties that the smallest rounding decides the other way. What is asked for is drawn
    evenly, so that it cannot be guessed.
    """
    return words[int(len(words) * rng.random() ** 2)]
