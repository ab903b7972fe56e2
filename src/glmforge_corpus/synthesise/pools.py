"""Who and what problems are about, in English and Chinese. Nothing in here has a digit or a full stop in it."""

from glmforge_corpus.synthesise.draw import Draw

NAMES = (
    "Ada", "Aisha", "Alan", "Amara", "Anton", "Bela", "Boris", "Carla", "Chen", "Clara", "Daniel", "Dina", "Elena",
    "Emil", "Farid", "Fatima", "Felix", "Grace", "Hana", "Hugo", "Ines", "Ivan", "Jamal", "Jana", "Jonas", "Kaito",
    "Karin", "Kofi", "Lena", "Leo", "Lina", "Luis", "Maja", "Marco", "Mei", "Mina", "Nadia", "Nikhil", "Nora",
    "Olga", "Omar", "Paula", "Pedro", "Priya", "Rafael", "Rosa", "Samir", "Sara", "Sofia", "Tariq", "Tomas", "Uma",
    "Vera", "Viktor", "Wanda", "Yara", "Yusuf", "Zoe",
)  # fmt: skip
NAMES_ZH = (
    "小明", "小红", "小华", "小刚", "小丽", "小芳", "小军", "小强", "小燕", "小兰", "小宇", "小雪", "小杰", "小琳",
    "小涛", "小梅", "小龙", "小玲", "小东", "小楠", "王芳", "李娜", "张伟", "刘洋", "陈静", "杨光", "赵磊", "黄敏",
    "周涛", "吴倩", "徐峰", "孙悦", "胡斌", "朱琳", "高翔", "林涛", "何静", "郭鹏", "马超", "罗兰", "梁晨", "宋佳",
    "郑凯", "谢婷", "韩雪", "唐磊", "冯刚", "董洁",
)  # fmt: skip
# English plural, Chinese measure word, Chinese noun
THINGS = (
    ("apples", "个", "苹果"), ("pears", "个", "梨"), ("oranges", "个", "橙子"), ("pencils", "支", "铅笔"),
    ("pens", "支", "钢笔"), ("notebooks", "本", "笔记本"), ("books", "本", "书"), ("stickers", "张", "贴纸"),
    ("stamps", "张", "邮票"), ("postcards", "张", "明信片"), ("marbles", "颗", "弹珠"), ("candies", "颗", "糖果"),
    ("beads", "颗", "珠子"), ("seeds", "颗", "种子"), ("coins", "枚", "硬币"), ("buttons", "枚", "纽扣"),
    ("eggs", "个", "鸡蛋"), ("cookies", "块", "饼干"), ("bricks", "块", "砖"), ("tiles", "块", "瓷砖"),
    ("balloons", "个", "气球"), ("cups", "个", "杯子"), ("plates", "个", "盘子"), ("roses", "朵", "玫瑰"),
    ("tulips", "朵", "郁金香"), ("shells", "个", "贝壳"), ("ribbons", "条", "丝带"), ("towels", "条", "毛巾"),
    ("bottles", "瓶", "果汁"), ("tickets", "张", "车票"), ("lamps", "盏", "台灯"), ("chairs", "把", "椅子"),
    ("keys", "把", "钥匙"), ("toy cars", "辆", "玩具车"), ("candles", "根", "蜡烛"), ("screws", "颗", "螺丝"),
)  # fmt: skip
PLACES = (
    "Arlen", "Brava", "Corvo", "Delmar", "Estia", "Falun", "Girona", "Harbin", "Isola", "Jaffa", "Kalmar", "Lucca",
    "Malmo", "Narva", "Olinda", "Porto",
)  # fmt: skip
PLACES_ZH = (
    "北京", "上海", "广州", "成都", "杭州", "武汉", "西安", "南京", "重庆", "苏州", "长沙", "青岛", "大连", "昆明",
    "厦门", "天津",
)  # fmt: skip
FIRMS = ("bakery", "library", "workshop", "school", "farm", "museum", "hotel", "garden centre", "factory", "theatre")
FIRMS_ZH = ("面包店", "图书馆", "车间", "学校", "农场", "博物馆", "酒店", "花店", "工厂", "剧院")
NONSENSE = (
    "blickets", "daxes", "wugs", "feps", "zorps", "tomas", "gazzers", "lorbs", "mipples", "norbits", "plims",
    "quards", "rinters", "snargs", "toopas", "velks", "wimbles", "yoffs", "zeddles", "brones", "crells", "drupes",
    "florps", "glaives",
)  # fmt: skip
NONSENSE_ZH = (
    "布里", "达克", "乌格", "费普", "佐普", "托玛", "加泽", "洛布", "米普", "诺比", "普林", "夸德", "林特", "斯纳",
    "图帕", "维克", "温布", "约夫", "泽德", "布朗", "克雷", "弗洛",
)  # fmt: skip
SURFACE = (
    ("the door is open", "门开着"), ("the lamp is on", "灯亮着"), ("the pump is running", "水泵在运转"),
    ("it is raining", "正在下雨"), ("the street is wet", "街道是湿的"), ("the alarm rings", "警报响了"),
    ("the train is late", "火车晚点了"), ("the shop is closed", "商店关门了"), ("the valve is shut", "阀门关闭了"),
    ("the tank is full", "水箱满了"), ("the dog barks", "狗在叫"), ("the cat sleeps", "猫在睡觉"),
    ("the server is up", "服务器在线"), ("the backup is done", "备份完成了"), ("the fan spins", "风扇在转"),
    ("the heater is warm", "暖气是热的"), ("the gate is locked", "大门锁着"), ("the flag is raised", "旗帜升起了"),
    ("the bridge is closed", "桥封闭了"), ("the meeting is cancelled", "会议取消了"), ("the test passes", "测试通过了"),
    ("the report is finished", "报告写完了"), ("the window is broken", "窗户破了"),
    ("the phone is charged", "手机充满电了"),
)  # fmt: skip


def name(draw: Draw, chinese: bool) -> str:
    return draw.pick(NAMES_ZH if chinese else NAMES)


def names(draw: Draw, count: int, chinese: bool) -> list[str]:
    return draw.sample(NAMES_ZH if chinese else NAMES, count)


def thing(draw: Draw, chinese: bool) -> tuple[str, str]:
    """(noun, measure word): "", in English, where the noun is a plural."""
    plural, measure, noun = draw.pick(THINGS)
    return (noun, measure) if chinese else (plural, "")


def things(draw: Draw, count: int, chinese: bool) -> list[tuple[str, str]]:
    return [(noun, measure) if chinese else (plural, "") for plural, measure, noun in draw.sample(THINGS, count)]
