"""Chinese text that is no article: examination questions, dialogues and poems pass the rules, and junk does not."""

import pytest

from glmforge_corpus.filter.rules.c4 import C4
from glmforge_corpus.filter.rules.fineweb import FineWeb
from glmforge_corpus.filter.rules.gopher import GopherQuality, GopherRepetition
from helpers.rule_texts import batch_of, failed_rules

BLOCKS = (GopherQuality, GopherRepetition, C4, FineWeb)

EXAMS = [
    """1. 下列各组词语中，没有错别字的一项是（ ）
A. 喧哗 颠沛 融会贯通
B. 烦燥 迁徙 锲而不舍
C. 寒暄 松驰 鞠躬尽瘁
D. 蜿蜒 谩骂 川流不息
答案：A
解析：B项“烦燥”应为“烦躁”；C项“松驰”应为“松弛”；D项“谩骂”正确。
2. 已知函数f(x)=2x+3，若f(a)=11，则a的值为（ ）
A. 3
B. 4
C. 5
D. 6
答案：B
解析：由2a+3=11，得2a=8，所以a=4。
""",
    """三、阅读理解
阅读下面的文字，回答问题。
小镇的东头有一家老书店，门前两棵梧桐树遮住了半条街。店主姓陈，年近七十，每天清晨开门，先把门口的落叶扫净，再泡一壶浓茶。来看书的人不多，他也不着急。
（1）文中“不着急”表现了店主怎样的性格？
（2）请概括第一段的主要内容。
（3）“遮住”一词能否换成“挡住”？为什么？
""",
]
DIALOGUES = [
    """甲：你好，请问去火车站怎么走？
乙：一直往前，到第二个路口左转。
甲：大概要走多久？
乙：走路十五分钟吧，坐公交两站。
甲：公交车在哪儿坐？
乙：就在对面，坐7路或者12路都行。
甲：太谢谢您了！
乙：不客气，路上小心。
甲：对了，附近有卖水果的吗？
乙：有，车站旁边就有一家。
""",
    """“妈妈，我的作业写完了。”
“真的吗？拿来给我看看。”
“你看，一共三页。”
“字写得不错，就是这里算错了。”
“哪里？哦，我忘记进位了。”
“改好了就去玩吧。”
“我想去楼下踢球。”
“六点以前要回来吃饭。”
""",
]
POEMS = [
    """秋夜
窗外的风停了
月亮挂在桥头
一条小船慢慢划过
水声很轻
像谁在梦里
翻了一页书
我点起灯
等一封迟到的信
信里没有别的
只有故乡的雨
落在屋檐
落在你去年
坐过的石阶
""",
    """山行偶记
细雨湿青苔，孤云出岫来。
松声连谷响，野径逐花开。
客去茶犹热，人归鸟自回。
不知今夜月，照我几时还。
""",
]

JUNK = {
    "one line again and again": "点击这里立即下载最新版本，优惠多多，欢迎选购。\n" * 30,
    "keywords": "手机 电脑 相机 平板 " * 60,
    "numbers": "\n".join(f"{n} {n * 7} {n * 13} {n * 31}" for n in range(100, 160)),
    "too short": "首页\n登录\n注册",
    "a phrase without end": "加微信领红包" * 80,
}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("text", [*EXAMS, *DIALOGUES, *POEMS], ids=range(6))
def test_forms_that_are_no_articles_pass(block, text: str) -> None:
    outcome = block().process(batch_of([text], "zh"))
    assert failed_rules(outcome) == [set()]
    assert [line.strip() for line in outcome.batch.texts[0].strip().splitlines()] == text.strip().splitlines()


@pytest.mark.parametrize("name", JUNK)
def test_junk_does_not(name: str) -> None:
    assert any(failed_rules(block().process(batch_of([JUNK[name]], "zh"))) != [set()] for block in BLOCKS)


def test_a_stricter_option_wins_over_the_number_of_the_language() -> None:
    poem = batch_of([POEMS[1]], "zh")
    assert failed_rules(GopherQuality(min_words=10).process(poem)) == [set()]
    assert failed_rules(GopherQuality(per_language=False).process(poem)) != [set()]
