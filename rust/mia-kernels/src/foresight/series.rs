//! Words that everyone can go on from: numbers, days, months, alphabets, in several languages.

/// A language's words of 0 to 19, then its tens from 20 on, 100 and 1,000; words with hyphens are the
/// sum of their parts.
pub(super) const NUMBERS: [[&str; 2]; 9] = [
    // English
    [
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen \
         fifteen sixteen seventeen eighteen nineteen",
        "twenty thirty forty fifty sixty seventy eighty ninety hundred thousand",
    ],
    // German
    [
        "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn \
         fünfzehn sechzehn siebzehn achtzehn neunzehn",
        "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig hundert tausend",
    ],
    // French
    [
        "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze \
         seize dix-sept dix-huit dix-neuf",
        "vingt trente quarante cinquante soixante septante octante nonante cent mille",
    ],
    // Spanish
    [
        "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce \
         quince dieciséis diecisiete dieciocho diecinueve",
        "veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa cien mil",
    ],
    // Italian
    [
        "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici \
         quattordici quindici sedici diciassette diciotto diciannove",
        "venti trenta quaranta cinquanta sessanta settanta ottanta novanta cento mille",
    ],
    // Portuguese
    [
        "zero um dois três quatro cinco seis sete oito nove dez onze doze treze catorze quinze \
         dezesseis dezessete dezoito dezenove",
        "vinte trinta quarenta cinquenta sessenta setenta oitenta noventa cem mil",
    ],
    // Dutch
    [
        "nul een twee drie vier vijf zes zeven acht negen tien elf twaalf dertien veertien \
         vijftien zestien zeventien achttien negentien",
        "twintig dertig veertig vijftig zestig zeventig tachtig negentig honderd duizend",
    ],
    // Latin
    [
        "nihil unus duo tres quattuor quinque sex septem octo novem decem undecim duodecim \
         tredecim quattuordecim quindecim sedecim septendecim duodeviginti undeviginti",
        "viginti triginta quadraginta quinquaginta sexaginta septuaginta octoginta nonaginta \
         centum mille",
    ],
    // Chinese
    [
        "零 一 二 三 四 五 六 七 八 九 十 十一 十二 十三 十四 十五 十六 十七 十八 十九",
        "二十 三十 四十 五十 六十 七十 八十 九十 百 千",
    ],
];

/// Series that begin anew after their last word.
pub(super) const CYCLES: [&str; 16] = [
    "monday tuesday wednesday thursday friday saturday sunday",
    "mon tue wed thu fri sat sun",
    "montag dienstag mittwoch donnerstag freitag samstag sonntag",
    "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "lunes martes miércoles jueves viernes sábado domingo",
    "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    "january february march april may june july august september october november december",
    "jan feb mar apr may jun jul aug sep oct nov dec",
    "januar februar märz april mai juni juli august september oktober november dezember",
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre \
     dicembre",
    "spring summer autumn winter",
    "north east south west",
    "do re mi fa sol la si",
    "aries taurus gemini cancer leo virgo libra scorpio sagittarius capricorn aquarius pisces",
];

/// Series that end.
pub(super) const ORDERS: [&str; 6] = [
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth \
     thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth",
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho \
     sigma tau upsilon phi chi psi omega",
    "alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november \
     oscar papa quebec romeo sierra tango uniform victor whiskey x-ray yankee zulu",
    "mercury venus earth mars jupiter saturn uranus neptune",
    "hydrogen helium lithium beryllium boron carbon nitrogen oxygen fluorine neon sodium \
     magnesium aluminium silicon phosphorus sulfur chlorine argon potassium calcium scandium \
     titanium vanadium chromium manganese iron cobalt nickel copper zinc gallium germanium \
     arsenic selenium bromine krypton",
    "genesis exodus leviticus numbers deuteronomy joshua judges ruth samuel kings chronicles \
     ezra nehemiah esther job psalms proverbs ecclesiastes isaiah jeremiah lamentations ezekiel \
     daniel hosea joel amos obadiah jonah micah nahum habakkuk zephaniah haggai zechariah \
     malachi matthew mark luke john acts romans corinthians galatians ephesians philippians \
     colossians thessalonians timothy titus philemon hebrews james peter john jude revelation",
];
