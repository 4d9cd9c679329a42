"""Texts that tokenizers often disagree about: mixed scripts, code, emoji, unusual spaces. Deterministic."""

from __future__ import annotations

import random

_SCRIPTS = {
    "latin": "the quick brown fox Straße naïve İstanbul ﬁne æther ǅ ŉ Ω K ℮ don't I'M we'LL",
    "greek, cyrillic": "Ωmega ἀρχή ὕβρις Жук щука ЁЛКА ѣ Ѫ ꙁ",
    "caucasus": "საქართველო ᲡᲐᲥ Հայաստան ՙ",
    "old and far": "ᏣᎳᎩ ꭰꭱ 𐐨𐐲 𐒰𐓘 ⲁⲃ ⰀⰁ 𞤀𞤢 𑢠𑣀 ᛟᚦ 𒀭",
    "han": "你好，世界！今天天气很好。漢字簡體𠮷𪚥〇龥龦㐀",
    "japanese": "ひらがな カタカナ ｶﾀｶﾅ 漢字かな混じり文ー々〆ゝ",
    "hangul": "한국어 텍스트입니다 ᄒ ㅋㅋㅋ 힣퟿",
    "right to left": "العربية הטקסט ‏ـ؟ ۱۲۳ ١٢٣",
    "india and beyond": "हिन्दी தமிழ் বাংলা ไทย ລາວ ខ្មែរ བོད་ መልካም ३४५ ๑๒",
    "numbers": "3.14159 2,718 1234567890 0x1F 1e-9 ½ Ⅷ ² ₃ ① 𝟘 二〇二四",
    "signs": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ €£¥ ∑∞≠ →⇒ «»‘’“” … — ‐ ！？：；（）【】、。",
    "emoji": "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 ☃️ 🇩🇪🇯🇵 ❤️‍🔥 🫠 1️⃣ ⌚",
    "marks": "é ẹ́ ñ Å a̐ ​zero‍width﻿ ­soft",
}
_BLANKS = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\v",
    "\f",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u2029",
    "\u0085",
]
_CODE = [
    "def f(x: int) -> int:\n    return x ** 2  # ok\n\n\n",
    "\tif (a && b) { c[i]++; }\r\n\r\n",
    'fn main() { println!("{:?}", vec![1u8; 10]); }\n',
    "SELECT a.*, COUNT(*) FROM t AS a WHERE x<>'y' GROUP BY 1;",
    '{"key": [1, 2.5, null, true], "nested": {"a\\n": "\\u00e9"}}',
    '<div class="a-b">&nbsp;<br/></div>\n<!-- x -->',
    "#include <vector>\ntemplate <class T> auto f(T&& t) noexcept(true) -> decltype(t);\n",
    "$ curl -sS https://example.org/a?b=c%20d#e | jq '.[]|.x' > /dev/null 2>&1",
    "λ x → ∀ y. x ≡ y ∧ ¬(y ∈ ℝ)",
    "```python\nprint('hi')\n```",
    "camelCaseName snake_case_name SCREAMING_CASE kebab-case HTTPServer2x",
]
_TAGS = [
    "<think>",
    "</think>",
    "<｜User｜>",
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
    "<|im_start|>",
    "<｜tool▁sep｜>",
    "<｜",
]


def mixed_texts(count: int = 2400) -> list[str]:
    """`count` different texts of up to a few hundred characters."""
    draw = random.Random(20241226)
    samples = [*_SCRIPTS.values(), *_CODE]
    words = [word for sample in samples for word in sample.split(" ")]
    makers = [
        lambda: draw.choice(samples)[draw.randrange(12) :],
        lambda: "".join(draw.choice(words) + draw.choice(_BLANKS) for _ in range(draw.randrange(1, 12))),
        lambda: " ".join(draw.choices(words, k=draw.randrange(1, 12))),
        lambda: "".join(draw.choices(words, k=draw.randrange(1, 8))),
        lambda: "".join(draw.choices("".join(samples), k=draw.randrange(1, 40))),
        lambda: "".join(draw.choices(_BLANKS, k=draw.randrange(1, 9))) + draw.choice(words),
        lambda: draw.choice(words) + "".join(draw.choices(_BLANKS, k=draw.randrange(1, 9))),
        lambda: "".join(draw.choice([*_TAGS, *words, *_BLANKS]) for _ in range(draw.randrange(2, 9))),
        lambda: draw.choice(words) * draw.randrange(2, 30),
        lambda: "".join(chr(_code_point(draw)) for _ in range(draw.randrange(1, 24))),
    ]
    texts: dict[str, None] = {"": None}
    while len(texts) < count:
        texts.setdefault(draw.choice(makers)())
    return list(texts)


def _code_point(draw: random.Random) -> int:
    """A random code point, never a surrogate; common planes are more frequent."""
    point = draw.choice([draw.randrange(0x800), draw.randrange(0x800, 0x10000), draw.randrange(0x10000, 0x110000)])
    return point if not 0xD800 <= point < 0xE000 else point - 0x800
