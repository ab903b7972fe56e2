"""Limits of the rules for languages other than English.

The published limits of Gopher, C4 and FineWeb are for English: words of other languages are longer or shorter, their
stop words are others, and of some no line ends with a full stop. FineWeb-2 (Penedo et al. 2025, arXiv:2506.20920) took
limits for each language from the distribution of the same measures in its Wikipedia and ablated them by training; the
table holds those figures for the languages that matter most (configs/*.yml of github.com/huggingface/fineweb-2 at
d0defb24, Apache-2.0; the punctuation and the English word among the stop words left out). They were found with the
tokeniser of each language (jieba, Sudachi, PyThaiNLP, spaCy), ours are coarser: see docs/corpus/filters.md.

What FineWeb-2 does alike for all languages: FineWeb's rule of short lines is not applied, and a tenth instead of a
hundredth of a document's characters may be in repeated lines. C4's rules were not used there; mC4 (Xue et al. 2021)
replaced the one of terminal punctuation, since Thai, for one, has none.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

FINEWEB2_DUPLICATE_CHARACTERS = 0.1

UNSPACED_LANGUAGES = frozenset({"bo", "ja", "km", "ko", "lo", "my", "th", "yue", "zh"})
"""A stop word may stand within a run of letters: it is looked for anywhere. Korean's are endings."""

UNTERMINATED_LANGUAGES = frozenset({"km", "lo", "my", "th"})
"""Lines and sentences end in white space; FineWeb-2 has a punctuation limit of 0 for these."""


WHOLE_LINE_LANGUAGES = frozenset({"yue", "zh"})
"""Languages whose lines C4's rules of punctuation, words and sentences do not remove."""


@dataclass(frozen=True, slots=True)
class LanguageLimits:
    """Limits for one language; the blocks' options of the same names say what they are.

    Attributes:
        stop_words: the commonest words.
        min_words, min_stop_words: the options' values stand where None.
        top_n_grams, repeated_n_grams: length -> greatest share of characters.
    """

    min_mean_word_length: float
    max_mean_word_length: float
    min_alphabetic_words: float
    min_ended_lines: float
    max_new_lines: float
    max_duplicate_lines: float
    top_n_grams: dict[int, float]
    repeated_n_grams: dict[int, float]
    stop_words: tuple[str, ...]
    min_words: int | None = None
    min_stop_words: int | None = None


ENGLISH_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's (Rae et al. 2021, arXiv:2112.11446, appendix A)."""

# Per language: mean word length from, to; least share of alphabetic words and of lines that end a sentence; most line
# feeds per word; most duplicate lines; top 2-, 3-, 4-grams; repeated 5- to 10-grams. Then the stop words.
_TABLE = """
ar 2 9 .787 .143 .189 .304 .197 .172 .146 .165 .153 .142 .131 .12 .109
  في من على إلى عام أن مع أو هو عن التي كان بين ما كانت هي المتحدة بعد
bg 3 10 .756 .154 .142 .317 .173 .157 .139 .17 .158 .144 .131 .12 .108
  на и в е от за се с през да по
bn 3 24 .8 .125 .171 .203 .177 .158 .147 .118 .108 .099 .09 .082 .073
  এবং ও হয় করে একটি তিনি করা থেকে
bo 1 23 .824 0 .417 .261 .206 .205 .175 .174 .153 .14 .129 .115 .102
  དང ལ ཀྱི དུ ནས གི གྱི ནི
ca 2 11 .832 .154 .118 .294 .216 .189 .168 .159 .149 .137 .126 .116 .105
  de el la a i d l en que va els per un les una amb es
cs 3 11 .781 .06 .182 .311 .206 .183 .165 .168 .157 .145 .133 .121 .109
  v a se na je z s do
da 3 11 .798 .1 .182 .305 .367 .297 .232 .169 .158 .147 .134 .123 .112
  i og af en til er den at som på for med det blev var der fra de han et
de 0 15 .774 0 .152 .263 .169 .153 .137 .141 .134 .126 .117 .108 .098
  der und die in von im den des mit das er dem als wurde für
el 3 11 .809 .167 .116 .31 .194 .175 .156 .174 .163 .153 .142 .13 .119
  του και το της η την από ο με τον να που των στην για στο σε είναι τη τα οι
es 3 14 .825 .182 .138 .252 .156 .14 .125 .145 .136 .127 .117 .108 .099
  de la en el y a que del los se por un con una las su
et 3 13 .722 .143 .213 .363 .345 .268 .215 .172 .161 .15 .139 .125 .113
  ja on oli ta aastal eesti ka ning et mis kui aasta ei või see oma tema
fa 2 9 .812 .2 .15 .246 .189 .164 .143 .157 .147 .137 .127 .117 .107
  در و به از که است این را با یک
fi 3 14 .755 .114 .161 .293 .253 .202 .179 .153 .143 .133 .122 .112 .101
  ja on oli hän vuonna myös joka se ei sen ovat sekä mutta että tai vuoden kanssa hänen jälkeen
fr 2 11 .812 .1 .185 .264 .161 .149 .134 .15 .141 .131 .121 .111 .1
  de la le et à en l des du les est d un une il dans par au
he 2 9 .799 .2 .126 .34 .239 .202 .173 .16 .151 .14 .129 .118 .108
  של את על הוא עם בשנת גם היה היא לאחר לא ידי בין או כי
hi 2 21 .837 .091 .316 .206 .208 .198 .161 .135 .125 .116 .108 .099 .09
  के में है की और से का को एक हैं पर
hr 2 11 .751 .099 .198 .312 .215 .19 .165 .173 .162 .15 .138 .126 .113
  je u i se na su za od s a
hu 3 15 .766 .067 .231 .322 .226 .198 .172 .169 .159 .148 .136 .124 .112
  a az és is egy volt hogy nem meg de magyar első el között
id 3 12 .805 .111 .157 .241 .194 .166 .145 .166 .155 .144 .133 .122 .111
  dan yang di pada dari ini dengan adalah untuk dalam
it 3 21 .807 .025 .2 .246 .198 .156 .133 .144 .136 .127 .118 .109 .1
  di e il la in a del che è della un per nel l con da i una
ja 1 6 .759 .096 .13 .328 .239 .196 .172 .243 .225 .207 .19 .175 .159
  の に を は た て が と で 年 し 月 れ さ
ka 3 13 .754 .111 .222 .332 .225 .189 .167 .157 .146 .134 .122 .111 .1
  და წლის წელს იყო რომელიც რომ მისი შემდეგ რესურსები ინტერნეტში ამ იგი არ როგორც საქართველოს
km 2 13 .905 0 .361 .917 .594 .523 .438 .175 .16 .148 .135 .121 .109
  មាន បាន ដែល ជា និង នៅ របស់ ក្នុង ថា នេះ នៃ ហើយ ទៅ ដោយ
ko 1 6 .791 .062 .196 .374 .282 .228 .185 .201 .184 .168 .154 .14 .127
  의 다 이 는 에 을 한 년 하 은 를 했 고 에서 가 있 으로 인 월 로 되
lo 2 9 .85 0 .2 .327 .198 .175 .143 .187 .175 .163 .149 .135 .123
  ແລະ ໃນ ຂອງ ເປັນ ທີ່ ໄດ້ ມີ
lt 3 12 .688 .167 .19 .32 .247 .21 .174 .175 .163 .15 .137 .126 .114
  m ir buvo į nuo iš d su yra lietuvos a iki o kaip kad apie po km
lv 2 13 .727 .125 .169 .329 .526 .337 .242 .173 .16 .148 .135 .122 .109
  un ir no ar gadā gada par bija arī
ms 3 11 .808 .125 .214 .331 .264 .252 .225 .185 .176 .166 .156 .145 .134
  dan di yang pada dalam dengan untuk ini
my 2 21 .75 0 .07 .278 .161 .152 .133 .167 .155 .145 .134 .124 .113
  သည် များ ကို တွင် ဖြစ် သော ခဲ့ နှင့် ရှိ တို့ မှာ ဦး က မ မှ
nb 3 12 .783 .107 .167 .283 .204 .175 .15 .146 .139 .128 .119 .11 .099
  i og av som en er til på for ble med den det var han de å fra
nl 3 17 .828 .102 .154 .296 .213 .182 .158 .156 .146 .136 .126 .115 .104
  de van in het een en is op voor met door zijn werd hij uit
pl 3 12 .726 .087 .158 .32 .222 .198 .176 .172 .16 .148 .136 .123 .111
  w i na z do się roku od a jest przez po jako oraz o został był nie
pt 3 13 .814 .077 .186 .287 .371 .191 .163 .163 .153 .141 .13 .119 .108
  de a e o em do da que um no uma com para na é foi
ro 1 14 .779 .081 .207 .289 .161 .146 .131 .16 .149 .138 .127 .117 .106
  de în a și din la o cu este un pe fost care al
ru 3 11 .713 .231 .139 .322 .184 .164 .146 .168 .156 .145 .133 .121 .109
  в и на с года по году из был к не от что за для его как а он также до после
sk 2 11 .752 0 .214 .319 .316 .218 .171 .176 .165 .152 .14 .127 .115
  v a na sa je z roku s
sl 2 12 .781 .045 .273 .317 .262 .225 .189 .17 .158 .146 .135 .123 .111
  je v in na so se ki za leta z
sr 3 10 .8 .156 .239 .257 .176 .158 .141 .147 .137 .126 .116 .106 .096
  у је и на се од су године да за из са насеље
sv 3 12 .841 .2 .135 .292 .242 .195 .174 .156 .147 .136 .125 .116 .105
  i och är av en som den med på till att för
ta 4 37 .779 .125 .195 .276 .23 .212 .19 .149 .14 .132 .123 .114 .104
  மற்றும் ஒரு இந்த ஆம் இது என்ற இவர் உள்ள ஆகும் ஆண்டு அல்லது என்பது முதல் உள்ளது என்று இந்திய மக்கள் ஊராட்சி இல்
  இருந்து மேலும் பல
th 2 10 .9 0 .153 .349 .221 .197 .162 .185 .168 .152 .137 .124 .111
  ใน ที่ และ ของ เป็น มี การ ได้
tr 3 21 .773 .091 .222 .272 .214 .168 .147 .154 .144 .134 .124 .113 .103
  ve bir olarak bu ile için olan da de tarafından yılında sonra en daha ilk
uk 3 11 .694 .167 .175 .3 .189 .172 .153 .16 .148 .136 .124 .113 .102
  у в на і з та до року за що
ur 2 31 .839 .1 .222 .204 .139 .123 .107 .125 .115 .107 .098 .089 .081
  کے میں کی اور ہے سے کا نے اس پر کو ایک
vi 3 11 .803 .333 .103 .293 .223 .197 .171 .178 .163 .15 .136 .124 .111
  là và của một được trong năm các có loài này đã người
zh 1 5 .735 .106 .178 .287 .256 .201 .171 .198 .182 .167 .154 .14 .127
  的 年 在 月 是 和 日 了 於 為 有 被 人 中 为 他 與 後 也 而 由
"""


@cache
def language_limits() -> dict[str, LanguageLimits]:
    """ISO 639-1 code -> limits."""
    limits: dict[str, LanguageLimits] = {}
    entries: list[list[str]] = []
    for line in _TABLE.strip().splitlines():
        if line.startswith(" "):
            entries[-1] += line.split()
        else:
            entries.append(line.split())
    for language, *fields in entries:
        figures, words = [float(field) for field in fields[:15]], tuple(fields[15:])
        top = dict(zip((2, 3, 4), figures[6:9], strict=True))
        repeated = dict(zip(range(5, 11), figures[9:], strict=True))
        limits[language] = LanguageLimits(
            min_mean_word_length=figures[0],
            max_mean_word_length=figures[1],
            min_alphabetic_words=figures[2],
            min_ended_lines=figures[3],
            max_new_lines=figures[4],
            max_duplicate_lines=figures[5],
            top_n_grams=top,
            repeated_n_grams=repeated,
            stop_words=words,
        )
    return limits | {
        language: replace(limits[language], **_CHINESE) for language in WHOLE_LINE_LANGUAGES & limits.keys()
    }


_CHINESE: dict[str, Any] = {
    "min_alphabetic_words": 0.5,
    "min_ended_lines": 0.0,
    "max_new_lines": 0.6,
    "top_n_grams": {2: 0.3, 3: 0.4, 4: 0.4},
    "min_words": 20,
    "min_stop_words": 1,
}
"""What differs from FineWeb-2 in Chinese. Its limits come from an encyclopedia and jieba's words, and remove
examination questions, dialogues and poems: our words are pairs of characters, so that punctuation marks and numbers are
a larger share of all words, and a pair that a verse repeats a larger share of its characters; a couplet of forty
characters has twenty words. Verses have a line feed after every two to four words and seldom a full stop."""
